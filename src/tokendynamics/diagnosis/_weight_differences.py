"""Differences of the attention weights of networks by layer, in products that are invariant under changes of basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.diagnosis._leading_subspaces import degrees_of, leading_subspace, squared_sine
from tokendynamics.numerics import AttentionFactorsError
from tokendynamics.pretrained import AttentionWeights, Checkpoint
from tokendynamics.provenance.progress import Progress, tracked

_SURELY = 0.5
"""Heads that differ by less, relative to the layer, are not matched with other heads; random heads differ by 1.4."""

_EXACT = 1e-10
"""Squared difference below which the difference of squares has lost too many digits, and factors are subtracted."""

CIRCUITS = ("qk", "ov")


@dataclass(frozen=True)
class _Circuits:
    """Factors of a layer's products, in float64 with the norm's gain folded in: head by head, left @ rightᵀ."""

    qk: tuple[Tensor, Tensor]
    ov: tuple[Tensor, Tensor]


def weight_differences(ckpts: Sequence[Checkpoint], report: Progress) -> tuple[xr.Dataset, tuple[str, ...]]:
    """Compare the QK and OV products of each layer with those of the first network.

    The products scale · W_Q W_Kᵀ and W_V W_O of each head include the gain of the norm before attention and the
    centring of a LayerNorm. They are therefore invariant under a change of basis or sign of a head and under a gain
    moved into the matrices. Heads are matched by their products, so their order does not matter. Biases are ignored.

    Args:
        ckpts: The first is the one that the others are compared with.
        report: Called after each layer.

    Returns:
        Dataset over ``model`` (all), ``other`` (all but the first) and ``layer`` (from 1): ``qk_norm`` and ``ov_norm``
        (model, layer), √Σ_h ‖·‖²; ``qk_difference`` and ``ov_difference`` (other, layer), √Σ_h ‖W_a − W_b‖² relative
        to it; ``qk_angle`` and ``ov_angle`` (other, layer), degrees between the subspaces of the `LEADING` left
        singular vectors of Σ_h W: arcsin of the root mean square sine. And for each other why its differences are NaN,
        in some layers or in all; empty where they are not.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    depths = [ckpt.architecture.layers for ckpt in ckpts]
    unlike = [""] + [_why_not(ckpts[0], other) for other in ckpts[1:]]
    unread: list[list[str]] = [[] for _ in ckpts]
    norms = {name: np.full((len(ckpts), max(depths)), np.nan) for name in CIRCUITS}
    found = {f"{n}_{kind}": np.full((len(ckpts), max(depths)), np.nan) for n in CIRCUITS for kind in _KINDS}
    for layer in tracked(range(1, max(depths) + 1), report, "comparing the weights"):
        first: _Circuits | None = None
        for number, ckpt in enumerate(ckpts):
            if layer > depths[number]:
                continue
            if not any(each.layout.layers[layer - 1].attends for each in ckpts if layer <= each.architecture.layers):
                continue  # a layer without attention in all of them: there is nothing to compare
            try:
                own = _circuits(ckpt.attention(layer))
            except AttentionFactorsError as error:
                unread[number].append(error.reason)
                continue
            first = own if number == 0 else first
            for name in CIRCUITS:
                norms[name][number, layer - 1] = _norm(getattr(own, name))
            if number > 0 and first is not None and not unlike[number]:
                for name, values in _differences(first, own).items():
                    found[name][number, layer - 1] = values
    reasons = tuple(
        why or "; ".join(dict.fromkeys(unread[0] + own)) for why, own in zip(unlike[1:], unread[1:], strict=True)
    )
    variables = {f"{name}_norm": (("model", "layer"), values) for name, values in norms.items()}
    variables |= {name: (("other", "layer"), values[1:]) for name, values in found.items()}
    return xr.Dataset(variables, coords={"layer": np.arange(1, max(depths) + 1)}), reasons


_KINDS = ("difference", "angle")


def _why_not(first: Checkpoint, other: Checkpoint) -> str:
    a, b = first.architecture, other.architecture
    for name, one, two in (("widths", a.dim, b.dim), ("depths", a.layers, b.layers), ("heads", a.heads, b.heads)):
        if one != two:
            return f"their {name} differ ({one} and {two})"
    return ""


def _circuits(weights: AttentionWeights) -> _Circuits:
    query, key, value = (each.double() for each in (weights.query, weights.key_per_head, weights.value_per_head))
    if weights.norm_gain is not None:
        gain = weights.norm_gain.double()[:, None]
        query, key, value = gain * query, gain * key, gain * value
        if weights.norm_kind == "layer":  # what it reads has mean zero: a constant in a column does nothing
            query, key, value = (each - each.mean(dim=-2, keepdim=True) for each in (query, key, value))
    return _Circuits((weights.scale * query, key), (value, weights.output.double().mT))


def _differences(a: _Circuits, b: _Circuits) -> dict[str, float]:
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in CIRCUITS}
    if all(torch.equal(one, two) for pair in pairs.values() for one, two in zip(*pair, strict=True)):
        return {f"{name}_{kind}": 0.0 for name in CIRCUITS for kind in _KINDS}
    squares = {name: _squared_distances(*pair) for name, pair in pairs.items()}
    order = _matched(squares)
    found = {}
    for name, (one, two) in pairs.items():
        two = two[0][order], two[1][order]
        square = float(squares[name][range(len(order)), order].sum())
        found[f"{name}_difference"] = square**0.5 if square > _EXACT else _relative(one, two)
        found[f"{name}_angle"] = degrees_of(squared_sine(_leading(one), _leading(two)))
    return found


def _relative(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> float:
    """Return √Σ_h ‖A_h − B_h‖² / √Σ_h ‖A_h‖²."""
    # Of A − B the factors are those of both side by side, the sign in one of them.
    gap, norm = _norm((torch.cat([one[0], two[0]], dim=-1), torch.cat([one[1], -two[1]], dim=-1))), _norm(one)
    return gap / norm if norm else (np.inf if gap else 0.0)


def _norm(factors: tuple[Tensor, Tensor]) -> float:
    """Return √Σ_h ‖left rightᵀ‖², through triangular factors: a sum of traces would lose half of the digits."""
    left, right = (torch.linalg.qr(each, mode="r").R for each in factors)
    return float(torch.linalg.vector_norm(left @ right.mT))


def _matched(squares: Mapping[str, Float64[Tensor, "head other"]]) -> list[int]:
    """Return which head of the other goes with each head: those whose products are nearest in all."""
    heads = list(range(len(squares["qk"])))
    if all(float(each.diagonal().sum()) < _SURELY**2 for each in squares.values()):
        return heads
    from scipy.optimize import linear_sum_assignment

    cost = sum(each.numpy() for each in squares.values())
    return [int(each) for each in linear_sum_assignment(cost)[1]]


def _squared_distances(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Float64[Tensor, "head other"]:
    """Return ‖A_h − B_k‖² over Σ_h ‖A_h‖², from ⟨A, B⟩ = Σ (A_leftᵀ B_left) ∘ (A_rightᵀ B_right)."""
    inner = _inner(a, b)
    own, other = (((each[0].mT @ each[0]) * (each[1].mT @ each[1])).sum(dim=(-2, -1)) for each in (a, b))
    total = own.sum()
    return (own[:, None] + other - 2 * inner) / (total if float(total) else 1.0)


def _inner(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Float64[Tensor, "head other"]:
    heads, others = len(a[0]), len(b[0])
    left, right = (
        (one.movedim(0, 1).flatten(1).mT @ two.movedim(0, 1).flatten(1))
        .unflatten(0, (heads, -1))
        .unflatten(2, (others, -1))
        for one, two in zip(a, b, strict=True)
    )
    return (left * right).sum(dim=(1, 3))


def _leading(factors: tuple[Tensor, Tensor]) -> Float64[Tensor, "dim direction"]:
    """Return the leading left singular vectors of Σ_h left rightᵀ."""
    left, right = (each.movedim(0, 1).flatten(1) for each in factors)
    return leading_subspace(lambda y: left @ (right.mT @ y), lambda x: right @ (left.mT @ x), left.shape[0])
