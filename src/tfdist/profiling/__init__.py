"""Record what all tasks of a cluster do, and merge their recordings into one timeline."""

FILE = "timeline/timeline.json.gz"  # in the folder of the run
