"""Translates Kubernetes workloads into placeholder jobs: finds a pod's root object and reads its annotations."""
