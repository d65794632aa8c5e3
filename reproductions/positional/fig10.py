"""`positional` Figure 10: norms of tokens and distances between them by layer, without norms and feed-forward parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, layer_lines
from reproductions.given import name_of_model, real_text, sequences_of
from reproductions.positional.depth import MEASURES, DepthCurves, depth_curves, growth_of
from reproductions.positional.sampled import SAID, mean_of, together
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.pretrained import load

GROWS = "Without norms and feed-forward parts norms and distances grow exponentially"
RISES = "in the full network they rise in the early layers"
ENDS = "and have a plateau or fall in the later ones"
CLAIMS = (GROWS, RISES, ENDS)

PRETRAINED = ("smollm2", "minilm")
TOKENS = 100
EXPONENTIAL = 0.9
"""R² of the line through the logarithms from which growth is called exponential."""
PLATEAU = math.log(1.1)
"""A curve that rises by 10 % or less over the last third of the layers has a plateau there."""
_DOUBLED = math.log(2)
"""A curve that does not even double over all layers: its exponential and its straight line are one line."""


@timed
def reproduce(
    *,
    model: str | None = None,
    text: str | None = None,
    reinitialised: str | None = "random:gpt2:0",
    sequences: int = 10,
    seed: int = 10,
    dtype: str = "float64",
) -> Record:
    """Measure both networks, the simplified one and the full one, after every block.

    Without norms the states of a network may be beyond any number: they are divided by powers of two on the way, and
    logarithms are what is kept.

    Args:
        model: A pretrained network; None for SmolLM2 and MiniLM.
        text: A text file that the sequences are drawn from; None for CPython's pages of help.
        reinitialised: A network with drawn weights beside it; None for none.
        sequences: Of 100 tokens.
        seed: Of which.
        dtype: Number format of the forward passes; measures are in float64.
    """
    source = real_text(text)
    specs = [*(PRETRAINED if model is None else (model,)), *((reinitialised,) if reinitialised else ())]
    curves: dict[str, tuple[DepthCurves, DepthCurves]] = {}
    for spec in dict.fromkeys(specs):
        ckpt = load(spec, dtype=dtype)
        ids = sequences_of(ckpt, source, TOKENS, sequences, seed)
        curves[name_of_model(spec)] = depth_curves(ckpt.under("attention-only"), ids), depth_curves(ckpt, ids)
    rows = {name: compared(name, *pair) for name, pair in curves.items()}
    return Record(
        paper="positional",
        figure="Figure 10",
        statement=said(rows),
        quantities=tuple(row for of_network in rows.values() for row in chain(*of_network.values())),
        invented=f"the networks, {sequences} sequences of {TOKENS} tokens from the {source.words} (seed {seed}), what "
        f"counts as exponential (R² ≥ {EXPONENTIAL:g} on a logarithmic axis, and more than that of a straight line), "
        "early and later (first and last third of the layers) and a plateau (at most 10 % more); all tokens count, "
        "massive ones too",
        seed=seed,
        results={"found": curves},
    )


def compared(name: str, simplified: DepthCurves, full: DepthCurves) -> dict[str, list[Quantity]]:
    """Return what is compared of one network by the claim that it belongs to, and what is beside them."""
    rows: dict[str, list[Quantity]] = {claim: [] for claim in (*CLAIMS, "")}
    layers = full.norm.shape[1] - 1
    early, later = round(layers / 3), round(2 * layers / 3)
    for measure in MEASURES:
        rows[GROWS] += exponential(f"{name}, simplified, mean {measure}", simplified.of(measure))
        words, logs = f"{name}, full, mean {measure}: rise of ln over layers", full.of(measure)
        rows[RISES] += [mean_of(f"{words} 1 to {early}", logs[:, early] - logs[:, 0], 0.0, "≥")]
        rows[ENDS] += [_flat(f"{words} {later + 1} to {layers}", logs, later)]
        if np.isfinite(full.final_norm).all():
            ended = full.of(measure, after_final_norm=True)
            rows[""] += [_flat(f"{words} {later + 1} to {layers}, the last after the final norm", ended, later)]
    usual = full.norm_without_massive
    words = f"{name}, full, mean norm but for massive tokens: rise of ln over layers {later + 1} to {layers}"
    rows[""] += [measured(words, float((usual[:, -1] - usual[:, later]).mean()))]
    return rows


def _flat(words: str, logs: np.ndarray, later: int) -> Quantity:
    return mean_of(words, logs[:, -1] - logs[:, later], 0.0, "≤", tolerance=PLATEAU)


def exponential(words: str, curves: np.ndarray) -> list[Quantity]:
    """Return growth by layer, how straight it is on a logarithmic axis, and how much straighter than on a plain one.

    Args:
        words: What grows.
        curves: Its logarithm, (sequence, layer).
    """
    growths = [growth_of(logs) for logs in curves]
    slopes, fits = (np.array([getattr(estimate, name) for estimate in growths]) for name in ("slope", "explained"))
    plain = np.array([estimate.explained_plain for estimate in growths])
    whole = (curves.shape[1] - 1) * float(slopes.mean())
    straighter = mean_of(f"{words}: that R² less the one on a plain axis", fits - plain, 0.0, "≥")
    if abs(whole) < _DOUBLED:
        same = f"it grows by a factor of {math.exp(whole):.4g} in all, over which an exponential is a straight line"
        straighter = replace(straighter, unsettled=same, reason="")
    return [
        mean_of(f"{words}: growth of ln by layer", slopes, 0.0, "≥"),
        mean_of(f"{words}: R² of a line on a logarithmic axis", fits, EXPONENTIAL, "≥"),
        straighter,
    ]


def said(rows: Mapping[str, Mapping[str, Sequence[Quantity]]]) -> str:
    """Say for each claim on which networks it holds.

    Args:
        rows: What `compared` returned, by network.
    """
    parts = [
        f"{claim}: {', '.join(f'{name} {SAID[together(of_network[claim])]}' for name, of_network in rows.items())}"
        for claim in CLAIMS
    ]
    return "; ".join(parts) + "."


def draw(record: Record) -> Figure:
    """Draw the four panels: distance and norm, above without norms and feed-forward parts, below of full networks."""
    curves: Mapping[str, tuple[DepthCurves, DepthCurves]] = record.results["found"]
    kinds = ("without norms and feed-forward parts", "full network")
    labels = {"distance": "mean distance", "norm": "mean token norm"}
    titles = [kind for kind in kinds for _ in labels]
    figure, panels = figures.panels(2, 2, width=figures.DOUBLE, height=5.0, titles=titles)
    places = [(place, measure) for place in (0, 1) for measure in labels]
    for panel, (place, measure) in zip(panels, places, strict=True):
        layer_lines(panel, {name: pair[place].of(measure) for name, pair in curves.items()}, labels[measure])
    return footnote(figure, record, record.statement)
