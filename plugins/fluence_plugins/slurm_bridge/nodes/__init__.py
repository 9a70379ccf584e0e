"""Synchronises nodes between Kubernetes and Slurm."""
