"""One loss and gradient at full size (N = 10, M = 50, 1000 sequences): closed form against products of token vectors.

The direct computation takes every product over all N + M features of every token: queries, keys, weights, the average
and its map; a tailored model's circuits are set into blocks of zeros, as a masked model has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from bench.measure import Comparison, alternate, speedup
from tokendynamics.circuits import PairTask
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.learning.model import (
    DESIGNS,
    EPSILON,
    Design,
    Sequences,
    circuit,
    initial_parameters,
    mean_squared_error,
    stream,
)

CATEGORIES, POSITIONS, BATCH, ROUNDS = 10, 50, 1000, 7
TASK = PairTask(random_functional(CATEGORIES, seed=0), POSITIONS)


class Direct(NamedTuple):
    """Dense tokens and what they should give."""

    tokens: Tensor
    targets: Tensor


def run() -> Iterator[Comparison]:
    """The attention alone and the whole loss, with their gradients, for three designs."""
    x = TASK.sample(BATCH, seed=1)
    dense, pieces = Direct(TASK.embed(x), TASK.targets(x)[:, 1:]), Sequences.of(x, TASK).in_pieces()
    for name in ("solution-1", "solution-2", "combined"):
        design = DESIGNS[name]
        parameters = initial_parameters(design, TASK, design.hidden_units(TASK), seed=0)
        attention = _attention(design, parameters, pieces), _direct_attention(design, parameters, dense)
        loss = _loss(design, parameters, pieces), _direct(design, parameters, dense)
        # Of the whole loss the feed-forward part is the larger one, and the same in both.
        for part, (ours, other), least in (("attention", attention, 10), ("loss", loss, 1)):
            error = _error(parameters, ours, other)
            pairs = alternate(_fresh(parameters, ours), _fresh(parameters, other), ROUNDS)
            yield speedup(f"{name}: {part} and gradient, N 10, M 50, batch 1000", pairs, at_least=least, error=error)


def _loss(design: Design, parameters: dict[str, Tensor], pieces: tuple[Sequences, ...]) -> Callable[[], float]:
    return lambda: mean_squared_error(design, parameters, pieces)


def _attention(design: Design, parameters: dict[str, Tensor], pieces: tuple[Sequences, ...]) -> Callable[[], float]:
    """The stream and the gradients for a given one of the stream; returns the stream's last number."""
    features = parameters["v"].shape[0]
    given = [torch.cos(torch.arange(features).double()).expand(*piece.categories.shape, -1) for piece in pieces]
    given = [gradient.contiguous() for gradient in given]

    def work() -> float:
        qk = circuit(parameters)
        shared = qk.detach().requires_grad_()
        last = 0.0
        for piece, gradient in zip(pieces, given, strict=True):
            rows = stream(design, shared, parameters["v"], piece)
            rows.backward(gradient)
            last = rows[-1, -1, -1].item()
        qk.backward(shared.grad)
        return last

    return work


def _direct_stream(design: Design, parameters: dict[str, Tensor], dense: Direct) -> Tensor:
    """``ATT + X`` through the products of all 60 features."""
    keys, carried = design.key_features(TASK), design.stream_features(TASK)
    q, k, v = (torch.zeros(TASK.width, TASK.width, dtype=torch.float64) for _ in range(3))
    q[: keys.stop - keys.start, keys], k[: keys.stop - keys.start, keys] = parameters["q"], parameters["k"]
    v[carried, carried] = parameters["v"]
    weights = (dense.tokens @ q.T) @ (dense.tokens @ k.T).mT
    return ((weights @ (dense.tokens @ v.T)) + dense.tokens)[..., carried]


def _direct_attention(design: Design, parameters: dict[str, Tensor], dense: Direct) -> Callable[[], float]:
    features = parameters["v"].shape[0]
    given = torch.cos(torch.arange(features).double()).expand(*dense.tokens.shape[:2], -1).contiguous()

    def work() -> float:
        rows = _direct_stream(design, parameters, dense)
        rows.backward(given)
        return rows[-1, -1, -1].item()

    return work


def _direct(design: Design, parameters: dict[str, Tensor], dense: Direct) -> Callable[[], float]:
    def work() -> float:
        rows = _direct_stream(design, parameters, dense)
        rows = layer_norm(rows, rows.shape[-1:], parameters["gain"], parameters["shift"], EPSILON)
        hidden = torch.relu(rows @ parameters["B"].T + parameters["bias"])
        outputs = hidden @ parameters["C"] + parameters["offset"]
        value = (outputs[:, 1:] - dense.targets).square().mean()
        value.backward()
        return value.item()

    return work


def _fresh(parameters: dict[str, Tensor], work: Callable[[], float]) -> Callable[[], float]:
    def again() -> float:
        for value in parameters.values():
            value.grad = None
        return work()

    return again


def _error(parameters: dict[str, Tensor], ours: Callable[[], float], other: Callable[[], float]) -> str:
    values, gradients = [], []
    for work in (ours, other):
        values.append(_fresh(parameters, work)())
        gradients.append({name: value.grad for name, value in parameters.items() if value.grad is not None})
    loss = abs(values[0] - values[1]) / abs(values[1])
    gradient = max(float((gradients[0][n] - g).norm() / g.norm()) for n, g in gradients[1].items())
    return f"value {loss:.0e}, gradient {gradient:.0e} (relative)"
