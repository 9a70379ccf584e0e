"""Placement of pods where Slurm says: a Slurm job stands in for each group of pods, and they are bound to its nodes."""
