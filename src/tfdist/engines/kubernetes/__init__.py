"""Run a cluster on Kubernetes."""
