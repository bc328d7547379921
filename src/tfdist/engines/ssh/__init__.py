"""Run a cluster on hosts that one can log in to with ssh."""
