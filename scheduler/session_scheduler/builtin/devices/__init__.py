"""Dynamic resource allocation with structured parameters, for DynamicResources: inventory, usage and allocation.

Source: k8s.io/dynamic-resource-allocation 0.36, with the features that Kubernetes 1.36 enables by default.
"""
