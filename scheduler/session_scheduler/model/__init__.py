"""Typed Kubernetes objects and the values the core computes with: quantities, node columns, classes, groups."""
