"""Compute a step of a model on all replicas: training, evaluating, predicting, or one of its own."""
