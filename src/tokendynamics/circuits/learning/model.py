"""What learns, `logical` 4.1: four models with loss and gradient in closed form, a run's settings, and its penalty.

Attention is linear on one-hot tokens, and no product of token vectors is ever taken. Tokens are
x_i = e_{c_i} + e_{N+i}, so the output of attention is linear in the one-hots of the receiver:

    ATT_i = Z[c_i] + Z[N+i],    Z[d] = Σ_j (qk[d, c_j] + qk[d, N+j]) v (e_{c_j} + e_{N+j}),

with qk receiver first. Z has N + M rows for a sequence instead of M² weights, and its four sums over j are three
products of matrices shared by the whole batch. The skip connection adds e_d to Z[d]. The mean squared error and its
gradient are computed a part of the batch at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import on_categories, on_positions, shift
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count, generator
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments, typed_fields

Architecture = Literal["solution-1", "solution-2", "solution-3", "combined"]
Sight = Literal["category", "position", "both"]


@dataclass(frozen=True)
class Design:
    """The features that the two circuits of a model have access to.

    Attributes:
        pairs: What queries and keys see.
        carries: What values see, and with them the stream, its LayerNorm and the feed-forward part.
        hidden: Hidden units, as a word: "pairs" (N²), "categories" (N) or "positions" (M).
    """

    pairs: Sight
    carries: Sight
    hidden: Literal["pairs", "categories", "positions"]

    def key_features(self, task: PairTask) -> slice:
        """Return the features of a token that queries and keys read."""
        return _features(self.pairs, task)

    def stream_features(self, task: PairTask) -> slice:
        """Return the features of a token that values read and the feed-forward part sees."""
        return _features(self.carries, task)

    def hidden_units(self, task: PairTask) -> int:
        """Return the number of hidden units."""
        return {"pairs": task.categories**2, "categories": task.categories, "positions": task.positions}[self.hidden]


DESIGNS: dict[Architecture, Design] = {
    "solution-1": Design(pairs="position", carries="category", hidden="pairs"),
    "solution-2": Design(pairs="category", carries="position", hidden="positions"),
    "solution-3": Design(pairs="position", carries="category", hidden="categories"),
    "combined": Design(pairs="both", carries="both", hidden="pairs"),
}
"""Three models tailored to one solution each, and one that can learn all three."""


@typed_arguments
def design(architecture: str) -> Design:
    """Return the design of that name.

    Raises:
        ArgumentValueError: An unknown name.

    >>> design("solution-2").pairs
    'category'
    """
    if architecture not in DESIGNS:
        raise ArgumentValueError("architecture", f"one of {', '.join(DESIGNS)}", repr(architecture))
    return DESIGNS[architecture]


def _features(sight: Sight, task: PairTask) -> slice:
    first = task.categories if sight == "position" else 0
    return slice(first, task.categories if sight == "category" else task.width)


def circuit(parameters: dict[str, Tensor]) -> Tensor:
    """Return ``qk = q^t k``, (receiver, sender), over the features that keys see.

    As the transpose of the paper's product ``k^t q``: the other order of factors rounds otherwise in the last digit.
    """
    return (parameters["k"].T @ parameters["q"]).T


def initial_parameters(design: Design, task: PairTask, hidden: int, seed: int) -> dict[str, Tensor]:
    """Draw weights uniform in ±1/√fan-in, the LayerNorm the identity.

    Returns:
        float64 tensors that record gradients: q, k (rank, key features), v (stream features squared), gain, shift,
        B (hidden, stream features), bias (hidden,), C (hidden,), offset (1,). Rank is the number of key features.
    """
    keys, stream = (part.stop - part.start for part in (design.key_features(task), design.stream_features(task)))
    shapes = {
        "q": ((keys, keys), keys),
        "k": ((keys, keys), keys),
        "v": ((stream, stream), stream),
        "B": ((hidden, stream), stream),
        "bias": ((hidden,), stream),
        "C": ((hidden,), hidden),
        "offset": ((1,), hidden),
    }
    draw = generator(seed)
    parameters = {
        name: (2.0 * torch.rand(*shape, generator=draw, dtype=torch.float64) - 1.0) / fan_in**0.5
        for name, (shape, fan_in) in shapes.items()
    }
    parameters["gain"] = torch.ones(stream, dtype=torch.float64)
    parameters["shift"] = torch.zeros(stream, dtype=torch.float64)
    return {name: value.requires_grad_() for name, value in parameters.items()}


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequences of full length, tokens first.

    Attributes:
        categories: (token, sample), int64, from 0 on.
        by_token: One-hot categories, (token, sample, category).
        by_category: The same, (category, sample, token).
        targets: Y of the tokens from the second on, (token − 1, sample).
    """

    categories: Tensor
    by_token: Tensor
    by_category: Tensor
    targets: Tensor

    @classmethod
    def of(cls, x: Tensor, task: PairTask) -> Sequences:
        """Lay out sequences (sample, token) of categories 1..N."""
        categories = (x - 1).T.contiguous()
        one_hot = torch.nn.functional.one_hot(categories, task.categories).double()
        return cls(categories, one_hot, one_hot.permute(2, 1, 0).contiguous(), task.targets(x)[:, 1:].T.contiguous())

    @property
    def samples(self) -> int:
        """Number of sequences."""
        return self.categories.shape[1]

    def in_pieces(self, tokens: int = 5000) -> tuple[Sequences, ...]:
        """Return consecutive parts of about `tokens` tokens, whose hidden layer fits into the cache of a processor."""
        size = max(1, tokens // len(self.categories))
        parts = (slice(first, first + size) for first in range(0, self.samples, size))
        whole = (self.categories, self.by_token, self.by_category, self.targets)
        return tuple(Sequences(*(tensor[:, part].contiguous() for tensor in whole)) for part in parts)


def stream(design: Design, qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Return ``ATT + X`` of the features that the design carries, (token, sample, feature).

    Args:
        design: Which features the circuits see.
        qk: (receiver, sender), over the features that keys see.
        v: Acting on columns, over the features that values see.
        sequences: Full-length sequences.
    """
    if design.pairs == "both":
        return _on_everything(qk, v, sequences)
    if design.pairs == "position":  # values see categories: v Σ_j qk[i, j] e_{c_j} + e_{c_i}
        added = torch.addmm(sequences.by_token.flatten(0, 1), _summed(qk, sequences), v.T)
        return added.reshape(sequences.by_token.shape)
    # Keys see categories, values see positions: Σ_j qk[c_i, c_j] v e_j + e_i.
    carried = sequences.by_category @ v.T
    for_category = qk @ carried.flatten(1)
    received = _of_category(for_category.reshape(-1, v.shape[0]), sequences)
    return received.add_(torch.eye(v.shape[0], dtype=v.dtype)[:, None])


def _on_everything(qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    categories = sequences.by_category.shape[0]
    v_category, v_position = v[:, :categories], v[:, categories:]
    counts = sequences.by_category.sum(dim=-1)
    # Σ over the senders j of category a of v x_j, (category, sample, feature).
    carried = torch.addcmul(sequences.by_category @ v_position.T, counts[..., None], v_category.T[:, None])

    def output(receivers: slice) -> Tensor:
        """Return Z of some receiver features without what all sequences share, (receiver × sample, feature)."""
        keyed_by_position = _summed(qk[receivers, categories:], sequences) @ v_category.T
        summed = keyed_by_position.reshape(-1, carried[0].numel())
        keyed = torch.addmm(summed, qk[receivers, :categories], carried.flatten(1))
        return keyed.reshape(-1, v.shape[0])

    shared = (v_position @ qk[:, categories:].T).T + torch.eye(v.shape[0], dtype=v.dtype)
    for_category = output(slice(None, categories)) + shared[:categories].repeat_interleave(sequences.samples, dim=0)
    received = _of_category(for_category, sequences)
    of_position = output(slice(categories, None)).reshape(received.shape)
    return received.add_(of_position).add_(shared[categories:, None])


def _summed(qk: Tensor, sequences: Sequences) -> Tensor:
    """``Σ_j qk[d, j] e_{c_j}``, (receiver feature d × sample, category)."""
    summed = qk @ sequences.by_token.flatten(1)
    return summed.reshape(-1, sequences.by_token.shape[-1])


def _of_category(rows: Tensor, sequences: Sequences) -> Tensor:
    """From rows (category × sample, feature) the one of each token's own category, (token, sample, feature)."""
    index = sequences.categories * sequences.samples + torch.arange(sequences.samples)
    # Not a view of anything: what follows may add to it in place without copies of gradients.
    return torch.nn.functional.embedding(index, rows)


EPSILON = 1e-5
"""Of the LayerNorm."""


def mean_squared_error(design: Design, parameters: dict[str, Tensor], batch: Collection[Sequences]) -> float:
    """Return the mean over samples and tokens i ≥ 2 of ``(Y_i − model)²``, and add its gradients to the parameters'.

    `logical` 4.1: ``LayerNorm(ATT + X) → Linear → ReLU → Linear``, the attention without softmax.

    Args:
        design: Which features the circuits see.
        parameters: See `initial_parameters`. If they record gradients, the gradient is added to `.grad`.
        batch: In pieces, `Sequences.in_pieces`.
    """
    numbers = sum(piece.targets.numel() for piece in batch)
    qk = circuit(parameters)
    # The pieces share one product: its gradient is collected here and passed on once.
    shared = qk.detach().requires_grad_(qk.requires_grad)
    total = 0.0
    for piece in batch:
        outputs = predictions(design, {**parameters, "qk": shared}, piece)
        loss = (outputs - piece.targets).square().sum() / numbers
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
    if shared.grad is not None:
        qk.backward(shared.grad)
    return total


def predictions(design: Design, parameters: dict[str, Tensor], sequences: Sequences) -> Tensor:
    """Return the model's outputs for the tokens from the second on, (token − 1, sample)."""
    rows = stream(design, parameters["qk"], parameters["v"], sequences)[1:]
    rows = layer_norm(rows, rows.shape[-1:], parameters["gain"], parameters["shift"], EPSILON)
    flat = ReluReadout.apply(rows.flatten(0, 1), parameters["B"], parameters["bias"], parameters["C"])
    outputs = cast("Tensor", flat)
    return (outputs + parameters["offset"]).reshape(rows.shape[:-1])


class ReluReadout(torch.autograd.Function):
    """``C · ReLU(B z + bias)`` for rows z, (row, feature) → (row,).

    The gradient needs only which units were active: with ``A = [h > 0]`` and the incoming d,
    ``∂B = diag(C) Aᵀ (d ∘ z)`` and ``∂z = d ∘ A diag(C) B``, so no array of hidden size is formed beside A.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, B: Tensor, bias: Tensor, C: Tensor) -> Tensor:
        """Return the outputs, (row,)."""
        hidden = torch.addmm(bias, rows, B.T).relu_()
        ctx.save_for_backward(rows, B, C, hidden)
        return hidden @ C

    @staticmethod
    def backward(ctx: Any, came: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of rows, B, bias and C."""
        rows, B, C, hidden = ctx.saved_tensors
        of_C = came @ hidden
        active = hidden.sign()
        of_B = (active.T @ (rows * came[:, None])) * C[:, None]
        of_bias = (came @ active) * C
        of_rows = (active @ (B * C[:, None])) * came[:, None]
        return of_rows, of_B, of_bias, of_C


_MOST_STEPS = 10_000_000
_BYTES = 16
"""Bytes of each number and its gradient."""

Flavour = Literal["free", "towards-1", "towards-2", "towards-3"]
FLAVOURS: tuple[Flavour, ...] = ("towards-1", "towards-2", "towards-3", "free")

STRENGTH = 1e-2
"""Weight of the squared distance in the loss at the first step."""

_RELEASED = 0.6
"""Share of the steps after which the penalty is zero: it contains q_true, which must not help the final loss."""


@typed_fields
@dataclass(frozen=True, eq=False)
class Settings:
    """Task, model and recipe of one run.

    Attributes:
        task: N, M, q_true and the law.
        architecture: See `DESIGNS`.
        flavour: What the combined model leans towards at first; "free" for the tailored models.
        batch: Fresh sequences per outer step.
        steps: Outer steps.
        inner: Iterations of L-BFGS per outer step, at most.
        hidden: Hidden units.
        seed: Of the weights and, with the number of the step, of the batches.

    Raises:
        ArgumentTypeError: A number that is no integer.
        ArgumentValueError: An unknown architecture or flavour, a flavour of a tailored model, a number below 1, fewer
            than 3 steps with a penalty, or sequences too short to hold a pair.
    """

    task: PairTask
    architecture: Architecture
    flavour: Flavour
    batch: int
    steps: int
    inner: int
    hidden: int
    seed: int

    def __post_init__(self) -> None:
        penalty_of(self.flavour, self.task)
        if self.flavour != "free" and self.design.pairs != "both":
            wanted = f"'free' for the architecture {self.architecture}, which is tailored already"
            raise ArgumentValueError("flavour", wanted, repr(self.flavour))
        if self.task.positions < 2:
            wanted = "a task of at least 2 positions, since the first token has no target"
            raise ArgumentValueError("task", wanted, f"{self.task.positions}")
        for name in ("batch", "steps", "inner", "hidden"):
            as_count(getattr(self, name), name)
        if self.steps > _MOST_STEPS:
            raise ArgumentValueError("steps", f"at most {_MOST_STEPS}", self.steps)
        self._check_size()
        if self.flavour != "free" and self.steps < 3:
            wanted = "at least 3 with a penalty, which must be gone before the last"
            raise ArgumentValueError("steps", wanted, self.steps)

    def _check_size(self) -> None:
        """Refuse what does not fit: a step holds all hidden units, their gradients, and the weights several times."""
        width, tokens = self.task.width, self.batch * self.task.positions
        needed = {"batch": tokens * (self.hidden + 3 * width), "hidden": self.hidden * width, "task": width**2}
        check_fits(_BYTES * sum(needed.values()), max(needed, key=lambda name: needed[name]))

    @property
    def design(self) -> Design:
        """Which features the circuits see."""
        return design(self.architecture)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers and lists."""
        model = {"architecture": self.architecture, "flavour": self.flavour}
        task = {"categories": self.task.categories, "positions": self.task.positions}
        recipe = {name: getattr(self, name) for name in ("batch", "steps", "inner", "hidden", "seed")}
        return {**model, **task, **recipe, "q_true": self.task.q_true.tolist(), "law": self.task.law.tolist()}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> Settings:
        """Return what `as_json` returned."""
        task = PairTask(entries["q_true"], entries["positions"], entries["law"])
        names = ("architecture", "flavour", "batch", "steps", "inner", "hidden", "seed")
        return cls(task, *(entries[name] for name in names))


@dataclass(frozen=True, eq=False)
class Penalty:
    """``weight · (‖qk − target‖² + ‖v − target‖²)`` for the combined model.

    Attributes:
        qk: The hand-built one, (receiver, sender) = (width, width).
        v: The hand-built v, (width, width).
    """

    qk: Tensor
    v: Tensor

    def add(self, parameters: dict[str, Tensor], weight: float) -> float:
        """Add the penalty's gradient to those of q, k and v, and return its part of the loss."""
        distance = (circuit(parameters) - self.qk).square().sum() + (parameters["v"] - self.v).square().sum()
        loss = weight * distance
        loss.backward()
        return loss.item()


def penalty_weight(step: int, steps: int) -> float:
    """Return the weight, linear from `STRENGTH` to exactly zero after six tenths of the steps.

    >>> [penalty_weight(step, 10) for step in (0, 3, 6, 9)]
    [0.01, 0.005, 0.0, 0.0]
    """
    return STRENGTH * max(0.0, 1.0 - step / (_RELEASED * steps))


def penalty_of(flavour: str, task: PairTask) -> Penalty | None:
    """Return the penalty of a flavour; None for "free".

    Raises:
        ArgumentValueError: An unknown flavour.
    """
    if flavour not in FLAVOURS:
        raise ArgumentValueError("flavour", f"one of {', '.join(FLAVOURS)}", repr(flavour))
    if flavour == "free":
        return None
    if flavour == "towards-2":
        return Penalty(on_categories(task, task.q_true).T, on_positions(task, shift(task.positions).T))
    neighbours = on_positions(task, shift(task.positions)).T
    if flavour == "towards-1":
        return Penalty(2.0 * neighbours, on_categories(task, torch.eye(task.categories, dtype=torch.float64)))
    return Penalty(neighbours, on_categories(task, task.q_true.T))
