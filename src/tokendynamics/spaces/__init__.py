"""Where tokens live: free space, the sphere, an ellipsoid."""

from tokendynamics.spaces.ellipsoid import Ellipsoid
from tokendynamics.spaces.free import Free
from tokendynamics.spaces.remark_5_1 import remark_5_1_projection
from tokendynamics.spaces.space import Space
from tokendynamics.spaces.sphere import Sphere

__all__ = ["Ellipsoid", "Free", "Space", "Sphere", "remark_5_1_projection"]
