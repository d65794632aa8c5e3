"""The feed-forward part of a block."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class FeedForward(nn.Module):
    """``W_2 gelu(W_1 x + b_1) + b_2``, token by token.

    Args:
        dim: Features of a token.
        width: Hidden units.
        dropout: Of the output, in training.
    """

    def __init__(self, dim: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(dim, width), nn.Linear(width, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the part's output for states (…, token, dim)."""
        return self.dropout(self.fall(functional.gelu(self.rise(x))))
