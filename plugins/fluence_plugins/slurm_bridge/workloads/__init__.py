"""From Kubernetes workloads to the placeholder job: which object is a pod's root, its annotations, the translation."""
