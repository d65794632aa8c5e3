"""What the weights show: signs of the QK and OV circuits by head, and regimes by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells, columns_table, fold
from tokendynamics.figures.maps import SignedMap, Tile
from tokendynamics.results import Refused
from tokendynamics.words import UNDEFINED, count, number, signed

_SIGNS = ["positive", "negative", "zero"]
_BY_HEAD = {
    "qk": (
        "Do heads attend to similar tokens or to opposite ones?",
        "QK balance Σλ/Σ|λ| of the symmetric part of W_Q W_Kᵀ, per head. At +1 the logit is highest for tokens that "
        "point the same way, at −1 for those that point the opposite way. At 0 the signs cancel. The table gives the "
        "numbers of positive, negative and zero eigenvalues.",
    ),
    "ov": (
        "Do heads copy what they read, or its opposite?",
        "OV balance ΣRe λ/Σ|λ| over the eigenvalues of W_V W_O, per head. +1: a token is copied with its sign; −1: "
        "with the opposite sign; 0: the signs cancel. The table counts eigenvalues of the symmetric part.",
    ),
}
"""Question and caption of the balance of each circuit."""
_OF_REGIMES = (
    "W is the sum of W_Q W_Kᵀ over heads and A = W (Vᵀ)⁻¹. A exists only if V is invertible; otherwise the table shows "
    "“undefined” with the rank of V. Signs are those of the symmetric parts. The conjecture is about attention alone, "
    "as a free flow without the other parts of a layer. Layers with equal entries share one line with the range of "
    "their numbers; the CSV file lists every layer."
)
_UNAUDITED = (
    "The weights were not audited; the verdict gives the reason. All other results on this page need only token states."
)


def section(diagnosis: Diagnosis) -> Section:
    """Return the section; one sentence where there is no audit."""
    ident, title, audit = "weights", "What do the weights show?", diagnosis.audit
    if isinstance(audit, Refused):
        return Section(ident, title, (_UNAUDITED,))
    dim = int(diagnosis.model["dim"])
    figures = (*(_by_head(audit, circuit, *words) for circuit, words in _BY_HEAD.items()), *_by_offset(audit))
    return Section(ident, title, (_summary(audit, dim),), (_regimes(audit, dim),), figures, notes=(_OF_REGIMES,))


def _regimes(audit: xr.Dataset, dim: int) -> Table:
    """List signs, conditioning and the regime of the paper's conjecture by layer; equal layers share one line."""
    rows = tuple(_layer_row(audit.sel(layer=layer), int(layer), dim) for layer in audit["layer"].values)
    columns = (
        "Layer", "W: +/−/0", "A: +/−/0", "rank V", "cond V", "λ near 0", "near 0 for ρ", "max Re λ",
        "Paper’s conjecture",
    )  # fmt: skip
    table = Table(
        "Signs (positive/negative/zero eigenvalues of the symmetric parts of W and A), conditioning and near-zero "
        "eigenvalues λ of V (|λ| below 10⁻³, and below 10⁻³ of the spectral radius ρ), and regime of each layer",
        columns,
        rows,
    )
    # Whether A exists, with the rank that decides it, and the regime; the other columns are numbers.
    known = bool(audit.A_defined.values.all())
    return fold(table, [columns.index(name) for name in ("A: +/−/0", "Paper’s conjecture")[known:]])


def _summary(audit: xr.Dataset, dim: int) -> str:
    """Return the number of layers in each regime of the paper's conjecture, in words.

    The criterion by Re λ(V) is omitted: some Re λ(V) is positive in every network, so it predicts nothing.
    """
    layers = [audit.sel(layer=layer) for layer in audit["layer"].values]
    regimes = Counter(
        str(layer["regime"].item()) + ("" if bool(layer["A_defined"]) else f" ({_rank(layer, dim)})")
        for layer in layers
    )
    of = "the only layer" if len(layers) == 1 else f"{{}} of {count(len(layers))} layers"
    counts = "; ".join(f"{name} in {of.format(many)}" for name, many in regimes.most_common())
    return f"By the signs of W and A (the paper’s conjecture): {counts}."


def _rank(layer: xr.Dataset, dim: int) -> str:
    return f"rank {int(layer['V_rank'])}/{dim}"


def _signs(inertia: np.ndarray) -> str:
    return "/".join(count(int(n)) for n in inertia)


def _layer_row(layer: xr.Dataset, index: int, dim: int) -> tuple[Cell, ...]:
    w = layer["W_inertia"].sel(sign=_SIGNS).values
    a = layer["A_inertia"].sel(sign=_SIGNS).values
    defined = bool(layer["A_defined"])
    return (
        *cells([index]),
        Cell(_signs(w), sort=str(int(w[0])), value=tuple(int(n) for n in w)),
        Cell(_signs(a), sort=str(int(a[0])), value=tuple(int(n) for n in a))
        if defined
        else Cell(f"{UNDEFINED} ({_rank(layer, dim)})", "", True),
        *cells([int(layer["V_rank"]), float(layer["V_condition"])]),
        *cells([int(layer["V_near_zero"]), int(layer["V_near_zero_relative"]), float(layer["V_max_real"])]),
        *cells([str(layer["regime"].item())]),
    )


def _by_head(audit: xr.Dataset, circuit: str, question: str, caption: str) -> Figure:
    name = f"{circuit.upper()} balance"
    balance = audit[f"{circuit}_balance"].transpose("layer", "head")
    signs = audit[f"{circuit}_inertia"].sel(sign=_SIGNS).transpose("layer", "head", "sign").values.reshape(-1, 3)
    tiles = [
        Tile(layer, head, value, f"Layer {layer}, head {head}: {signed(value)}\n+/−/0: {_signs(inertia)}")
        for (layer, head, value), inertia in zip(_places(balance), signs, strict=True)
    ]
    numbers = zip(("Positive", "Negative", "Zero"), signs.astype(int).T, strict=True)
    return _balances(
        f"weights-{circuit}", question, name, "heads", caption, tiles, "Head", f"{name} and signs", numbers
    )


def _by_offset(audit: xr.Dataset) -> tuple[Figure, ...]:
    """Draw, for rotary models, the QK balance at a distance."""
    if "qk_balance_at_offset" not in audit:
        return ()
    balance = audit["qk_balance_at_offset"].mean("head").transpose("layer", "offset")
    tiles = [
        Tile(layer, offset, value, f"Layer {layer}, {offset} tokens apart: {signed(value)}")
        for layer, offset, value in _places(balance)
    ]
    figure = _balances(
        "weights-offset",
        "Does the QK balance change with the distance between tokens?",
        "QK balance",
        "distance",
        "QK balance with the query turned by the rotary angles of a distance i − j (receiver minus sender), mean over "
        "the heads of a layer; distance 0 is the circuit as stored.",
        tiles,
        "Tokens apart",
        "QK balance at a distance, mean over heads",
        of="Mean QK balance over heads",
    )
    return (figure,)


def _places(balance: xr.DataArray) -> list[tuple[int, int, float]]:
    """Return layer, row and value of each cell."""
    layers, rows = (balance[dim].values.tolist() for dim in balance.dims)
    return [
        (int(layer), int(row), float(balance.values[i, j]))
        for i, layer in enumerate(layers)
        for j, row in enumerate(rows)
    ]


def _balances(
    ident: str, question: str, name: str, against: str, caption: str, tiles: list[Tile], row: str, numbers: str,
    further: Iterable[tuple[str, np.ndarray]] = (), of: str = "",
) -> Figure:  # fmt: skip
    """Return a map of balances; `of` names them in its description, `further` are columns of its table."""
    values = [tile.value for tile in tiles]
    columns = {"Layer": [tile.layer for tile in tiles], row: [tile.row for tile in tiles], name: values}
    return Figure(
        ident,
        question,
        caption,
        SignedMap(tiles, row, list(dict.fromkeys(columns[row]))),
        columns_table(numbers, [*columns.items(), *further]),
        title=f"{question} {name}, layers × {against}",
        description=_description(of or name, [value for value in values if not np.isnan(value)]),
    )


def _description(name: str, values: list[float]) -> str:
    if not values:
        return f"{name}: {UNDEFINED} everywhere."
    return (
        f"{name}: {sum(v > 0 for v in values)} of {len(values)} cells positive, {sum(v < 0 for v in values)} negative; "
        f"median {signed(float(np.median(values)))}, lowest {number(min(values))}, highest {number(max(values))}. "
        "The table below holds every value."
    )
