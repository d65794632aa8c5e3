"""One number from −1 to 1 for a spectrum whose counts say nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics.arguments import check_finite, plain_tensor
from tokendynamics.numerics.errors import ArgumentTypeError, expected, shown


def balance(eigenvalues: Tensor) -> Float[Tensor, "*batch"]:
    """Return ``Σ Re λ / Σ |λ|``: 1 when every eigenvalue is positive, −1 when all are negative, 0 when they cancel.

    The inertia of a single head's QK circuit is (d_k, d_k) for nearly every head of every network, so the sizes of
    the eigenvalues, not their number, tell heads apart. A zero matrix has balance 0.

    Args:
        eigenvalues: Real or complex, shape (…, count); exact zeros may be left out.

    Returns:
        float64 tensor of shape (…), dimensionless, from −1 to 1.

    Source: this project (no equation in the three papers); for ov it is the "copying score" of the circuits literature.

    >>> balance(torch.tensor([3.0, -1.0])).item()
    0.5
    """
    if not isinstance(eigenvalues, Tensor):
        raise ArgumentTypeError(expected("eigenvalues", "a torch tensor", shown(eigenvalues)))
    eigenvalues = plain_tensor(eigenvalues, "eigenvalues")
    if eigenvalues.ndim == 0 or not (eigenvalues.is_floating_point() or eigenvalues.is_complex()):
        came = f"shape {tuple(eigenvalues.shape)}, {eigenvalues.dtype}"
        raise ArgumentTypeError(expected("eigenvalues", "real or complex numbers of shape (…, count)", came))
    check_finite(eigenvalues, "eigenvalues")
    total = eigenvalues.abs().double().sum(-1)
    signed = eigenvalues.real.double().sum(-1)
    return signed / torch.where(total > 0, total, 1.0)
