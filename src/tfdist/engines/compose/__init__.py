"""Run a cluster as containers of Compose, and write the file of their image."""
