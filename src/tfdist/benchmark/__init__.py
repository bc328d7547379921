"""Measure how fast a config trains on this machine, where the time goes, and what makes it faster."""
