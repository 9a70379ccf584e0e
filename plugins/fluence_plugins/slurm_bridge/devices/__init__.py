"""Writes the devices that Slurm allocated as allocated ResourceClaims of the pods."""
