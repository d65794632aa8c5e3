"""Several networks compared: where their tokens part, which part causes it, and how their weights differ."""
