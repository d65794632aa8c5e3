"""Figures 1, 2, 4, 5 and 8 to 11, Remarks 3.2, 3.5 and 4.2 and Table 7 of `positional`."""
