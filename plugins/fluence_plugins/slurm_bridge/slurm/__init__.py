"""The client of slurmrestd: requests, responses and errors, and Slurm's text formats."""
