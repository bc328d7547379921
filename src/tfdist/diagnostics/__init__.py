"""Describe the machine, the cluster and a run to people who look for a fault."""
