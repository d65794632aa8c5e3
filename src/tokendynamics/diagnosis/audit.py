"""What the weights alone say: signs, spectra and regime of every layer and head, read one layer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.layer_audit import Singular, ValueMap, audit_layer
from tokendynamics.numerics.arguments import whole_numbers
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.memory import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.numerics.tolerances import NEAR_ZERO
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.layers import as_layers
from tokendynamics.provenance.progress import Progress, reporting, tracked

SIGNS = ("positive", "negative", "zero")
OFFSETS = (0, 1, 4, 16, 64)
"""Distances receiver − sender at which the QK circuits of a rotary model are read."""


@typed_arguments
def audit(
    ckpt: Checkpoint,
    value: ValueMap = "V",
    fold_norms: bool = False,
    singular: Singular = "undefined",
    *,
    layers: Sequence[int] | None = None,
    offsets: Sequence[int] = OFFSETS,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Measure signs, spectra and regime of every layer, from the weights alone.

    With W = Σ_h W_Q W_K^T and A = W (V^T)^{-1}, the inertia of W_sym and A_sym and the spectrum of V say which regime
    the layer's attention would have as a free flow. Layers are read one at a time; a model is never built.

    Args:
        ckpt: From `tokendynamics.load`.
        value: The value map V: "V" (W_V; with grouped queries each group's W_V repeated for the heads that share it)
            or "VO" (Σ_h W_V W_O).
        fold_norms: Whether the gain of the norm before attention multiplies the rows of W_Q, W_K and W_V.
        singular: Where V is singular A does not exist: "undefined" says so, "pinv" puts the pseudo-inverse instead.
        layers: Layers to read, counted from 1; None for all.
        offsets: For rotary models, the distances i − j (receiver minus sender, in tokens) at which each head's QK
            circuit is read; 0 means the unrotated W_Q W_K^T.
        progress: True for a progress bar, or a function; see `tokendynamics.provenance.progress`.

    Returns:
        Dataset with dims ``layer`` (counted from 1), ``head``, ``sign``, ``eigenvalue`` and, for rotary models,
        ``offset``. Counts: ``W_inertia``, ``A_inertia`` (layer, sign; A's are NaN where ``A_defined`` is False, unless
        "pinv" asks for the pseudo-inverse's), ``qk_inertia``, ``ov_inertia`` (layer, head, sign). Spectra:
        ``qk_eigenvalues`` (layer, head, eigenvalue), of the scaled symmetric part, its exact zeros left out. Balances
        Σ Re λ/Σ|λ| in −1 … 1: ``qk_balance`` and ``ov_sym_balance`` (of the symmetric parts), ``ov_balance`` (of ov's
        own eigenvalues). ``V_rank``, ``V_near_zero`` (|λ| < 1e-3), ``V_near_zero_relative`` (|λ| < 1e-3 ρ),
        ``V_condition`` (∞ where singular), ``V_max_real``, ``V_radius`` (layer). ``regime``, ``regime_reason``,
        ``regime_by_spectrum`` (layer). Every convention is an attribute.

    Raises:
        ArgumentValueError: An unknown value map, a layer that does not exist, norms that cannot be folded, a W_V that
            is not square.
        CheckpointError: A tensor cannot be read or holds a NaN.
        ArgumentTypeError: An argument of another kind.
        MemoryLimitError: Matrices larger than the memory.

    Source: `positional` section D.6.2 and Table 7; Remark 3.5 for the regimes.

    >>> from tokendynamics.pretrained import load
    >>> table = audit(load("random:distilgpt2"), layers=[1])
    >>> int(table.V_rank[0]), bool(table.A_defined[0]), str(table.regime[0].item())
    (768, True, 'mixed')
    """
    _check_choice("value", value, ("V", "VO"))
    _check_choice("singular", singular, ("undefined", "pinv"))
    chosen = list(dict.fromkeys(as_layers(layers, ckpt.architecture.layers)))
    # W, V and A of a layer as dense matrices in float64.
    check_fits(3 * 8 * ckpt.architecture.dim**2, f"the audit of {ckpt.name}")
    distances = tuple(whole_numbers(offsets, "offsets"))
    rotary = distances if ckpt.architecture.positions == "rotary" else ()
    with reporting(progress) as report:
        rows = [
            audit_layer(partial(ckpt.attention, layer), value, fold_norms, singular, rotary)
            for layer in tracked(chosen, report, "auditing the weights")
        ]
    return _as_dataset(rows, chosen, rotary, _conventions(ckpt, value, fold_norms, singular))


def _as_dataset(
    rows: list[dict[str, Any]], layers: Sequence[int], offsets: tuple[int, ...], conventions: dict[str, str]
) -> xr.Dataset:
    dims = {name: ("layer", *_ROW_DIMS.get(name, ())) for name in rows[0]}
    variables = {name: (dims[name], np.stack([np.asarray(row[name]) for row in rows])) for name in rows[0]}
    coords: dict[str, Any] = {"layer": list(layers), "sign": list(SIGNS)}
    coords["head"] = np.arange(rows[0]["qk_balance"].shape[0])
    if offsets:
        coords["offset"] = list(offsets)
    return xr.Dataset(variables, coords=coords, attrs=conventions)


_ROW_DIMS: dict[str, tuple[str, ...]] = {
    "W_inertia": ("sign",),
    "A_inertia": ("sign",),
    "qk_inertia": ("head", "sign"),
    "ov_inertia": ("head", "sign"),
    "qk_eigenvalues": ("head", "eigenvalue"),
    "qk_balance": ("head",),
    "ov_balance": ("head",),
    "ov_sym_balance": ("head",),
    "qk_balance_at_offset": ("head", "offset"),
}


def _conventions(ckpt: Checkpoint, value: ValueMap, fold_norms: bool, singular: Singular) -> dict[str, str]:
    return {
        "model": ckpt.name,
        "value_map": value,
        "fold_norms": "gain folded into W_Q, W_K, W_V" if fold_norms else "not folded",
        "singular": singular,
        "scaling": "qk_eigenvalues carry 1/sqrt(d_head); signs and balances do not depend on it",
        "near_zero_threshold": f"{NEAR_ZERO:g} absolute, as in positional Table 7, and relative to the spectral radius",
        "balance": "qk: eigenvalues of the symmetric part; ov: Re of ov's own eigenvalues; ov_sym: symmetric part",
        "weights_precision": "as stored, computed in float64",
    }


def _check_choice(argument: str, came: str, choices: tuple[str, ...]) -> None:
    if came not in choices:
        raise ArgumentValueError(expected(argument, f"one of {', '.join(choices)}", repr(came)))
