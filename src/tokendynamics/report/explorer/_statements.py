"""What `check` and `certify` say at a grid of the page's controls: the logic of the theorems stays in Python."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from torch import Tensor

from tokendynamics.attention import RotaryPositions
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.report.explorer._flow import Weights, at_betas, changed, peak, sharpness, work
from tokendynamics.theorems import Certificate, Check, certify, check
from tokendynamics.theorems.registry import KNOWN, named
from tokendynamics.words import number

BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
WEIGHTS: tuple[Weights, ...] = ("softmax", "linear", "exponential")
RUN: dict[str, Any] = {"engine": "batched", "rtol": 1e-6, "atol": 1e-8, "max_steps": 200}
"""How the runs that are certified are computed: all values of β at once, so that those of a page take some seconds."""
_OF_FLOWS = [one for one in KNOWN if one.of_flows]
_MOST_WORK = 200_000
"""Heads × tokens² × features of a flow beyond which no run is computed to be certified."""


def at_controls(flow: Flow, start: Tensor) -> dict[str, Any]:
    """Return the rows of the panel for every combination of the controls' values.

    Args:
        flow: One that can be live.
        start: (token, dim).

    Returns:
        The values of each control, the hypotheses and the rows, each once, for each combination, the last control
        fastest, which rows it has, and how many statements have no row, being about other flows at every setting.
        Rows between which only a rate in closed form depends on β hold at any, and the page evaluates the rate
        (`bound` of a prediction); the others say of which β they are. Where all hold at any, β is no axis, its values
        being empty.
    """
    betas, top = sorted({*BETAS, sharpness(flow)}), peak(flow, start)
    kept = _kept(flow)
    kinds = [
        [changed(flow, beta=beta, causal=causal, weights=weights, positions=positions, peak=top) for beta in betas]
        for causal, weights, positions in product((False, True), WEIGHTS, kept)
    ]
    shown = [one for one in _OF_FLOWS if any(one.concerns(of_kind[0]) for of_kind in kinds)]
    rows: dict[str, Any] = {}
    index = [
        _places(check(of_kind[at], start, statements=shown), rows, beta, of_kind[at].attention.offset)
        for at, beta in enumerate(betas)
        for of_kind in kinds
    ]
    listed, settings = list(rows.values()), len(kinds)
    for beside in (index[at::settings] for at in range(settings)):
        for alike in zip(*beside, strict=True):
            if len({*alike}) > 1:
                for place in alike:
                    listed[place]["of_beta"] = True
    if not any("of_beta" in row for row in listed):
        betas, index = [], index[:settings]
    axes = {"beta": betas, "causal": [False, True], "weights": WEIGHTS, "positions": kept}
    return _table(axes, listed, index) | {"elsewhere": len(_OF_FLOWS) - len(shown)}


def _table(axes: dict[str, Any], rows: list[dict[str, Any]], index: list[list[int]]) -> dict[str, Any]:
    """Return rows and an index with each hypothesis once, rows having its place."""
    hypotheses: dict[str, Any] = {}
    for row in rows:
        for one in row["hypotheses"]:
            hypotheses.setdefault(str(one), one)
    places = {text: place for place, text in enumerate(hypotheses)}
    placed = [row | {"hypotheses": [places[str(one)] for one in row["hypotheses"]]} for row in rows]
    return {"axes": axes, "rows": placed, "hypotheses": list(hypotheses.values()), "index": index}


def of_run(flow: Flow, trajectory: Trajectory) -> dict[str, Any]:
    """Return the rows of a flow that is not live, as it is, and its run's certificates, if that is no long task."""
    start = trajectory.tensor[0]
    rows: dict[str, Any] = {}
    certified: dict[str, Any] = {}
    asked = KNOWN if trajectory.engine == "layers" or trajectory.noise is not None else _OF_FLOWS
    shown = [one for one in asked if one.concerns(flow)]
    index = [_places(check(flow, start, trajectory.times, statements=shown, noise=trajectory.noise), rows)]
    if work(flow, start) <= _MOST_WORK:
        _certificate_places(certify(trajectory), trajectory, certified)
    besides = {"certified": list(certified.values()), "elsewhere": len(asked) - len(shown)}
    return _table({}, list(rows.values()), index) | besides


def _kept(flow: Flow) -> tuple[bool, ...]:
    return (True,) if flow.attention.positions is None else (True, False)


def certificates(flow: Flow, start: Tensor, times: np.ndarray) -> dict[str, Any] | None:
    """Return what `certify` says of a run of Python at each combination of the controls' values.

    Args:
        flow: One that can be live.
        start: (token, dim).
        times: Those of the page; each run is saved at some of them, and may end before the last one.

    Returns:
        Values of β, the certificates, each once, and for each combination, β slowest, in the order of `at_controls`,
        which certificates it has. Only statements that apply have one. None for a flow whose runs take long.
    """
    if work(flow, start) > _MOST_WORK:
        return None
    rotary = isinstance(flow.attention.positions, RotaryPositions)
    betas = [sharpness(flow)] if rotary else sorted({*BETAS, sharpness(flow)})
    saved = times[np.unique(np.linspace(0, len(times) - 1, min(31, len(times))).round().astype(int))]
    certified: dict[str, Any] = {}
    top = peak(flow, start)
    settings: list[list[list[int]]] = []
    for causal, weights, positions in product((False, True), WEIGHTS, _kept(flow)):
        # The offset of exponential weights, which differs between values of β, is one of a whole batch.
        batches = [[beta] for beta in betas] if weights == "exponential" else [betas]
        flows = [at_betas(flow, batch, causal, weights, positions, top) for batch in batches]
        settings.append([places for one in flows for places in _certified(one, start, saved, certified)])
    index = [places for at_beta in zip(*settings, strict=True) for places in at_beta]
    return {"beta": betas, "certified": list(certified.values()), "index": index}


def _certified(flow: Flow, start: Tensor, times: np.ndarray, certified: dict[str, Any]) -> list[list[int]]:
    """Return for each system which certificates it has among all, and enter those that are new."""
    (systems,) = flow.attention.system_shape
    starts = start.expand(systems, *start.shape)
    # A run of one step tells which statements can be decided by any: a whole one for none of them takes seconds.
    try:
        first = simulate(flow, starts, times[:2], max_steps=1)
    except ArgumentValueError:
        if flow.attention.weights != "exponential":
            raise
        return [[] for _ in range(systems)]  # Exponentials of these logits overflow: there is no run.
    asked = check(flow, starts, times, statements=[one for one in _OF_FLOWS if one.decidable(first)])
    checks = {named(one.statement): one for one in asked if one.applies_to.any()}
    if not checks:
        return [[] for _ in range(systems)]
    run = simulate(flow, starts, times, **RUN)
    judged = [known.certify(run, one.applies_to) for known, one in checks.items()]
    return _certificate_places(judged, run, certified)


def _certificate_places(judged: list[Certificate], run: Trajectory, certified: dict[str, Any]) -> list[list[int]]:
    places: list[list[int]] = [[] for _ in range(np.asarray(run.end_times).size)]
    for one in judged:
        for system, outcome in enumerate(one.outcomes.reshape(-1).tolist()):
            if outcome == "does not apply":
                continue
            entry = _certificate(one, system, float(np.asarray(run.end_times).reshape(-1)[system]))
            certified.setdefault(str(entry), entry)
            places[system].append(list(certified).index(str(entry)))
    return places


def _certificate(one: Certificate, system: int, end: float) -> dict[str, Any]:
    """Return the certificate of one system in words, with the numbers of the condition that decides.

    As for a `Certificate`, that is the one whose margin is the lowest among those with the outcome.
    """
    outcome = str(one.outcomes.reshape(-1)[system])
    alike = [condition for condition in one.conditions if condition.outcome.reshape(-1)[system] == outcome]
    margins = [float(condition.margin.reshape(-1)[system]) for condition in alike]
    relative = [margin / (condition.tolerance or 1.0) for margin, condition in zip(margins, alike, strict=True)]
    narrowest = relative.index(min(relative))
    condition, margin = alike[narrowest], margins[narrowest]
    first = float(condition.first_failure.reshape(-1)[system])
    run = f"{outcome} in Python's run to t = {number(end)}"
    numbers = f" (margin {number(margin)}, tolerance {number(condition.tolerance)})" if condition.tolerance else ""
    begins = f", first at t = {number(first)}" if outcome == "fails" else ""
    words = f"{run}{begins}: {condition.text}{numbers}"
    return {"title": _title(one.statement), "outcome": outcome, "words": words}


def _places(checks: list[Check], rows: dict[str, Any], beta: float | None = None, offset: float = 0.0) -> list[int]:
    """Return where the rows of these checks stand among all, and enter those that are new.

    With β a rate in closed form is left to the page: terms (c, k) of Σ c·exp(−kβ), in which rows are not compared.
    The offset of exponential weights, which grows with β, is a factor exp(−offset) of every c that a prediction has.
    """
    places = []
    for one in checks:
        row = _row(one)
        rate = {}
        if beta is not None and one.prediction is not None and one.prediction.pattern and one.prediction.bound:
            row["prediction"] = one.prediction.pattern
            rate = {"rate": [(c * math.exp(offset), (k + offset) / beta) for c, k in one.prediction.bound]}
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
    """Return what a statement is about, and where it stands.

    >>> _title("asymptotic-4.1")
    'Consensus from any open half space (asymptotic 4.1)'
    >>> _title("positional-remark-3.5")
    'False: Convergence to zero without symmetry (positional remark 3.5)'
    """
    known = named(statement)
    standing = "" if known.standing == "theorem" else f"{known.standing.capitalize()}: "
    return f"{standing}{known.title} ({statement.replace('-', ' ')})"
