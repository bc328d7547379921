"""Check this machine, the cluster and a run before it starts: `tfdist doctor`."""
