"""The page of a simulation: how each system ended, observables over time, the paths of the tokens."""
