"""The features that each of the four learned models sees, `logical` 4.1, and its initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.seeding import generator
from tokendynamics.numerics.signatures import typed_arguments

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
        raise ArgumentValueError(expected("architecture", f"one of {', '.join(DESIGNS)}", repr(architecture)))
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
