"""The remedy ``W_li + λ A`` of one attention of a live network: its parameters, and the columns that they make."""

from __future__ import annotations

from threading import get_ident
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected

Kind = Literal["lambda-identity", "lambda-diagonal"]
NAME = "remedy"
"""What an attention module calls the columns that it was given."""


class LambdaColumns(nn.Module):
    """Columns beside the queries and keys of an attention, whose products are ``x_l^T λA x_i`` in sum over heads.

    ``λ = −|size|`` and ``A = diag(exp(log_diagonal))``, the identity for the kind "lambda-identity". x is what queries
    and keys are projected from; head h of H has its features h·w … (h+1)·w − 1, w = ⌈dim/H⌉, those beyond dim being
    zero. The columns stand behind all others, where no rotation turns them; beside a soft cap the term is part of what
    is capped. λ = 0 leaves the logits as they are, and its gradient there is that from below.

    Attributes:
        kind: Which.
        size: |λ|, (1,), up to a sign that says nothing.
        log_diagonal: log A, (dim,); None for the identity.

    Args:
        kind: Which.
        dim: Features of a state.
        heads: Query heads.
        kv_heads: Heads of keys and values, a divisor of `heads`.
        start: λ at the start, from 0 down.

    Source: `positional` 5.2.

    >>> LambdaColumns("lambda-diagonal", 4, heads=2, kv_heads=1, start=-0.5).coefficients().tolist()
    [-0.5, -0.5, -0.5, -0.5]
    """

    def __init__(self, kind: Kind, dim: int, *, heads: int, kv_heads: int, start: float = 0.0) -> None:
        super().__init__()
        self.kind, self.dim, self.heads, self.kv_heads = kind, dim, heads, kv_heads
        self.width = -(-dim // heads)
        self.size = nn.Parameter(torch.tensor([abs(float(start))]))  # of one axis: FSDP shards no scalars
        self.log_diagonal = nn.Parameter(torch.zeros(dim)) if kind == "lambda-diagonal" else None
        self._states: dict[int, Tensor] = {}  # by thread

    @property
    def words(self) -> str:
        """What it adds to W."""
        return "λA" if self.kind == "lambda-diagonal" else "λI"

    def coefficients(self) -> Float[Tensor, " dim"]:
        """Return the diagonal of λI or λA."""
        strength = torch.where(self.size < 0, self.size, -self.size)  # −|·| itself has the gradient 0 at 0
        return strength.expand(self.dim) if self.log_diagonal is None else strength * self.log_diagonal.exp()

    def keep(self, x: Float[Tensor, "batch token dim"]) -> None:
        """Take what the attention is about to read."""
        self._states[get_ident()] = x

    def drop(self) -> Tensor | None:
        """Return what was kept and not asked for since, and let go of it."""
        return self._states.pop(get_ident(), None)

    def of_keys(self, x: Float[Tensor, "batch token dim"]) -> Float[Tensor, "batch kv_head token column"]:
        """Return the columns of the keys: the slices of all heads that share them, side by side."""
        return self._slices(x, self.kv_heads)

    def extended(
        self,
        query: Float[Tensor, "batch head token d_head"],
        key: Float[Tensor, "batch kv_head sender d_key"],
        value: Float[Tensor, "batch kv_head sender d_value"],
        scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return queries and keys with their columns, values, and the factor of the logits; every head has its own.

        Args:
            query: Queries, rotated, of the states that were kept.
            key: Keys, rotated; with `of_keys` behind them where they come from a cache that has both.
            value: Values.
            scale: Factor of the logits; None for 1/√d_head.

        Raises:
            CheckpointError: Keys whose states are not known.
        """
        x, width, groups = self.drop(), query.shape[-1], self.heads // self.kv_heads
        factor = float(width**-0.5 if scale is None else scale)
        columns = key[..., width:]
        if x is not None and not columns.shape[-1] and key.shape[2] == x.shape[1]:
            columns = self.of_keys(x)
        if x is None or columns.shape[-1] != groups * self.width:
            wanted, came = f"{groups * self.width} columns of the remedy behind the keys", columns.shape[-1]
            raise CheckpointError(
                expected("remedy", wanted, came, "its keys are computed in another way: pass use_cache=False")
            )
        own = self._slices(x * (self.coefficients() / factor).to(x.dtype), self.heads).to(query.dtype)
        columns = columns.unflatten(-1, (groups, -1)).movedim(3, 2).flatten(1, 2).to(key.dtype)
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key[..., :width], value))
        return torch.cat([query, own], -1), torch.cat([key, columns], -1), value, factor

    def _slices(self, x: Tensor, count: int) -> Tensor:
        missing = self.heads * self.width - self.dim
        return (functional.pad(x, (0, missing)) if missing else x).unflatten(-1, (count, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """Return what it is, for printing."""
        return f"{self.kind}, dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}"


def columns_of(module: nn.Module) -> LambdaColumns | None:
    """Return the columns that an attention module was given; None without."""
    found = getattr(module, NAME, None)
    return found if isinstance(found, LambdaColumns) else None


def remedies_in(network: nn.Module) -> list[tuple[nn.Module, LambdaColumns]]:
    """Return every attention of a network that has a remedy, with its columns, in the order of the modules."""
    pairs = ((module, columns_of(module)) for module in network.modules())
    return [(module, columns) for module, columns in pairs if columns is not None]


class Ungrouped:
    """An attention module as its own plain implementation sees it, where every head has keys of its own."""

    num_key_value_groups = 1

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
