"""Data model: typed Kubernetes objects, and the values that the core computes with (quantities, node columns, classes,
groups).
"""
