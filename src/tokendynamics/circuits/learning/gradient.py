"""Linear attention on one-hot tokens in closed form: no product of token vectors is ever taken.

Tokens are x_i = e_{c_i} + e_{N+i}, so the output of attention is linear in the one-hots of the receiver:

    ATT_i = Z[c_i] + Z[N+i],    Z[d] = Σ_j (qk[d, c_j] + qk[d, N+j]) v (e_{c_j} + e_{N+j}),

with qk receiver first. Z has N + M rows for a sequence instead of M² weights, and its four sums over j are three
products of matrices shared by the whole batch. The skip connection adds e_d to Z[d].

Mean squared error and its gradient, a part of the batch at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.learning.architecture import Design, circuit


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
        return tuple(
            Sequences(
                self.categories[:, part].contiguous(),
                self.by_token[:, part].contiguous(),
                self.by_category[:, part].contiguous(),
                self.targets[:, part].contiguous(),
            )
            for part in parts
        )


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
    if design.pairs == "position":
        return _on_positions(qk, v, sequences)
    return _on_categories(qk, v, sequences)


def _on_positions(qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see positions, values see categories: ``v Σ_j qk[i, j] e_{c_j} + e_{c_i}``."""
    added = torch.addmm(sequences.by_token.flatten(0, 1), _summed(qk, sequences), v.T)
    return added.reshape(sequences.by_token.shape)


def _on_categories(qk: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """Keys see categories, values see positions: ``Σ_j qk[c_i, c_j] v e_j + e_i``."""
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
