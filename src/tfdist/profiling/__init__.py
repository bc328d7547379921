"""Record what all tasks of a cluster do, and merge their recordings into one timeline."""
