"""Where tokens live: free space, the sphere, an ellipsoid."""

from tokendynamics.spaces._ellipsoid import Ellipsoid, Sphere
from tokendynamics.spaces._normalized import Normalized
from tokendynamics.spaces.geometry import Free
from tokendynamics.spaces.retraction import remark_5_1_projection
from tokendynamics.spaces.space import Space

__all__ = ["Ellipsoid", "Free", "Normalized", "Space", "Sphere", "remark_5_1_projection"]
