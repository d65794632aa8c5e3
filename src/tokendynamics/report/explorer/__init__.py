"""The explorer: tokens that move on a page, what changes how they move, and which statements of the theory apply."""
