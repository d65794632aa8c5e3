"""The four workloads of simulation, and the solvers they are measured beside."""
