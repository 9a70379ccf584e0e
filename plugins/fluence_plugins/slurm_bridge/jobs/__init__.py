"""Pods and their placeholder jobs: the loop that keeps them in step, and what sessions read of it."""
