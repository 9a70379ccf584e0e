"""Placements of Alibaba's `openb` trace of a GPU fleet: the policies of its paper, and this project.

Source: "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC 2023.
"""
