"""Sweeps of simulated systems: what a file of axes and draws describes, in a Zarr store that is filled task by task."""
