"""Divide losses, and count metrics, as one process does for the whole batch."""
