"""The normalization before the feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tokendynamics.numerics.arguments import as_finite
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_fields


@typed_fields
@dataclass(frozen=True, eq=False)
class LayerNorm:
    """``gain · (z − mean)/√(variance + eps) + shift`` over features of each token.

    Attributes:
        gain: (features,).
        shift: (features,).
        eps: Keeps a token of equal features finite.
        features: Which are normalized, all by default, without gaps; the others are left as they are.

    Raises:
        ArgumentValueError: Features in steps.

    >>> LayerNorm(torch.ones(2), torch.zeros(2), eps=0.0)(torch.tensor([[3.0, 1.0]]))
    tensor([[ 1., -1.]])
    """

    gain: Tensor
    shift: Tensor
    eps: float = 1e-5
    features: slice = field(default_factory=lambda: slice(None))

    def __post_init__(self) -> None:
        as_finite(self.eps, "eps")
        if self.features.step not in (None, 1):
            raise ArgumentValueError(expected("features", "a slice without steps", self.features))

    def __call__(self, stream: Tensor) -> Tensor:
        """The normalized stream, shape (…, token, width)."""
        first, last, _ = self.features.indices(stream.shape[-1])
        normalized = layer_norm(stream[..., first:last], (last - first,), self.gain, self.shift, self.eps)
        return torch.cat([stream[..., :first], normalized, stream[..., last:]], dim=-1)
