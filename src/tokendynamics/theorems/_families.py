"""Families of systems: from standard normal numbers to matrices and starts that meet the hypotheses of a statement.

A hypothesis such as ``ov = cI`` is met by no random matrix, and left by every small change of one. A family is a map
whose values all meet it, so that drawing and changing the numbers stays inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_choice, as_integer
from tokendynamics.spaces import Free, Sphere
from tokendynamics.theorems._statement import Statement

Chart = Callable[[Tensor], Tensor]
_SPREAD = 0.5
"""Of the logarithm of a matrix's size."""


def _size(gaussian: Tensor) -> Tensor:
    """Return a positive number for each matrix of normal numbers, (…, 1, 1)."""
    return (_SPREAD * gaussian.mean(dim=(-2, -1), keepdim=True) * gaussian.shape[-1]).exp()


def _identity(gaussian: Tensor) -> Tensor:
    return torch.eye(gaussian.shape[-1], dtype=gaussian.dtype).expand(gaussian.shape)


def _definite(gaussian: Tensor) -> Tensor:
    dim = gaussian.shape[-1]
    return gaussian @ gaussian.mT / dim + 0.05 * _identity(gaussian)


def _double_top(gaussian: Tensor) -> Tensor:
    """Return λ on the first two axes and, on the others, what keeps them and has a smaller quadratic form."""
    scale, rest = _size(gaussian), torch.zeros_like(gaussian)
    block = gaussian[..., 2:, 2:]
    if block.numel():
        rest[..., 2:, 2:] = -_definite(block) + (block - block.mT)
    return scale * (_identity(gaussian) + rest)


CIRCUITS: dict[str, Chart] = {
    "any": lambda gaussian: gaussian / math.sqrt(gaussian.shape[-1]),
    "symmetric": lambda gaussian: (gaussian + gaussian.mT) / math.sqrt(2 * gaussian.shape[-1]),
    "positive definite": _definite,
    "negative definite": lambda gaussian: -_definite(gaussian),
    "λ twice, and less": _double_top,
    "multiple of I": lambda gaussian: _size(gaussian) * _identity(gaussian),
    "large multiple of I": lambda gaussian: 30 * _size(gaussian) * _identity(gaussian),
    "negative multiple of I": lambda gaussian: -_size(gaussian) * _identity(gaussian),
    "I": _identity,
    "-I": lambda gaussian: -_identity(gaussian),
    "0": torch.zeros_like,
}
"""What qk and ov can be, the most general first: charts from (…, dim, dim) normal numbers."""


def _half_space(gaussian: Tensor) -> Tensor:
    first = gaussian[..., :1].abs() + 0.2
    return torch.cat([first, gaussian[..., 1:]], dim=-1)


def _caps(gaussian: Tensor) -> Tensor:
    """Return tokens near ± the first axes in turn, so that there are several groups that are far apart."""
    tokens, dim = gaussian.shape[-2:]
    index = torch.arange(tokens) % 2
    center = torch.zeros(tokens, dim, dtype=gaussian.dtype)
    center[:, 0] = 1.0 - 2.0 * index
    return center + 0.05 * gaussian


STARTS: dict[str, Chart] = {
    "any": lambda gaussian: gaussian,
    "half space": _half_space,
    "two caps": _caps,
    "orthonormal": lambda gaussian: torch.linalg.qr(gaussian.mT)[0].mT,
}
"""Where tokens can start: charts from (…, token, dim) normal numbers; on the sphere rows are then normalized."""


WEIGHTS = ("softmax", "exponential", "linear", "hardmax")


@dataclass(frozen=True)
class Family:
    """Systems of one kind and size, one for each vector of standard normal numbers.

    Args:
        tokens: Tokens of a system.
        dim: Features of a token.
        space: "free" or "sphere".
        mask: "full" or "causal".
        weights: "softmax", "exponential", "linear" or "hardmax"; see `tokendynamics.Attention`.
        qk: What the query–key matrix is; one of `CIRCUITS`.
        ov: What the output–value matrix is; one of `CIRCUITS`.
        start: Where the tokens start; one of `STARTS`.

    Raises:
        ArgumentTypeError, ArgumentValueError: A word that none of these is, or a size below 1.

    >>> family = Family(tokens=3, dim=2, qk="multiple of I", ov="I")
    >>> flow, start = family.systems(torch.zeros(5, family.numbers, dtype=torch.float64))
    >>> flow, start.shape
    (Flow(1 head, dim 2, full mask, sphere, paper), torch.Size([5, 3, 2]))
    """

    tokens: int
    dim: int
    space: Literal["free", "sphere"] = "sphere"
    mask: Literal["full", "causal"] = "full"
    weights: Literal["softmax", "exponential", "linear", "hardmax"] = "softmax"
    qk: str = "any"
    ov: str = "any"
    start: str = "any"

    def __post_init__(self) -> None:
        """Refuse what is no family."""
        as_integer(self.tokens, "tokens", at_least=1)
        as_integer(self.dim, "dim", at_least=1)
        known = {
            "space": ("free", "sphere"), "mask": ("full", "causal"), "weights": WEIGHTS,
            "qk": tuple(CIRCUITS), "ov": tuple(CIRCUITS), "start": tuple(STARTS),
        }  # fmt: skip
        for name, words in known.items():
            as_choice(getattr(self, name), name, words)

    def __str__(self) -> str:
        """Return one line."""
        kind = f"{self.tokens} tokens of dim {self.dim} ({self.space}, {self.mask} mask, {self.weights})"
        return f"{kind}; qk: {self.qk}; ov: {self.ov}; start: {self.start}"

    @property
    def numbers(self) -> int:
        """How many normal numbers a system takes: two matrices and a start."""
        return 2 * self.dim**2 + self.tokens * self.dim

    def systems(self, numbers: Tensor) -> tuple[Flow, Tensor]:
        """Return the flow and start of the systems of normal numbers.

        Args:
            numbers: Shape (system, `numbers`), float64.

        Returns:
            A flow with one axis of systems, and their start (system, token, dim).
        """
        square = self.dim**2
        shape = (len(numbers), 1, self.dim, self.dim)
        qk, ov = (numbers[:, first : first + square].reshape(shape) for first in (0, square))
        start = STARTS[self.start](numbers[:, 2 * square :].reshape(len(numbers), self.tokens, self.dim))
        on_sphere = self.space == "sphere"
        if on_sphere:
            start = torch.nn.functional.normalize(start, dim=-1)
        attention = Attention(
            CIRCUITS[self.qk](qk).contiguous(),
            CIRCUITS[self.ov](ov).contiguous(),
            causal=self.mask == "causal",
            weights=self.weights,
        )
        return Flow(attention, Sphere() if on_sphere else Free()), start


_TRIED = 64
_ENOUGH = 0.05
"""The share of drawn systems that meet the hypotheses from which on a family is drawn from as it is."""


def family_of(statement: Statement, tokens: int, dim: int, seed: int = 0) -> Family:
    """Return the most general family of a size in which a twentieth of the systems meet the hypotheses of a statement.

    Families are tried from general to special; where none has a twentieth, the one with the largest share is taken.

    Args:
        statement: The statement.
        tokens: Tokens of a system.
        dim: Features of a token.
        seed: Of the systems that are tried.

    Raises:
        ArgumentValueError: No system that was tried meets them; the message names what is most often violated.
    """
    best, largest = None, 0.0
    reasons: tuple[str, ...] = ("its kind of flow: see its `structure`",) * 9
    gaussian = torch.from_numpy(np.random.default_rng(seed).standard_normal((_TRIED, 2 * dim**2 + tokens * dim)))
    for family in _families(statement, tokens, dim):
        flow, start = family.systems(gaussian)
        check = statement.check(flow, start)
        share = float(check.applies_to.mean())
        if share >= _ENOUGH:
            return family
        if share > largest:
            best, largest = family, share
        reasons = min(reasons, check.reasons, key=len)
    if best is None:
        wanted = f"a statement whose hypotheses some drawn system of {tokens} tokens of dim {dim} meets"
        advice = f"the nearest violate {'; '.join(dict.fromkeys(reasons))}; give another size, or a family of your own"
        raise ArgumentValueError("statement", wanted, statement.name, advice)
    return best


def _families(statement: Statement, tokens: int, dim: int) -> Iterator[Family]:
    """Yield the families of a size whose kind of flow a statement is about, the most general first."""
    words: Sequence[tuple[str, ...]] = (("sphere", "free"), ("full", "causal"), WEIGHTS)
    gaussian = torch.ones(1, 2 * dim**2 + tokens * dim, dtype=torch.float64)
    kinds = [Family(tokens, dim, *kind) for kind in product(*words)]
    kinds = [kind for kind in kinds if statement.concerns(kind.systems(gaussian)[0])]
    rank = {name: place for place, name in enumerate(CIRCUITS)} | {name: 2 * place for place, name in enumerate(STARTS)}
    charts = [one for one in product(CIRCUITS, CIRCUITS, STARTS) if one[2] != "orthonormal" or tokens <= dim]
    charts.sort(key=lambda chart: sum(rank[name] for name in chart))
    for qk, ov, start in charts:
        for kind in kinds:
            yield Family(tokens, dim, kind.space, kind.mask, kind.weights, qk, ov, start)
