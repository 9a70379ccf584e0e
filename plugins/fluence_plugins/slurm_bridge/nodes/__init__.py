"""Nodes of Kubernetes and of Slurm, kept in step."""
