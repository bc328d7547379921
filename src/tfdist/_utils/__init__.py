"""Read YAML, write files and draw plots: what every package may use."""
