"""The designs of the studies: files of `tokendynamics.sweeps`."""
