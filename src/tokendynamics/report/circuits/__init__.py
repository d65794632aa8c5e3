"""The pages on circuits, a section a file."""
