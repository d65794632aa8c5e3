"""The monitor of a training run: what it measures, what it says, and how it is kept."""
