"""The Slurm jobs of pods: submitted, listed, assigned to pods, and reconciled with them."""
