"""One layer of a trainable network, and what is left out of it in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.modules._arguments import check_shares
from tokendynamics.numerics.signatures import typed_arguments


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


NORMS = ("pre", "post", "none")

_Module = TypeVar("_Module", bound=nn.Module)


class Block(nn.Module):
    """Attention, then the feed-forward part where there is one, each added to the residual stream.

    Args:
        attention: A layer of states (…, token, dim).
        dim: Features of a token.
        width: Hidden units of the feed-forward part; 0 leaves the part out.
        norms: Before each part ("pre"), after each sum ("post"), or "none".
        norm_eps: What the norms add to the variance.
        dropout: Of what each part adds, entry by entry.
        drop_path: Of what each part adds, for a whole sample at once.
    """

    def __init__(
        self,
        attention: nn.Module,
        dim: int,
        width: int,
        *,
        norms: str = "pre",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norms, normed = norms, norms != "none"
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, norm_eps) if normed else None
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = FeedForward(dim, width, dropout) if width else None
        self.feed_forward_norm = nn.LayerNorm(dim, norm_eps) if width and normed else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states after the layer, for states (…, token, dim)."""
        x = self._added(x, lambda states: self.dropout(self.attention(states)), self.attention_norm)
        if self.feed_forward is not None:
            x = self._added(x, self.feed_forward, self.feed_forward_norm)
        return x

    def _added(self, x: Tensor, part: Callable[[Tensor], Tensor], norm: nn.Module | None) -> Tensor:
        if norm is None:
            return x + self.drop_path(part(x))
        if self.norms == "pre":
            return x + self.drop_path(part(norm(x)))
        return norm(x + self.drop_path(part(x)))


class DropPath(nn.Module):
    """Stochastic depth: in training a sample's update is left out, and one that is kept is divided by its chance.

    There is one draw for each entry of the first axis, and the expectation of the output is the input.

    Args:
        share: Chance that an update is left out.

    Raises:
        ArgumentValueError: No share from 0 to below 1.

    >>> DropPath(0.5).eval()(torch.ones(2, 1))
    tensor([[1.],
            [1.]])
    """

    @typed_arguments
    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        check_shares(drop_path=share)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """Return the updates (sample, …) that are kept, scaled, and zeros for the others."""
        if not self.training or self.share == 0:
            return x
        keep = 1 - self.share
        kept = torch.empty(len(x), *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(keep)
        return x * (kept / keep)


def drawn_apart(make: Callable[[], _Module]) -> _Module:
    """Return the module that `make` makes, from draws of its own.

    What an attention draws differs between regimes; all that is drawn after it shall be the same in each.
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
