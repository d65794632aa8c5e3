"""The weights of a checkpoint, audited without running it: measures, distances from the theorems, and sentences."""
