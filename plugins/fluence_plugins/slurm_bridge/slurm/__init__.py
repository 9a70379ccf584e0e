"""Slurm as the plugin sees it: the client of slurmrestd, its messages and errors, and the text formats of Slurm."""
