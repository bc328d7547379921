"""Write one HTML page about a run, or about two side by side, from what they left in their folders."""
