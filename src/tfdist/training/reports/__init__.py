"""Report the results and the progress of a run, and what it runs on."""
