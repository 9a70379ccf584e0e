"""First-party plugins of the scheduler; each uses only the core's public names."""
