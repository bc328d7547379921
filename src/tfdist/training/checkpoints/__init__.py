"""Save what `fit` needs to resume, and load it."""
