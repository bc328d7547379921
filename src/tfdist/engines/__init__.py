"""Run a cluster where other machines are: render what a scheduler reads, submit it, and look after it."""
