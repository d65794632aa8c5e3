"""Mean squared error and its gradient, a piece of the batch at a time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tokendynamics.circuits.learning.architecture import Design, circuit
from tokendynamics.circuits.learning.closed_form import Sequences, stream

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
