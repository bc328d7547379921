"""The job that a config file describes: train, evaluate, keep checkpoints, and export."""
