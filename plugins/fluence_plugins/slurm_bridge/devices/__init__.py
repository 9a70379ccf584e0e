"""The devices that Slurm chose, as allocated ResourceClaims of the pods."""
