"""Sweeps: many systems over the points of a design, on the processors of this machine or of a cluster, in one store.

A design of either kind becomes a folder that is filled, resumed and recorded by `_store`, on the workers of `_cluster`:
`systems` has sweeps of simulated systems, whose functions are here, and `study` has studies of trained networks.

`sweep` runs the systems that a file describes and `open_store` reads what was stored; `read_plan` and `parse_plan`
check a file without running it. `docs/sweep.md` shows what a file may say.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
