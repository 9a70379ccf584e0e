"""The plugin `slurm-bridge`: Slurm selects the nodes for pods, through one placeholder job for each group of pods."""
