"""Positions of trainable networks, and the attention of queries and keys that have them.

Terms in the logits are further columns of queries and keys, so that one attention serves all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.modules._arguments import check_heads, check_sizes, check_spreads
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_positive
from tokendynamics.numerics.signatures import typed_arguments


class Pair(NamedTuple):
    """Queries and keys, or columns beside them, (…, head, token, column) each, and what turns them.

    `cosine` and `sine` are of `angles`, (token, column), in the dtype of the columns; None leaves both as they are.
    """

    query: Tensor
    key: Tensor
    cosine: Tensor | None = None
    sine: Tensor | None = None


def angles(columns: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """Return the cosines that `turned` wants for columns (…, token, width), and sines, negative in the first half.

    >>> cosine, sine = angles(torch.ones(2, 2), 10000.0)
    >>> cosine[1], sine[1]
    (tensor([0.5403, 0.5403]), tensor([-0.8415,  0.8415]))
    """
    tokens, width = columns.shape[-2:]
    half = width // 2
    place = {"dtype": torch.float64, "device": columns.device}
    angle = torch.arange(tokens, **place).unsqueeze(-1) * base ** (-2 * torch.arange(half, **place) / width)
    cosine, sine = angle.cos().to(columns.dtype), angle.sin().to(columns.dtype)
    return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def turned(columns: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (c, c + width/2) of rows l = 0, 1, … of (…, token, width) by the angle ``l · base^(−2c/width)``.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> turned(rows, *angles(rows, 10000.0))[1]
    tensor([0.5403, 0.8415])
    """
    return columns * cosine + swapped(columns) * sine


def swapped(columns: Tensor) -> Tensor:
    """Return the columns with both halves of them in each other's place."""
    return columns.roll(columns.shape[-1] // 2, -1)


def joined(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return the queries and the keys of all pairs side by side, turned."""
    queries, keys = zip(*(_plain(pair) for pair in pairs), strict=True)
    return (queries[0], keys[0]) if len(pairs) == 1 else (_side_by_side(queries), _side_by_side(keys))


def by_token(columns: Tensor) -> Tensor:
    """Return (…, token, head, column) of (…, head, token, column), or the other way round.

    A token's heads are side by side in memory: copies and gradients in that order cost the least.
    """
    return columns.transpose(-2, -3)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return by_token(torch.cat([by_token(part) for part in parts], -1))


def _plain(pair: Pair) -> tuple[Tensor, Tensor]:
    query, key, cosine, sine = pair
    if cosine is None or sine is None:
        return query, key
    return turned(query, cosine, sine), turned(key, cosine, sine)


def terms_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return ``Σ_j softmax_j(scale · Σ_p q_pi · k_pj) v_j`` in the form that is fast, in memory linear in the tokens.

    Args:
        pairs: What the logits are the products of.
        value: Values, (…, head, token, width); the result has their shape.
        causal: Whether token i sees only tokens j ≤ i.
        scale: Factor of the logits.
        dropout: Of the weights.
    """
    further = sum(pair.query.shape[-1] for pair in pairs) - value.shape[-1]
    if further <= 0:
        return joined_attention(pairs, value, causal=causal, scale=scale, dropout=dropout)
    # The fused kernels want all of one width: without these zeros training would cost half as much again.
    padded = by_token(functional.pad(by_token(value), (0, further)))
    mixed = joined_attention(pairs, padded, causal=causal, scale=scale, dropout=dropout)
    return by_token(by_token(mixed)[..., : value.shape[-1]])


def joined_attention(pairs: Sequence[Pair], value: Tensor, *, causal: bool, scale: float, dropout: float) -> Tensor:
    """Return the same of PyTorch's own attention, which gets all columns side by side and the values as they are."""
    query, key = joined(pairs)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal, scale=scale)


Kind = Literal["identity", "diagonal"]
_BASE = 10000.0


class LogitTerm(Protocol):
    """What trainable attention asks of a positional scheme or remedy, an `nn.Module` with this method.

    Queries and keys are (…, head, token, width); the logits are their inner products times 1/√(dim/heads).
    """

    def extended(self, query: Tensor, key: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys with what the scheme turns or adds, for states x (…, token, dim)."""
        ...


class ColumnsBeside(nn.Module, ABC):
    """A `LogitTerm` that leaves queries and keys as they are and adds columns of its own, which may stay apart."""

    @abstractmethod
    def beside(self, query: Tensor, x: Tensor) -> Pair:
        """Return the columns of queries and of keys, (…, head, token, column), in the dtype of `query`."""

    def extended(self, query: Tensor, key: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `LogitTerm`."""
        return joined([Pair(query, key), self.beside(query, x)])


class LearnedPositions(nn.Module):
    """A vector for each position, added to the embeddings.

    Args:
        tokens: The longest sequence.
        dim: Features of a token.
        std: Of the normal start.

    Raises:
        ArgumentValueError: Sizes below 1, or a negative standard deviation; in use, a longer sequence.

    >>> LearnedPositions(8, 4)(torch.zeros(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    @typed_arguments
    def __init__(self, tokens: int, dim: int, *, std: float = 0.02, generator: torch.Generator | None = None) -> None:
        super().__init__()
        check_sizes(tokens=tokens, dim=dim)
        check_spreads(std=std)
        self.std = std
        self.table = nn.Parameter(torch.empty(tokens, dim))
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.table, 0.0, self.std, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + p for x of shape (…, token, dim)."""
        if x.shape[-2] > len(self.table):
            raise ArgumentValueError("x", f"{len(self.table)} tokens at most", x.shape[-2])
        return x + self.table[: x.shape[-2]]


class SinusoidalPositions(nn.Module):
    """Sines and cosines added to the embeddings: ``p_ij`` of `tokendynamics.AbsolutePositions.sinusoidal`.

    Nothing is stored, so that nothing can be lost with a checkpoint.

    Args:
        base: Of the geometric sequence of wavelengths.

    Raises:
        ArgumentValueError: A base that is not positive.

    Source: the formula above `positional` (5), with features counted from 0.

    >>> SinusoidalPositions()(torch.zeros(1, 2))
    tensor([[0.8415, 0.5403]])
    """

    @typed_arguments
    def __init__(self, base: float = _BASE) -> None:
        super().__init__()
        self.base = as_positive(base, "base")

    def forward(self, x: Tensor) -> Tensor:
        """Return x + p for x of shape (…, token, dim)."""
        tokens, dim = x.shape[-2:]
        feature = torch.arange(dim, dtype=torch.float64, device=x.device)
        position = torch.arange(1, tokens + 1, dtype=torch.float64, device=x.device).unsqueeze(-1)
        angle = position * self.base ** (-(feature - feature % 2) / dim)
        return x + torch.where(feature % 2 == 0, angle.sin(), angle.cos()).to(x.dtype)


class Rotary(nn.Module):
    """Rotary positions of queries and keys themselves, as language models have them.

    Args:
        width: Columns of each head that are turned, even; the others stay as they are.
        base: Of the geometric sequence of frequencies.

    Raises:
        ArgumentValueError: An odd width, or a base that is not positive; in use, one beyond that of the heads.

    >>> Rotary(4).width
    4
    """

    @typed_arguments
    def __init__(self, width: int, *, base: float = _BASE) -> None:
        super().__init__()
        _even(width)
        self.width, self.base = width, as_positive(base, "base")

    def extended(self, query: Tensor, key: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `LogitTerm`."""
        return joined(self.parts(query, key))

    def parts(self, query: Tensor, key: Tensor) -> list[Pair]:
        """Return the columns that are turned, with their angles, and those that stay as they are."""
        if query.shape[-1] < self.width:
            raise ArgumentValueError("width", f"{query.shape[-1]} columns of a head at most", self.width)
        first, first_key = query[..., : self.width], key[..., : self.width]
        pairs = [Pair(first, first_key, *angles(first, self.base))]
        if query.shape[-1] > self.width:
            pairs.append(Pair(query[..., self.width :], key[..., self.width :]))
        return pairs


class DecoupledRotary(ColumnsBeside):
    """Rotary positions beside W, with queries and keys of their own: ``(Q K^T + Q̄ R_{i−l} K̄^T)/√D_k``.

    Args:
        dim: Features of a token.
        heads: Heads.
        width: Columns of Q̄ and K̄ of each head, even.
        base: Of the geometric sequence of frequencies.

    Raises:
        ArgumentValueError: An odd width, a base that is not positive, or sizes below 1.

    Source: `positional` (7); D_k is that of Q and K.

    >>> DecoupledRotary(8, 2, 4)
    DecoupledRotary(
      (query): Linear(in_features=8, out_features=8, bias=False)
      (key): Linear(in_features=8, out_features=8, bias=False)
    )
    """

    @typed_arguments
    def __init__(
        self, dim: int, heads: int, width: int, *, base: float = _BASE, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, heads=heads)
        _even(width)
        self.heads, self.base = heads, as_positive(base, "base")
        self.query, self.key = (nn.Linear(dim, heads * width, bias=False) for _ in range(2))
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw both matrices anew, as nn.Linear starts."""
        for linear in (self.query, self.key):
            spread = 1 / math.sqrt(linear.in_features)
            nn.init.uniform_(linear.weight, -spread, spread, generator=generator)

    def beside(self, query: Tensor, x: Tensor) -> Pair:
        """See `ColumnsBeside`."""
        own_query, own_key = (split(linear(x), self.heads) for linear in (self.query, self.key))
        return Pair(own_query, own_key, *angles(own_query, self.base))


class NegativeDiagonal(ColumnsBeside):
    """The remedy ``W_li + λ I`` or ``W_li + λ A``, λ < 0 learnable, A diagonal with positive learnable entries.

    ``λ = −exp(ρ)`` and ``A = diag(exp(a))``. Head h has the slice h of the features, so that the heads' terms sum to
    the λI of the paper. λ stands beside the scaled W: attention's 1/√(dim/heads) is taken out again.

    Args:
        dim: Features of a token.
        heads: Heads, a divisor of dim.
        kind: ``"identity"`` or ``"diagonal"``.
        start: λ at the start, negative.

    Raises:
        ArgumentValueError: Another kind, heads that do not divide dim, or a λ that is not negative.

    Source: `positional` 5.2 and Table 3.

    >>> NegativeDiagonal(4, 2, start=-0.5).coefficients().tolist()
    [-0.5, -0.5, -0.5, -0.5]
    """

    @typed_arguments
    def __init__(self, dim: int, heads: int, kind: Kind = "identity", *, start: float = -0.01) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise ArgumentValueError("kind", "'identity' or 'diagonal'", repr(kind))
        check_sizes(dim=dim)
        check_heads(dim=dim, heads=heads)
        if not -math.inf < start < 0:
            raise ArgumentValueError("start", "a negative λ", start)
        self.dim, self.heads, self.start = dim, heads, start
        self.rho = nn.Parameter(torch.empty(1))  # of one axis: FSDP shards no scalars
        self.log_diagonal = nn.Parameter(torch.empty(dim)) if kind == "diagonal" else None
        # Not named as projections are: adapters are put on modules of such names.
        self.query_columns, self.key_columns = (RemedyColumns(self, scaled=scaled) for scaled in (True, False))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set λ to its start and A to the identity."""
        nn.init.constant_(self.rho, math.log(-self.start))
        if self.log_diagonal is not None:
            nn.init.zeros_(self.log_diagonal)

    def coefficients(self) -> Tensor:
        """Return the diagonal of λI or λA, (dim,)."""
        return self()  # called, so that masks of its parameters are renewed

    def forward(self) -> Tensor:
        """Return `coefficients`."""
        spread = self.rho.new_zeros(self.dim) if self.log_diagonal is None else self.log_diagonal
        return -(self.rho + spread).exp()

    def beside(self, query: Tensor, x: Tensor) -> Pair:
        """See `ColumnsBeside`."""
        return Pair(
            *(split(columns(x), self.heads).to(query.dtype) for columns in (self.query_columns, self.key_columns))
        )


class RemedyColumns(nn.Module):
    """What a remedy adds to queries or keys: a module with a weight, so that it is found where projections are.

    λA is in the queries; keys get x as it is, without the cost of another product.
    """

    bias: None = None

    def __init__(self, remedy: NegativeDiagonal, *, scaled: bool) -> None:
        super().__init__()
        self._remedy, self._scaled = [remedy], scaled  # in a list: the remedy is no part of its part

    def _factors(self) -> Tensor:
        remedy = self._remedy[0]
        factors = math.sqrt(remedy.dim / remedy.heads) * remedy.coefficients()
        return factors if self._scaled else torch.ones_like(factors)

    @property
    def weight(self) -> Tensor:
        """The diagonal matrix, (dim, dim)."""
        return torch.diag(self._factors())

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x @ weight.T``, feature by feature."""
        return x * self._factors().to(x.dtype) if self._scaled else x


def split(features: Tensor, heads: int) -> Tensor:
    """Return (…, head, token, dim/heads) of features (…, token, dim)."""
    return features.unflatten(-1, (heads, features.shape[-1] // heads)).transpose(-2, -3)


def _even(width: int) -> None:
    if width < 2 or width % 2:
        raise ArgumentValueError("width", "an even number from 2: rotations turn pairs of columns", width)
