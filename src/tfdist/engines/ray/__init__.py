"""Run a cluster on Ray."""
