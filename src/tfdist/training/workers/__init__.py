"""Keep mirrored workers together: exchange numbers, agree when to stop, and notice calls that differ."""
