"""The page of a comparison: several models on one axis, where they part, and how their weights differ."""
