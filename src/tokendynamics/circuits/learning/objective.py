"""Mean squared error and its gradient, a piece of the batch at a time."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from torch import Tensor
from torch.nn.functional import layer_norm

from tokendynamics.circuits.learning.architecture import Design
from tokendynamics.circuits.learning.closed_form import stream
from tokendynamics.circuits.learning.readout import ReluReadout
from tokendynamics.circuits.learning.sequences import Sequences

EPSILON = 1e-5
"""Of the LayerNorm."""


def mean_squared_error(design: Design, parameters: dict[str, Tensor], batch: Collection[Sequences]) -> float:
    """Mean over samples and tokens i ≥ 2 of ``(Y_i − model)²``; gradients are added to those of the parameters.

    `logical` 4.1: ``LayerNorm(ATT + X) → Linear → ReLU → Linear``, the attention without softmax.

    Args:
        design: Which features the circuits see.
        parameters: See `initial_parameters`. If they record gradients, the gradient is added to `.grad`.
        batch: In pieces, `Sequences.in_pieces`.
    """
    numbers = sum(piece.targets.numel() for piece in batch)
    key_query = parameters["k"].T @ parameters["q"]
    # The pieces share one product k^t q: its gradient is collected here and passed on once.
    shared = key_query.detach().requires_grad_(key_query.requires_grad)
    total = 0.0
    for piece in batch:
        outputs = predictions(design, {**parameters, "key_query": shared}, piece)
        loss = (outputs - piece.targets).square().sum() / numbers
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
    if shared.grad is not None:
        key_query.backward(shared.grad)
    return total


def predictions(design: Design, parameters: dict[str, Tensor], sequences: Sequences) -> Tensor:
    """The model's outputs for the tokens from the second on, (token − 1, sample)."""
    rows = stream(design, parameters["key_query"], parameters["v"], sequences)[1:]
    rows = layer_norm(rows, rows.shape[-1:], parameters["gain"], parameters["shift"], EPSILON)
    flat = ReluReadout.apply(rows.flatten(0, 1), parameters["B"], parameters["bias"], parameters["C"])
    outputs = cast("Tensor", flat)
    return (outputs + parameters["offset"]).reshape(rows.shape[:-1])
