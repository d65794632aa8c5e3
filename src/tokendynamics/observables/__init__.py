"""Functions of token states: lengths, distances, agreement, ranks, clusters, half spaces, energies, forms.

Every function takes states `x` of shape (…, token, dim), as a torch tensor, a numpy array or nested lists, and
answers in the type that came in. Leading axes are independent systems. The arithmetic is float64 whatever came
in; results have the dtype of `x` (float32 stays float32, half precision comes back as float32).
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
