"""Devices for claims, as kube-scheduler's structured parameters give them: what there is, what is taken, what fits.

Source: k8s.io/dynamic-resource-allocation 0.36, with the features that are on by default in Kubernetes 1.36.
"""
