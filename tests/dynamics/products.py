"""Systems over the product of spaces, masks, weights, schedules, positions and shapes, thinned by a drawn order."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch

from dynamics.reference import Gate, System, constant
from tokendynamics.attention import FactoredMatrix, Periodic, Sinusoidal

SPACES = ("free", "sphere", "ellipsoid", "remark_5_1")
MASKS = ("full", "causal")
WEIGHTS = ("softmax", "linear", "exponential")
SCHEDULES = ("constant", "factored", "sinusoidal", "absolute", "periodic", "callable")
VALUES = ("general", "multiple", *SCHEDULES[1:])
POSITIONS = ("none", "absolute", "rotary")
SHAPES = ((4, 3), (3, 6))
"""(token, dim): more tokens than coordinates, and fewer, where the span reduction works."""

PERIOD, PIECES = 0.75, 3


@dataclass(frozen=True)
class Choice:
    space: str
    mask: str
    weights: str
    qk: str
    ov: str
    positions: str
    shape: tuple[int, int]

    def __str__(self) -> str:
        tokens, dim = self.shape
        names = (self.space, self.mask, self.weights, f"qk_{self.qk}", f"ov_{self.ov}", self.positions)
        return "-".join((*names, f"{tokens}x{dim}"))


def whole() -> list[Choice]:
    """The product; Remark 5.1 has one constant, general ov."""
    options = itertools.product(SPACES, MASKS, WEIGHTS, SCHEDULES, VALUES, POSITIONS, SHAPES)
    return [Choice(*option) for option in options if option[0] != "remark_5_1" or option[4] == "general"]


def choices(start: int, stop: int) -> list[Choice]:
    """A stretch of the product in an order drawn once, the spaces in turn: any stretch is a fair sample."""
    product = whole()
    shuffled = [product[number] for number in np.random.default_rng(20).permutation(len(product))]
    by_space = ([choice for choice in shuffled if choice.space == space] for space in SPACES)
    return [choice for turn in zip(*by_space, strict=False) for choice in turn][start:stop]


def seed_of(choice: Choice) -> int:
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(str(choice)))


def draw(choice: Choice) -> tuple[System, np.ndarray]:
    """The system and three starts (3, token, dim)."""
    rng = np.random.default_rng(seed_of(choice))
    tokens, dim = choice.shape
    heads = 1 if choice.space == "remark_5_1" else 2
    # Linear weights are cubic in free tokens, which then easily run to infinity in finite time; exponential ones worse.
    calm = choice.space == "free" and choice.weights != "softmax"
    strength, size = (0.3, 0.35) if calm else (0.8, 0.7)
    ov, metric = gate(choice.ov, heads, dim, rng, strength), None
    if choice.space == "ellipsoid":
        root = rng.normal(size=(dim, dim)) / math.sqrt(dim)
        metric = root @ root.T + 0.5 * np.eye(dim)
    if choice.space == "remark_5_1":
        ov = constant(np.eye(dim)[None] + 0.3 * rng.normal(size=(1, dim, dim)) / math.sqrt(dim))
        metric = ov.at(0.0)[0].T @ ov.at(0.0)[0]
    rotary = None
    if choice.positions == "rotary":
        rotary = (0.4 * rng.normal(size=(heads, dim, 4)), 0.4 * rng.normal(size=(heads, dim, 4)), 100.0, 0.7)
    system = System(
        qk=gate(choice.qk, heads, dim, rng, strength),
        ov=ov,
        space=choice.space,
        metric=metric,
        causal=choice.mask == "causal",
        weights=choice.weights,
        normalization=(None, "plain", "paper")[seed_of(choice) % 3],
        table=0.5 * rng.normal(size=(tokens, dim)) if choice.positions == "absolute" else None,
        rotary=rotary,
    )
    return system, size * rng.normal(size=(3, tokens, dim))


def gate(kind: str, heads: int, dim: int, rng: np.random.Generator, strength: float = 0.8) -> Gate:
    """A schedule of the kind, and the same as a function of time."""
    matrices = strength * rng.normal(size=(heads, dim, dim)) / math.sqrt(dim)
    if kind in ("constant", "general"):
        return constant(matrices)
    if kind == "multiple":
        multiples = rng.normal(size=heads)
        return constant(multiples[:, None, None] * np.eye(dim))
    if kind == "factored":
        left, right = (torch.tensor(rng.normal(size=(heads, dim, 2))) / dim for _ in range(2))
        dense = np.array([a @ b.T for a, b in zip(left.numpy(), right.numpy(), strict=True)])
        return Gate(FactoredMatrix(left, right), lambda t: dense)
    if kind in ("sinusoidal", "absolute"):
        return _sinusoidal(matrices, kind == "absolute", rng)
    if kind == "periodic":
        pieces = strength * rng.normal(size=(PIECES, heads, dim, dim)) / math.sqrt(dim)
        width = PERIOD / PIECES
        breaks = tuple(k * width for k in range(1, 12))
        return Gate(Periodic(pieces, PERIOD), lambda t: pieces[math.floor(t / width) % PIECES], breaks)
    return Gate(lambda t: matrices * (1 + 0.5 * math.sin(3 * t)), lambda t: matrices * (1 + 0.5 * math.sin(3 * t)))


def _sinusoidal(matrices: np.ndarray, absolute: bool, rng: np.random.Generator) -> Gate:
    heads, dim, _ = matrices.shape
    amplitude, frequency, phase = (rng.uniform(0.5, 2.0, size=(heads, dim)) for _ in range(3))

    def at(t: float) -> np.ndarray:
        wave = amplitude * np.sin(frequency * t + phase)
        wave = np.abs(wave) if absolute else wave
        return np.array([np.diag(wave[h]) @ matrices[h] for h in range(heads)])

    # The kinks of |sin| are stops of the reference.
    turns = [
        (k * math.pi - phi) / omega
        for omega, phi in zip(frequency.ravel(), phase.ravel(), strict=True)
        for k in range(4)
    ]
    breaks = tuple(turns) if absolute else ()
    return Gate(Sinusoidal(matrices, amplitude, frequency, phase, absolute=absolute), at, breaks)
