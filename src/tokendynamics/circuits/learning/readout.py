"""The feed-forward part with its gradient written out: the hidden layer is by far the largest array of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ReluReadout(torch.autograd.Function):
    """``C · ReLU(B z + bias)`` for rows z, (row, feature) → (row,).

    The gradient needs only which units were active: with ``A = [h > 0]`` and the incoming d,
    ``∂B = diag(C) Aᵀ (d ∘ z)`` and ``∂z = d ∘ A diag(C) B``, so no array of hidden size is formed beside A.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, B: Tensor, bias: Tensor, C: Tensor) -> Tensor:
        """The outputs, (row,)."""
        hidden = torch.addmm(bias, rows, B.T).relu_()
        ctx.save_for_backward(rows, B, C, hidden)
        return hidden @ C

    @staticmethod
    def backward(ctx: Any, came: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of rows, B, bias and C."""
        rows, B, C, hidden = ctx.saved_tensors
        of_C = came @ hidden
        active = hidden.sign()
        of_B = (active.T @ (rows * came[:, None])) * C[:, None]
        of_bias = (came @ active) * C
        of_rows = (active @ (B * C[:, None])) * came[:, None]
        return of_rows, of_B, of_bias, of_C
