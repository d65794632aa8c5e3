"""A monitored training in sentences: the state now, what changed, and which measurements are missing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from tokendynamics.diagnosis._layer_states import _SEVERITY
from tokendynamics.diagnosis._prompt_shares import CONFIDENCE
from tokendynamics.training.monitor._changes import has_intervals
from tokendynamics.training.monitor._looks import MEASURED, Look
from tokendynamics.training.monitor._series import Series
from tokendynamics.words import count, estimate, fixed, in_layers, plural, sentence

MOST_CHANGES = 8
"""Number of the largest changes that are shown first; the others are folded."""


def answer(series: Series) -> str:
    """Return the state after the last layer at the last measurement, or why it is undefined.

    Args:
        series: What was measured.
    """
    if not series.looks:
        return "Not measured"
    return series.states[-1][-1].capitalize() if series.states[-1] else series.status.capitalize()


def findings(series: Series) -> list[str]:
    """Return sentences on the last state, on changes, and on missing measurements.

    Args:
        series: What was measured.
    """
    numbered = _numbered(series)
    ended = [_ended(series, numbered), *_where(series, numbered), _changed(series, numbered)] if numbered else []
    return [*ended, *lines(series)[0], *_without_numbers(series.looks)]


def lines(series: Series) -> tuple[list[str], list[str]]:
    """Return the logged changes of layers as sentences: the largest ones, and the others.

    Args:
        series: What was measured.

    Returns:
        Both in the order of their steps; of one step the largest change first.
    """
    order = sorted(range(len(series.changes)), key=lambda place: -series.changes[place].moved)
    largest = set(order[:MOST_CHANGES])
    texts = [f"Step {count(change.step)}:{change.text.partition(':')[2]}." for change in series.changes]
    first, others = ([text for place, text in enumerate(texts) if (place in largest) == kept] for kept in (True, False))
    return first, others


def _numbered(series: Series) -> list[int]:
    return [place for place, look in enumerate(series.looks) if look.values]


def _ended(series: Series, numbered: Sequence[int]) -> str:
    first, last = (series.looks[numbered[place]] for place in (0, -1))
    state, value = series.states[numbered[-1]][-1], float(last.values["consensus_relative"][-1])
    similarity, texts = "", plural(len(series.texts), "text")
    if np.isfinite(value):
        ends = last.values["consensus_relative_interval"][-1]
        similarity = f", with a within-text similarity κ′ of {estimate(value, ends, CONFIDENCE)}"
        if first is not last:
            before = fixed(float(first.values["consensus_relative"][-1]))
            similarity += f", {before} at step {count(first.step)}"
    why = "" if has_intervals(last.values) else ", because a state needs three different texts"
    word = state if has_intervals(last.values) else "undetermined"
    return f"At step {count(last.step)} the state after the last layer is {word}{why}{similarity} ({texts})."


def _where(series: Series, numbered: Sequence[int]) -> list[str]:
    """Return which layers are in which state at the end, the most severe first."""
    states = series.states[numbered[-1]]
    if len(set(states)) == 1:
        return [f"All {len(states)} layers are in this state."] if len(states) > 1 else []
    layers = {word: [layer for layer, state in enumerate(states, start=1) if state == word] for word in set(states)}
    worst = sorted(layers, key=lambda word: (-_SEVERITY[word], layers[word]))
    return [sentence("; ".join(f"{word} after {in_layers(layers[word])}" for word in worst))]


def _changed(series: Series, numbered: Sequence[int]) -> str:
    first, last = (count(series.looks[numbered[place]].step) for place in (0, -1))
    if len(numbered) == 1:
        return f"There is one measurement, at step {first}, so changes are unknown."
    over = f"in {plural(len(numbered), 'measurement')} from step {first} to step {last}"
    if not has_intervals(series.looks[numbered[-1]].values):
        return f"Changes {over} are not tested, because this needs three different texts."
    if not series.changes:
        return f"No layer changed significantly {over}."
    many = len(series.changes)
    more = f" (the {MOST_CHANGES} largest first)" if many > MOST_CHANGES else ""
    return f"{plural(many, 'significant change')} {over}{more}:"


def _without_numbers(looks: Sequence[Look]) -> list[str]:
    """Return at which steps measurements are missing, and why."""
    sentences = []
    for status, run in groupby(looks, key=lambda look: look.status):
        if status != MEASURED:
            steps = [count(look.step) for look in run]
            at = f"At step {steps[0]}" if len(steps) == 1 else f"From step {steps[0]} to step {steps[-1]}"
            sentences.append(sentence(f"{at}: {status}"))
    return sentences
