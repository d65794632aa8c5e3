"""The page of a diagnosis, a figure a file."""
