"""Parts of a network turned down by gates: derivatives, trials, what a change does, and the levers of consensus."""
