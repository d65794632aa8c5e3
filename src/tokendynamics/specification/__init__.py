"""Simulations described by a file: reading it, checking it, and running it.

`read` and `parse` check a file, `check` lists the theorems that apply to it, and `run` runs it. They are imported on
first use, so that examples and error messages do not wait for PyTorch; the examples are in `.examples`.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
