"""Predict how fast a cluster trains: a discrete-event simulation of links, processors and stragglers."""
