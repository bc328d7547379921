"""What the machine, the cluster and a run look like, for people who look for a fault."""
