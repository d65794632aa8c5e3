"""A trainable matrix with all its eigenvalues in one half of the plane, whatever its parameters are."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tokendynamics.modules._floor import eye_like, product_floors
from tokendynamics.modules._precision import without_autocast
from tokendynamics.modules._signed_matrix import SignedMatrix
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

Half = Literal["positive", "negative"]


class PlacedSpectrum(nn.Module):
    """``V = ±P N`` with P symmetric and positive definite and N_sym positive definite: every ``±Re λ(V) > 0``.

    ``P N`` is similar to ``P^{1/2} N P^{1/2}``, whose symmetric part is positive definite. By Lyapunov's theorem every
    matrix with its spectrum in that half plane has this form, so that nothing else is asked of V.

    A floor keeps the signs from being lost to rounding: with λ the lowest eigenvalues of P and N_sym,
    ``λ_P λ_N ≥ 128·eps·|P|_F |N|_F`` (eps of the dtype). Where they are smaller, both get the same multiple of the
    identity relative to their size; that multiple is exactly 0 elsewhere.

    Args:
        dim: Rows and columns.
        sign: That of the real parts, ``"positive"`` or ``"negative"``.
        device: Where its parameters are made.
        dtype: Theirs; None is PyTorch's default.

    Raises:
        ArgumentValueError: An unknown sign.

    >>> values = PlacedSpectrum(3, "negative")
    >>> values.start(noise=0.5, generator=torch.Generator().manual_seed(1))
    >>> bool((torch.linalg.eigvals(values().detach()).real < 0).all())
    True
    """

    @typed_arguments
    def __init__(
        self,
        dim: int,
        sign: Half,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if sign not in ("positive", "negative"):
            raise ArgumentValueError(expected("sign", "'positive' or 'negative'", repr(sign)))
        self.metric = SignedMatrix(dim, symmetric=True, device=device, dtype=dtype)
        self.matrix = SignedMatrix(dim, sign, device=device, dtype=dtype)

    def forward(self) -> Tensor:
        """Return V, (dim, dim), in float32 at least."""
        with without_autocast(self.metric.lower):
            metric, definite, skew = self.metric.symmetric_part(), self.matrix.symmetric_part(), self.matrix.skew_part()
            of_metric, of_definite = (floor[:, None, None] for floor in product_floors(metric, definite, skew))
            metric = metric + of_metric * eye_like(metric)
            matrix = (definite + of_definite * eye_like(definite)) * self.matrix.signs.unsqueeze(-1)
            return (metric @ (matrix if skew is None else matrix + skew))[0]

    @typed_arguments
    def start(self, *, noise: float = 0.0, generator: torch.Generator | None = None) -> None:
        """Set V to ±I, with normal entries of standard deviation `noise` below the diagonals of its factors."""
        self.metric.start(size=1.0, noise=noise, generator=generator)
        self.matrix.start(size=1.0, noise=noise, generator=generator)
