"""Compute over all replicas what one process computes of a whole batch: sums, means, gradients, losses."""
