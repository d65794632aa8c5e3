"""A one-layer transformer whose every weight can be set, and whose attention can be fed from different sequences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tokendynamics.attention import Attention
from tokendynamics.attention.mixing import average
from tokendynamics.circuits._task import PairTask
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_finite, as_not_negative, as_tensor
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments, typed_fields

Activation = Literal["relu", "identity"]
FeatureBlock = Literal["category", "position", "scratch"]

_CHUNK_NUMBERS = 2_000_000
"""Held by the largest intermediate array of a chunk: 16 MB of float64."""
_BYTES = 32
"""Of each entry of a matrix over tokens: a transformer holds four of them."""


@typed_fields
@dataclass(frozen=True, eq=False)
class OneLayerTransformer:
    """``Y = C · act(B · norm(ATT + skip·X) + bias) + offset`` for each token, `logical` (2.12) and 4.1.

    ATT_i = Σ_h Σ_j w^h_ij ov_h x_j with linear or softmax weights. Tokens are rows: category, position, scratch.

    Attributes:
        attention: One head or several, over N + M features or more (the rest is scratch and starts at zero), in
            float64. Positions are one-hots of the tokens themselves, weights stand as they are and nothing depends on
            time, so an attention that asks for anything else is refused.
        B: (hidden, width).
        bias: (hidden,).
        C: (hidden,), one output.
        task: What it reads: N categories, M positions. Its q_true is what the weights are meant to compute.
        offset: Added to every output.
        skip: Weight of the skip connection; 1 in a plain transformer.
        norm: `LayerNorm` of the stream before B, or None.
        activation: "relu", or "identity" for a layer that is linear.
        name: What it is, for tables and titles.
        note: What must be known to read its answers, in a sentence; empty if nothing.

    Raises:
        ArgumentTypeError: An attention that is no `Attention`.
        ArgumentValueError: Shapes that do not fit each other, an unknown activation, or an attention with
            ``normalization="paper"``, positions, matrices that depend on time or differ between systems, or another
            precision; all that was asked for in vain is named.

    >>> from tokendynamics.circuits.constructions import solution_1
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> (solution_1(task)([1, 2, 2, 1]) - task.targets([1, 2, 2, 1])).abs().max().item() < 1e-12
    True
    """

    attention: Attention
    B: Tensor
    bias: Tensor
    C: Tensor
    task: PairTask
    offset: float = 0.0
    skip: float = 1.0
    norm: LayerNorm | None = None
    activation: Activation = "relu"
    name: str = "transformer"
    note: str = ""

    def __post_init__(self) -> None:
        if self.activation not in ("relu", "identity"):
            raise ArgumentValueError("activation", "'relu' or 'identity'", repr(self.activation))
        _check_attention(self.attention)
        if self.attention.dim < self.task.width:
            wanted = f"matrices over at least {self.task.width} features, categories and positions"
            raise ArgumentValueError("attention", wanted, f"dim {self.attention.dim}")
        as_finite(self.offset, "offset")
        as_finite(self.skip, "skip")
        if self.C.ndim != 1:
            raise ArgumentValueError("C", "shape (hidden,)", f"shape {tuple(self.C.shape)}")
        hidden = self.C.shape[-1]
        shapes = {"C": (hidden,), "B": (hidden, self.width), "bias": (hidden,)}
        for argument, shape in shapes.items():
            came = tuple(getattr(self, argument).shape)
            if came != shape:
                raise ArgumentValueError(argument, f"shape {shape} to fit the others", f"shape {came}")

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.attention.dim

    @property
    def scratch(self) -> int:
        """Features beyond category and position."""
        return self.width - self.task.width

    @property
    def qk(self) -> Tensor:
        """Of each head, (head, receiver, sender): the transpose of the paper's ``k^t q``."""
        return self.attention.qk.matrix_at(0.0)

    @property
    def ov(self) -> Tensor:
        """The paper's ``v`` of each head, acting on columns, (head, width, width)."""
        return self.attention.ov.matrix_at(0.0)

    def block(self, name: FeatureBlock) -> slice:
        """Return where the features of one kind stand."""
        categories, width = self.task.categories, self.task.width
        return {
            "category": slice(0, categories),
            "position": slice(categories, width),
            "scratch": slice(width, self.width),
        }[name]

    def embed(self, x: Any) -> Tensor:
        """Return tokens as rows, (…, token, width); see `PairTask.embed`."""
        return self.task.embed(x, self.scratch)

    def attend(self, x: Any, keys: Any = None, values: Any = None) -> Tensor:
        """Return what attention writes, (…, token, width).

        Args:
            x: Sequences (…, token) of categories; the queries come from them.
            keys: Sequences that the keys come from; those of `x` if None.
            values: Sequences that the values come from; those of `x` if None.
        """
        received = self.embed(x)
        sent = received if keys is None else self.embed(keys)
        carried = received if values is None else self.embed(values)
        qk, ov = self.attention.qk.at(0.0), self.attention.ov.at(0.0)
        weights = self.attention.weigh(qk.queries(received), qk.keys(sent))
        return ov.output(average(weights, ov.values(carried))).sum(dim=-3)

    def stream(self, x: Any, keys: Any = None, values: Any = None) -> Tensor:
        """Return ``ATT + skip·X``, (…, token, width); `keys` and `values` as in `attend`."""
        return self.attend(x, keys, values) + self.skip * self.embed(x)

    def hidden(self, stream: Tensor) -> Tensor:
        """Return what the hidden units say of a stream (…, token, width), shape (…, token, hidden)."""
        read = stream if self.norm is None else self.norm(stream)
        inputs = read @ self.B.mT + self.bias
        return torch.relu(inputs) if self.activation == "relu" else inputs

    def read(self, stream: Tensor) -> Tensor:
        """Return the outputs for a stream (…, token, width), shape (…, token)."""
        return self.hidden(stream) @ self.C + self.offset

    def __call__(self, x: Any) -> Tensor:
        """Return the outputs Y for sequences (…, token) of categories 1..N, shape (…, token), float64."""
        return self.read(self.stream(x))

    def with_qk(self, qk: ArrayLike) -> OneLayerTransformer:
        """Return the same transformer with another qk, (head, receiver, sender)."""
        circuit = as_tensor(qk, "qk", ndim_at_least=2)
        return replace(self, attention=self.attention.with_schedules(circuit, self.attention.ov, None))


def _check_attention(attention: Any) -> None:
    """Refuse what this transformer would have to leave out: it would answer for another attention than was given."""
    if not isinstance(attention, Attention):
        raise ArgumentTypeError("attention", "an Attention", type(attention).__name__)
    ignored = {
        "normalization='paper' (it divides the weights by √dim)": attention.normalization == "paper",
        f"positions ({type(attention.positions).__name__})": attention.positions is not None,
        "matrices that depend on time": not attention.constant,
        f"matrices for several systems, axes {attention.system_shape}": attention.system_shape != (),
    }
    asked = [name for name, present in ignored.items() if present]
    if asked:
        wanted = "plain attention with constant matrices (head, dim, dim)"
        advice = "positions are one-hots of the tokens here; put any scale into ov"
        raise ArgumentValueError("attention", wanted, " and ".join(asked), advice)
    for argument, matrix in (("qk", attention.qk.matrix_at(0.0)), ("ov", attention.ov.matrix_at(0.0))):
        if matrix.dtype != torch.float64:
            raise ArgumentValueError("attention", f"{argument} in float64", f"dtype {matrix.dtype}")


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
        ArgumentValueError: Features in steps, or a negative eps.

    >>> LayerNorm(torch.ones(2), torch.zeros(2), eps=0.0)(torch.tensor([[3.0, 1.0]]))
    tensor([[ 1., -1.]])
    """

    gain: Tensor
    shift: Tensor
    eps: float = 1e-5
    features: slice = field(default_factory=lambda: slice(None))

    def __post_init__(self) -> None:
        as_not_negative(self.eps, "eps")
        if self.features.step not in (None, 1):
            raise ArgumentValueError("features", "a slice without steps", self.features)

    def __call__(self, stream: Tensor) -> Tensor:
        """Return the normalized stream, shape (…, token, width)."""
        first, last, _ = self.features.indices(stream.shape[-1])
        normalized = layer_norm(stream[..., first:last], (last - first,), self.gain, self.shift, self.eps)
        return torch.cat([stream[..., :first], normalized, stream[..., last:]], dim=-1)


def chunk_length(model: OneLayerTransformer, tokens: int) -> int:
    """Return how many sequences make a chunk that stays in the cache, with its largest intermediate array."""
    widest = tokens * max(model.C.shape[0], model.ov.shape[0] * max(tokens, model.width))
    return max(1, _CHUNK_NUMBERS // widest)


@typed_arguments
def shift(positions: int) -> Tensor:
    """Return ``D_{−1}``: ones where row = column − 1, `logical` (2.6); it is the superdiagonal.

    Its transpose S, as a qk, makes position i attend to i − 1 alone, and as an ov moves position i to i + 1.

    Args:
        positions: M.

    Returns:
        Shape (positions, positions), float64.

    >>> shift(3).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    check_fits(_BYTES * as_count(positions, "positions") ** 2, "positions")
    return torch.diag_embed(torch.ones(positions - 1, dtype=torch.float64), offset=1)


def on_categories(task: PairTask, matrix: Tensor, scratch: int = 0) -> Tensor:
    """Return `matrix` (N, N) in the category–category block, zeros elsewhere, with width N + M + scratch."""
    return _placed(matrix, 0, 0, task.width + scratch)


def on_positions(task: PairTask, matrix: Tensor, scratch: int = 0) -> Tensor:
    """Return `matrix` (M, M) in the position–position block, zeros elsewhere, (width, width)."""
    return _placed(matrix, task.categories, task.categories, task.width + scratch)


def to_scratch(task: PairTask, matrix: Tensor) -> Tensor:
    """Return `matrix` (scratch, N) from the categories to a scratch block of its height, zeros elsewhere."""
    return _placed(matrix, task.width, 0, task.width + matrix.shape[0])


def _placed(matrix: Tensor, row: int, column: int, width: int) -> Tensor:
    check_fits(_BYTES * width**2, "task", "take fewer categories or positions")
    whole = torch.zeros(width, width, dtype=torch.float64)
    whole[row : row + matrix.shape[0], column : column + matrix.shape[1]] = matrix
    return whole
