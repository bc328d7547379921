"""Explain the errors of lost tasks, of sizes and of scripts, in one line each."""
