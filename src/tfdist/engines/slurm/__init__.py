"""Run a cluster on Slurm."""
