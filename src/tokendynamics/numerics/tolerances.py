"""When a computed number counts as zero, relative to which scale, and a matrix as positive definite."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import first_system
from tokendynamics.numerics.errors import ArgumentValueError

NEAR_ZERO = 1e-3
"""|λ| below which `positional` (Table 7) calls an eigenvalue of the value map near zero. Absolute: it depends on
the scale of the weights, so a count relative to the spectral radius stands beside it everywhere."""


def rounding_threshold(scale: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return ``size · eps(dtype) · scale``: what rounding alone can make of an exact zero.

    Args:
        scale: The largest singular value, or an upper bound of it.
        size: The larger side of the matrix.
        dtype: The precision the matrix CAME in (a float32 product keeps float32 noise after a cast).
    """
    return size * torch.finfo(dtype).eps * scale


def check_positive_definite(matrix: Tensor, argument: str, precision: torch.dtype) -> None:
    """Refuse matrices (…, dim, dim) that are not symmetric up to the rounding of `precision`, or not positive definite.

    Raises:
        ArgumentValueError: The asymmetry, or the lowest eigenvalue, is printed.

    >>> check_positive_definite(torch.eye(2), "metric", torch.float32)
    """
    wanted = "a symmetric positive definite matrix"
    defect = (matrix - matrix.mT).abs().amax(dim=(-2, -1))
    uneven = defect > rounding_threshold(matrix.abs().amax(dim=(-2, -1)), matrix.shape[-1], precision)
    if bool(uneven.any()):
        came = f"an asymmetry of {float(defect[uneven][0]):.3g}{first_system(uneven)}"
        raise ArgumentValueError(argument, wanted, came, "pass (M + M^T)/2 if the asymmetry is noise")
    symmetric = matrix / 2 + matrix.mT / 2  # the sum itself may overflow
    bad = torch.linalg.cholesky_ex(symmetric).info != 0
    if bool(bad.any()):
        lowest = torch.linalg.eigvalsh(symmetric[bad]).amin(dim=-1)[0]
        raise ArgumentValueError(argument, wanted, f"lowest eigenvalue {float(lowest):.6g}{first_system(bad)}")
