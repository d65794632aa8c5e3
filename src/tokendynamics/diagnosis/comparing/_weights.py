"""How far the weights of networks differ, layer by layer: the products of attention, and the feed-forward matrices.

Products are invariant under changes of basis; feed-forward matrices are compared in matching order of hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.diagnosis.network import sizes_differ
from tokendynamics.numerics import AttentionFactorsError
from tokendynamics.pretrained import AttentionWeights, Checkpoint
from tokendynamics.pretrained.feed_forward import FeedForwardWeights
from tokendynamics.provenance.progress import Progress, tracked

WEIGHTS_DIFFER = 1e-5
"""Relative difference of a product from which it exceeds rounding of the weights in single precision."""

LEADING = 8
"""Directions of the leading subspaces that are compared; half of all in a narrow network."""

_STEPS = 4
"""Of the subspace iteration, each with the matrix and its transpose, on twice as many directions as are wanted."""

Apply = Callable[[Tensor], Tensor]


_SURELY = 0.5
"""Heads that differ by less, relative to the layer, are not matched with other heads; random heads differ by 1.4."""

_EXACT = 1e-10
"""Squared difference below which the difference of squares has lost too many digits, and factors are subtracted."""

CIRCUITS = ("qk", "ov")

_DIFFERENCES = (
    *(f"{name}_{kind}" for name in CIRCUITS for kind in ("difference", "angle")),
    *(f"head_{name}_{kind}" for name in CIRCUITS for kind in ("difference", "scale", "scale_error")),
    "head_matched",
)
"""Variables over layers, and over layers and heads; see `weight_differences`."""

_REORDERED = 0.05
"""Hidden units are matched in another order only if their sorted sizes differ by less than this."""

_ANOTHER_UNIT = 0.5
"""Relative difference of a hidden unit from which it may be another one; also the factor by which another order has to
reduce the difference of all units."""


def leading_subspace(apply: Apply, transposed: Apply, rows: int) -> Float64[Tensor, "row direction"]:
    """Return the leading left singular vectors of a matrix, by iteration from the same start each time.

    Args:
        apply: y ↦ M y for several y side by side.
        transposed: x ↦ Mᵀ x likewise.
        rows: Of M.

    >>> matrix = torch.diag(torch.arange(20.0, 0.0, -1.0, dtype=torch.float64))
    >>> basis = leading_subspace(lambda y: matrix @ y, lambda x: matrix.mT @ x, 20)
    >>> basis.shape, bool(basis[:8].norm(dim=0).min() > 0.99)
    (torch.Size([20, 8]), True)
    """
    count = max(1, min(LEADING, rows // 2))  # all directions together are the same in any two matrices
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(rows, min(2 * count, rows), generator=generator, dtype=torch.float64)
    for _ in range(_STEPS):
        basis = torch.linalg.qr(transposed(basis)).Q
        basis = torch.linalg.qr(apply(basis)).Q
    rotation = torch.linalg.svd(transposed(basis).mT, full_matrices=False)[0]
    return basis @ rotation[:, :count]


def squared_sine(one: Float64[Tensor, "row direction"], two: Float64[Tensor, "row direction"]) -> float:
    """Return the mean square of the sines between two subspaces."""
    # The sine from what one leaves of the other: one minus a cosine would lose half of the digits.
    beyond = two - one @ (one.mT @ two)
    return float(beyond.square().sum()) / two.shape[-1]


def degrees_of(square: float) -> float:
    """Return the angle of a squared sine in degrees.

    >>> round(degrees_of(0.25), 6)
    30.0
    """
    return float(np.degrees(np.arcsin(min(1.0, square) ** 0.5)))


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
        singular vectors of Σ_h W: arcsin of the root mean square sine. Over (other, layer, head): of each head
        ``head_qk_difference`` and ``head_ov_difference``, ‖W_a − W_b‖ relative to ‖W_a‖, ``head_qk_scale`` and
        ``head_ov_scale``, ⟨W_b, W_a⟩/‖W_a‖², ``head_qk_scale_error`` and ``head_ov_scale_error``, its standard error if
        the elements of a factor differ by independent noise, and ``head_matched``, the head of the other that goes
        with it. And for each other why its differences are NaN, in some layers or in all; empty where they are not.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    depths = [ckpt.architecture.layers for ckpt in ckpts]
    unlike = [""] + [sizes_differ(other, ckpts[0], "widths", "depths", "heads") for other in ckpts[1:]]
    unread: list[list[str]] = [[] for _ in ckpts]
    norms = {name: np.full((len(ckpts), max(depths)), np.nan) for name in CIRCUITS}
    heads = max([1, *(layer.attention.heads for layer in ckpts[0].layout.layers if layer.attention is not None)])
    by_name = {
        name: np.full((len(ckpts), max(depths), heads)[: 3 if name.startswith("head") else 2], np.nan)
        for name in _DIFFERENCES
    }
    for layer in tracked(range(1, max(depths) + 1), report, "comparing the weights"):
        first: _Circuits | None = None
        for number, ckpt in enumerate(ckpts):
            if layer > depths[number]:
                continue
            if not any(
                network.layout.layers[layer - 1].attends for network in ckpts if layer <= network.architecture.layers
            ):
                continue  # a layer without attention in all of them: there is nothing to compare
            try:
                circuits = _circuits(ckpt.attention(layer))
            except AttentionFactorsError as error:
                unread[number].append(error.reason)
                continue
            first = circuits if number == 0 else first
            for name in CIRCUITS:
                norms[name][number, layer - 1] = _norm(getattr(circuits, name))
            if number > 0 and first is not None and not unlike[number]:
                for name, values in _differences(first, circuits).items():
                    by_name[name][(number, layer - 1, slice(np.size(values)))[: by_name[name].ndim]] = values
    reasons = tuple(
        why or "; ".join(dict.fromkeys(unread[0] + problems))
        for why, problems in zip(unlike[1:], unread[1:], strict=True)
    )
    variables = {f"{name}_norm": (("model", "layer"), values) for name, values in norms.items()}
    variables |= {name: (("other", "layer", "head")[: table.ndim], table[1:]) for name, table in by_name.items()}
    return xr.Dataset(variables, coords={"layer": np.arange(1, max(depths) + 1), "head": np.arange(heads)}), reasons


def _circuits(weights: AttentionWeights) -> _Circuits:
    query, key, value = (factor.double() for factor in (weights.query, weights.key_per_head, weights.value_per_head))
    if weights.norm_gain is not None:
        gain = weights.norm_gain.double()[:, None]
        query, key, value = gain * query, gain * key, gain * value
        if weights.norm_kind == "layer":  # what it reads has mean zero: a constant in a column does nothing
            query, key, value = (factor - factor.mean(dim=-2, keepdim=True) for factor in (query, key, value))
    return _Circuits((weights.scale * query, key), (value, weights.output.double().mT))


def _differences(a: _Circuits, b: _Circuits) -> dict[str, Any]:
    """Return `_DIFFERENCES` of a layer: numbers, and arrays over heads."""
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in CIRCUITS}
    heads = np.arange(len(a.qk[0]))
    if all(torch.equal(one, two) for pair in pairs.values() for one, two in zip(*pair, strict=True)):
        equal = {name: heads * 0.0 if name.startswith("head") else 0.0 for name in _DIFFERENCES}
        return equal | {f"head_{name}_scale": heads * 0.0 + 1 for name in CIRCUITS} | {"head_matched": heads}
    products = {name: _inner_products(*pair) for name, pair in pairs.items()}
    order = _matched(list(products.values()))
    values: dict[str, Any] = {"head_matched": np.array(order)}
    for name, (one, two) in pairs.items():
        two = two[0][order], two[1][order]
        inner, squares, _ = products[name]
        gaps, norms = _gaps(one, two, products[name], order).numpy(), squares.sqrt().numpy()
        gap, total = float(np.linalg.norm(gaps)), float(np.linalg.norm(norms))
        values[f"{name}_difference"] = gap / total if total else (np.inf if gap else 0.0)
        known = total > 0 and bool(products[name][2].sum() > 0)  # a product of zero has no leading direction
        values[f"{name}_angle"] = degrees_of(squared_sine(_leading(one), _leading(two))) if known else np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            values[f"head_{name}_difference"] = np.where(gaps > 0, gaps / norms, 0.0)
            values[f"head_{name}_scale"] = inner[heads, order].numpy() / norms**2
            rest = (np.square(gaps / norms) - np.square(values[f"head_{name}_scale"] - 1)).clip(0.0) ** 0.5
            values[f"head_{name}_scale_error"] = rest * _alignment(one, two) / norms
    return values


def _alignment(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> Float64[np.ndarray, " head"]:
    """Return how much of noise in a factor changes the scale of a product A, the most over the factors of two networks.

    Noise of a factor x of y gives x yᵀ, and of its inner product with A the standard deviation is ‖A y‖/(√d ‖y‖) of its
    norm, for d rows of x.
    """
    left, right = one
    ratios = []
    for x, y in (one, two):
        for product, factor in ((left @ (right.mT @ y), y), (right @ (left.mT @ x), x)):
            sizes = [torch.linalg.vector_norm(matrix, dim=(-2, -1)) for matrix in (product, factor)]
            ratios.append(sizes[0] / (sizes[1] * product.shape[-2] ** 0.5))
    return torch.stack(ratios).amax(0).numpy()


def _gaps(
    one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor], products: tuple[Tensor, Tensor, Tensor], order: list[int]
) -> Float64[Tensor, " head"]:
    """Return ‖A_h − B_h‖ of matched heads, without loss of digits where they nearly agree."""
    inner, squares, others = products
    square = squares + others[order] - 2 * inner[range(len(order)), order]
    close = square <= _EXACT * squares
    gaps = square.clamp_min(0).sqrt()
    if bool(close.any()):  # of A − B the factors are those of both side by side, the sign in one of them
        left, right = torch.cat([one[0], two[0]], dim=-1)[close], torch.cat([one[1], -two[1]], dim=-1)[close]
        gaps[close] = torch.linalg.vector_norm(_triangular(left, right), dim=(-2, -1))
    if any(first.shape != second.shape for first, second in zip(one, two, strict=True)):
        return gaps  # factors of other widths: a remedy adds columns to those of one network
    same = (one[0] == two[0]).flatten(1).all(dim=1) & (one[1] == two[1]).flatten(1).all(dim=1)
    return torch.where(same, 0.0, gaps)


def _norm(factors: tuple[Tensor, Tensor]) -> float:
    """Return √Σ_h ‖left rightᵀ‖², through triangular factors: a sum of traces would lose half of the digits."""
    return float(torch.linalg.vector_norm(_triangular(*factors)))


def _triangular(left: Tensor, right: Tensor) -> Tensor:
    """Return a matrix of the singular values of left rightᵀ, head by head."""
    one, two = (torch.linalg.qr(matrix, mode="r").R for matrix in (left, right))
    return one @ two.mT


def _matched(products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[int]:
    """Return which head of the other goes with each head: those whose products are nearest in all.

    The distance of two products is bounded. Otherwise one head of many times the norm would decide by its chance
    products with all others which of these go together.
    """
    if all(float(_squared_distances(*product).diagonal().sum()) < _SURELY**2 for product in products):
        return list(range(len(products[0][0])))
    from scipy.optimize import linear_sum_assignment

    cost = sum(_bounded_distances(*product).numpy() for product in products)
    return [int(head) for head in linear_sum_assignment(cost)[1]]


def _inner_products(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ⟨A_h, B_k⟩ (head, other), ‖A_h‖² and ‖B_k‖², from ⟨A, B⟩ = Σ (A_leftᵀ B_left) ∘ (A_rightᵀ B_right)."""
    heads, others = len(a[0]), len(b[0])
    left, right = (
        (one.movedim(0, 1).flatten(1).mT @ two.movedim(0, 1).flatten(1))
        .unflatten(0, (heads, -1))
        .unflatten(2, (others, -1))
        for one, two in zip(a, b, strict=True)
    )
    squares = [((x.mT @ x) * (y.mT @ y)).sum(dim=(-2, -1)) for x, y in (a, b)]
    return (left * right).sum(dim=(1, 3)), squares[0], squares[1]


def _squared_distances(inner: Tensor, squares: Tensor, others: Tensor) -> Float64[Tensor, "head other"]:
    """Return ‖A_h − B_k‖² over Σ_h ‖A_h‖²."""
    total = squares.sum()
    return (squares[:, None] + others - 2 * inner) / (total if float(total) else 1.0)


def _bounded_distances(inner: Tensor, squares: Tensor, others: Tensor) -> Float64[Tensor, "head other"]:
    """Return ‖A_h − B_k‖² over ‖A_h‖² + ‖B_k‖², at most 1, as of products that have nothing in common."""
    total = squares[:, None] + others
    return torch.where(total > 0, (total - 2 * inner) / total, 0.0).clamp(0.0, 1.0)


def _leading(factors: tuple[Tensor, Tensor]) -> Float64[Tensor, "dim direction"]:
    """Return the leading left singular vectors of Σ_h left rightᵀ."""
    left, right = (factor.movedim(0, 1).flatten(1) for factor in factors)
    return leading_subspace(lambda y: left @ (right.mT @ y), lambda x: right @ (left.mT @ x), left.shape[0])


@dataclass
class FeedForwardDifferences:
    """Differences of the feed-forward weights of several networks.

    Attributes:
        table: Over ``model`` (all), ``other`` (all but the first) and ``layer`` (from 1): ``ff_norm`` (model, layer),
            √Σ ‖·‖² over the matrices of the feed-forward part; ``ff_difference`` (other, layer), √Σ ‖A − B‖² over those
            of one name and shape, relative to √Σ ‖A‖²; ``ff_angle`` (other, layer), degrees between the leading
            singular subspaces of what they read or write, arcsin of the root mean square sine.
        reasons: For all but the first, why some or all layers were not compared; empty otherwise.
        unmatched: For all but the first, matrices that only one of the pair has with this name and shape.
    """

    table: xr.Dataset
    reasons: tuple[str, ...]
    unmatched: tuple[tuple[str, ...], ...]


@dataclass
class _Pair:
    """One network compared with the first, for the layers read so far."""

    why: str
    problems: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)


def feed_forward_differences(ckpts: Sequence[Checkpoint], report: Progress) -> FeedForwardDifferences:
    """Compare the matrices of each layer's feed-forward part with those of the first network.

    Matrices are matched by name. The gain of the preceding norm is folded into matrices that read the state, and hidden
    units may be in another order; experts are compared as stored. Biases are not compared.

    Args:
        ckpts: The first is the one that the others are compared with.
        report: Called after each layer.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    depths = [ckpt.architecture.layers for ckpt in ckpts]
    pairs = [_Pair(sizes_differ(other, ckpts[0], "widths", "depths")) for other in ckpts[1:]]
    norms = np.full((len(ckpts), max(depths)), np.nan)
    differences = np.full((2, len(pairs), max(depths)), np.nan)
    for layer in tracked(range(1, max(depths) + 1), report, "comparing the feed-forward weights"):
        first: FeedForwardWeights | str = "it has no such layer"
        for number, ckpt in enumerate(ckpts):
            if layer > depths[number]:
                continue
            feed_forward = ckpt.feed_forward(layer)
            first = feed_forward if number == 0 else first
            if isinstance(feed_forward, FeedForwardWeights):
                norms[number, layer - 1] = sum(_square(matrix) for matrix in feed_forward.matrices.values()) ** 0.5
            if number == 0 or pairs[number - 1].why:
                continue
            pair = pairs[number - 1]
            both = [
                (which, reason)
                for which, reason in ((ckpts[0], first), (ckpt, feed_forward))
                if isinstance(reason, str)
            ]
            pair.problems += [f"layer {layer} of {which.name}: {reason}" for which, reason in both]
            if isinstance(feed_forward, FeedForwardWeights) and isinstance(first, FeedForwardWeights):
                differences[:, number - 1, layer - 1] = _matrix_differences(first, feed_forward, pair)
    table = xr.Dataset(
        {
            "ff_norm": (("model", "layer"), norms),
            "ff_difference": (("other", "layer"), differences[0]),
            "ff_angle": (("other", "layer"), differences[1]),
        },
        coords={"layer": np.arange(1, max(depths) + 1)},
    )
    more = [f" and {len(pair.problems) - 1} more" if len(pair.problems) > 1 else "" for pair in pairs]
    reasons = tuple(
        pair.why or (f"{pair.problems[0]}{rest}" if pair.problems else "")
        for pair, rest in zip(pairs, more, strict=True)
    )
    return FeedForwardDifferences(table, reasons, tuple(tuple(dict.fromkeys(pair.unmatched)) for pair in pairs))


def _matrix_differences(a: FeedForwardWeights, b: FeedForwardWeights, pair: _Pair) -> tuple[float, float]:
    """Return the relative difference and the angle of one layer; what has no partner is noted."""
    names = [
        name for name, matrix in a.matrices.items() if name in b.matrices and b.matrices[name].shape == matrix.shape
    ]
    pair.unmatched += [name for name in {**a.matrices, **b.matrices} if name not in names]
    if not names:
        return np.nan, np.nan
    ones, twos = ({name: weights.matrices[name] for name in names} for weights in (a, b))
    if all(torch.equal(ones[name], twos[name]) for name in names):
        return 0.0, 0.0
    if len(names) == len(a.matrices) == len(b.matrices):
        twos = _in_order(ones, twos, a)
    total = sum(_square(matrix) for matrix in ones.values())
    gap = sum(_square(twos[name] - matrix) for name, matrix in ones.items())
    difference = (gap / total) ** 0.5 if total else (np.inf if gap else 0.0)
    sines = [
        _sine(ones[name], twos[name], a.roles[name])
        for name in names
        if bool(ones[name].any()) and bool(twos[name].any())  # a matrix of zeros has no leading direction
    ]
    return difference, degrees_of(sum(sines) / len(sines)) if sines else np.nan


def _square(matrix: Tensor) -> float:
    return float(matrix.square().sum())


def _sine(one: Tensor, two: Tensor, role: str) -> float:
    """Return the squared sine between the leading directions of the state that two matrices read or write."""
    if torch.equal(one, two):
        return 0.0
    if one.ndim == 3:  # experts side by side: their sizes are in order
        one, two = (matrix.movedim(0, 1).flatten(1) for matrix in (one, two))
    if role == "writes":  # the features of the state are rows, where it is known which they are
        one, two = one.mT, two.mT
    spans = [
        leading_subspace(lambda y, m=matrix: m @ y, lambda x, m=matrix: m.mT @ x, len(matrix)) for matrix in (one, two)
    ]
    return squared_sine(*spans)


def _in_order(ones: dict[str, Tensor], twos: dict[str, Tensor], a: FeedForwardWeights) -> dict[str, Tensor]:
    """Return the second's matrices with their hidden units in the first's order, if they are the same in another."""
    widths = {matrix.shape[0] for name, matrix in ones.items() if a.roles[name] == "writes"}
    if len(widths) != 1 or any(role == "stored" for role in a.roles.values()):
        return twos
    (width,) = widths
    if any(matrix.shape[1] % width for name, matrix in ones.items() if a.roles[name] == "reads"):
        return twos
    one, two = (
        torch.cat([_units(matrices[name], a.roles[name], width) for name in ones], dim=1) for matrices in (ones, twos)
    )
    sizes = [torch.linalg.vector_norm(units, dim=1) for units in (one, two)]
    ranked = [size.sort().values for size in sizes]
    gaps = torch.linalg.vector_norm(one - two, dim=1)
    if float((ranked[0] - ranked[1]).norm()) > _REORDERED * float(sizes[0].norm()):
        return twos
    if not bool((gaps > _ANOTHER_UNIT * sizes[0]).any()):
        return twos
    order = (one @ (two / sizes[1].clamp_min(torch.finfo(two.dtype).tiny)[:, None]).mT).argmax(dim=1)
    if len(order.unique()) < width or float((one - two[order]).norm()) > _ANOTHER_UNIT * float(gaps.norm()):
        return twos
    return {
        name: matrix[order] if a.roles[name] == "writes" else matrix.unflatten(1, (-1, width))[..., order].flatten(1)
        for name, matrix in twos.items()
    }


def _units(matrix: Tensor, role: str, width: int) -> Float64[Tensor, "unit feature"]:
    """Return what each hidden unit reads, of several maps side by side, or writes."""
    return matrix if role == "writes" else matrix.unflatten(1, (-1, width)).movedim(2, 0).flatten(1)
