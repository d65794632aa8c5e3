"""The page of a sweep: how often each outcome is, over the parameters that varied."""
