"""Where a transformer's circuits and states are, found by running it; no table of families."""
