"""What `check` says of a flow at a grid of the page's controls: the logic of the theorems stays in Python."""

from __future__ import annotations

from itertools import product
from typing import Any

from torch import Tensor

from tokendynamics.dynamics import Flow
from tokendynamics.report.explorer._flow import Weights, changed, sharpness
from tokendynamics.theorems import Check, check
from tokendynamics.words import number

BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def at_controls(flow: Flow, start: Tensor) -> dict[str, Any]:
    """Return the rows of the panel for every combination of the controls' values.

    Args:
        flow: One that can be live.
        start: (token, dim).

    Returns:
        The values of each control, the rows, each once, and for each combination, the last control fastest, which rows
        it has. Where rows differ between values of β by a rate in closed form at most, β is no axis: the values are
        then empty, and the page evaluates the rate (`bound` of a prediction) at any β.
    """
    betas = sorted({*BETAS, sharpness(flow)})
    kinds: tuple[Weights, ...] = ("softmax", "linear")
    kept = (True,) if flow.attention.positions is None else (True, False)
    rows: dict[str, Any] = {}
    index = [
        _places(check(changed(flow, beta=beta, causal=causal, weights=weights, positions=positions), start), rows, beta)
        for beta, causal, weights, positions in product(betas, (False, True), kinds, kept)
    ]
    settings = len(index) // len(betas)
    if all(index[at : at + settings] == index[:settings] for at in range(0, len(index), settings)):
        betas, index = [], index[:settings]
    axes = {"beta": betas, "causal": [False, True], "weights": kinds, "positions": kept}
    return {"axes": axes, "rows": list(rows.values()), "index": index}


def of_flow(flow: Flow, start: Tensor) -> dict[str, Any]:
    """Return the same for a flow that is not live, as it is."""
    rows: dict[str, Any] = {}
    index = [_places(check(flow, start), rows)]
    return {"axes": {}, "rows": list(rows.values()), "index": index}


def _places(checks: list[Check], rows: dict[str, Any], beta: float | None = None) -> list[int]:
    """Return where the rows of these checks stand among all, and enter those that are new.

    With β a rate in closed form is left to the page: terms (c, k) of Σ c·exp(−kβ), in which rows are not compared.
    """
    places = []
    for one in checks:
        row = _row(one)
        rate = {}
        if beta is not None and one.prediction is not None and one.prediction.bound:
            row["prediction"] = one.prediction.pattern
            rate = {"rate": [(c, k / beta) for c, k in one.prediction.bound]}
        rows.setdefault(str(row), row | rate)
        places.append(list(rows).index(str(row)))
    return places


def _row(one: Check) -> dict[str, Any]:
    """Return one statement with its hypotheses: True, False, or None where a hypothesis cannot be measured."""
    hypotheses = [
        {
            "name": hypothesis.name,
            "holds": hypothesis.holds,
            "measured": hypothesis.text,
            "margin": None if hypothesis.margin is None else number(hypothesis.margin),
        }
        for hypothesis in one.hypotheses
    ]
    prediction = None if one.prediction is None else one.prediction.text
    return {"title": _title(one.statement), "applies": one.applies, "prediction": prediction, "hypotheses": hypotheses}


def _title(statement: str) -> str:
    """Return the name of a statement in words.

    >>> _title("asymptotic-4.1"), _title("positional-remark-3.2")
    ('Theorem 4.1 (asymptotic)', 'Remark 3.2 (positional)')
    """
    paper, _, name = statement.partition("-")
    kind, _, place = name.rpartition("-")
    return f"{(kind or 'theorem').capitalize()} {place} ({paper})"
