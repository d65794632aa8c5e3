"""Figures 1, 2, 5 and 9 and Remarks 3.2, 3.5 and 4.2 of `positional`."""
