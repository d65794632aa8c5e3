"""Training of networks in a chosen regime: experiments, tasks, records, and a monitor for any training run.

Names are imported on first use: the callbacks `Monitor` and `Samples` need transformers, which takes seconds.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
