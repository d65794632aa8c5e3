"""What is said of a training that was watched, before its figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from tokendynamics.diagnosis._layer_states import _SEVERITY
from tokendynamics.diagnosis._prompt_shares import CONFIDENCE
from tokendynamics.training.monitor._changes import has_intervals
from tokendynamics.training.monitor._looks import MEASURED, Look
from tokendynamics.training.monitor._series import Series
from tokendynamics.words import count, estimate, fixed, plural, ranges, sentence

MOST_CHANGES = 8
"""Changes that stand before the figures, the largest ones; all others follow on demand."""


def answer(series: Series) -> str:
    """Return the state after the last layer by the measures of the last look alone, or why there is none.

    Args:
        series: What was measured.
    """
    if not series.looks:
        return "Nothing was measured"
    return series.states[-1][-1].capitalize() if series.states[-1] else series.status.capitalize()


def findings(series: Series) -> list[str]:
    """Return sentences on the state at the last look, on what changed, and on looks without numbers.

    Args:
        series: What was measured.
    """
    numbered = _numbered(series)
    ended = [_ended(series, numbered), *_where(series, numbered), _changed(series, numbered)] if numbered else []
    return [*ended, *lines(series)[0], *_without_numbers(series.looks)]


def lines(series: Series) -> tuple[list[str], list[str]]:
    """Return the lines that the log has on changes of layers, as sentences: the largest ones, and the others.

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
    known = (
        f"κ' {estimate(value, last.values['consensus_relative_interval'][-1], CONFIDENCE)}"
        if np.isfinite(value)
        else ""
    )
    then = f"{fixed(float(first.values['consensus_relative'][-1]))} at step {count(first.step)}"
    numbers = ", ".join(each for each in (known, then if known and first is not last else "") if each)
    texts = plural(len(series.texts), "text")
    if not has_intervals(last.values):
        return (
            f"At step {count(last.step)} the state after the last layer is undetermined because a state needs three "
            f"different texts" + (f": {numbers}" if numbers else "") + f", on {texts}."
        )
    return (
        f"At step {count(last.step)} the state after the last layer is {state}"
        + (f": {numbers}" if numbers else "")
        + f", on {texts}."
    )


def _where(series: Series, numbered: Sequence[int]) -> list[str]:
    """Say which layers are in which state at the end, the worst first."""
    states = series.states[numbered[-1]]
    if len(set(states)) == 1:
        return [f"It is the same after each of the {len(states)} layers."] if len(states) > 1 else []
    found = {word: [layer for layer, each in enumerate(states, start=1) if each == word] for word in set(states)}
    worst = sorted(found, key=lambda word: (-_SEVERITY[word], found[word]))
    told = [f"{word} after {'layer' if len(found[word]) == 1 else 'layers'} {ranges(found[word])}" for word in worst]
    return [sentence("; ".join(told))]


def _changed(series: Series, numbered: Sequence[int]) -> str:
    first, last = (count(series.looks[numbered[place]].step) for place in (0, -1))
    if len(numbered) == 1:
        return f"There is one look with numbers, at step {first}: nothing can be said of changes."
    over = f"in {plural(len(numbered), 'look')} from step {first} to step {last}"
    if not has_intervals(series.looks[numbered[-1]].values):
        return f"Changes {over} are not tested: this needs three different texts."
    if not series.changes:
        return f"No layer changed beyond the intervals of its measures {over}."
    many = len(series.changes)
    more = f", of which the {MOST_CHANGES} largest follow" if many > MOST_CHANGES else ""
    return f"There {'was one change' if many == 1 else f'were {many} changes'} {over}{more}:"


def _without_numbers(looks: Sequence[Look]) -> list[str]:
    """Say at which looks there are no numbers, and why."""
    said = []
    for status, run in groupby(looks, key=lambda look: look.status):
        if status != MEASURED:
            steps = [count(look.step) for look in run]
            at = f"At step {steps[0]}" if len(steps) == 1 else f"From step {steps[0]} to step {steps[-1]}"
            said.append(sentence(f"{at} there are no numbers: {status}"))
    return said
