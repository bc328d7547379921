"""Report which tasks of a cluster are present, alive or leaving, and let tasks call each other."""
