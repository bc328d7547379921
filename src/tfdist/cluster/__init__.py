"""Describe a cluster as a value: its tasks, their addresses, and the sources it is read from."""
