"""How each system ended: numbers of its last state, sentences, and the table of all systems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tokendynamics import observables
from tokendynamics.dynamics import Status
from tokendynamics.figures.figure import Section, Table, cells, fold, gather
from tokendynamics.report.simulation._run import ANGLE, Shown, over_states, with_directions
from tokendynamics.theorems import Certificate
from tokendynamics.words import number, plural

_MOST_ROWS = 2000
_FEW = 12
_ENDS_PAIRS = 2**25


@dataclass(frozen=True)
class Ends:
    """Numbers of the state in which each system ended, (system,), NaN where they are not defined.

    Attributes:
        cosine: Mean cosine of two tokens.
        cosine_at_start: The same of the first state kept.
        clusters: Groups of directions; NaN also where the pairs are too many to be measured.
        angle: The largest angle between two tokens, in degrees; likewise.
        distance: The largest distance between two tokens; likewise.
        distance_at_start: The same of the first state kept.
        norm: The median norm of a token.
        norm_at_start: The same of the first state kept.
        largest_norm: Of a token.
        finite: Whether the state is.
    """

    cosine: np.ndarray
    cosine_at_start: np.ndarray
    clusters: np.ndarray
    angle: np.ndarray
    distance: np.ndarray
    distance_at_start: np.ndarray
    norm: np.ndarray
    norm_at_start: np.ndarray
    largest_norm: np.ndarray
    finite: np.ndarray


def ends(run: Shown) -> Ends:
    """Measure the last state of every system, and the first.

    Args:
        run: What is shown; all its systems are measured.
    """
    widest = partial(observables.diameter, geometry="sphere")
    finite, size = torch.isfinite(run.last).all(dim=-1).all(dim=-1).numpy(), run.tokens**2
    begun = np.ones_like(finite)
    directed, directed_then = (with_directions(states) & (run.tokens > 1) for states in (run.last, run.first))
    pairs = run.tokens > 1 and run.many * size <= _ENDS_PAIRS
    rows = run.tokens * run.dim
    return Ends(
        cosine=over_states(run.last, directed, observables.mean_pair_cosine, rows),
        cosine_at_start=over_states(run.first, directed_then, observables.mean_pair_cosine, rows),
        clusters=over_states(run.last, directed & pairs, lambda x: observables.clusters(x, ANGLE), size),
        angle=np.degrees(over_states(run.last, directed & pairs, widest, size)),
        distance=over_states(run.last, finite & pairs, observables.diameter, size),
        distance_at_start=over_states(run.first, begun & pairs, observables.diameter, size),
        norm=over_states(run.last, finite, lambda x: observables.norms(x).quantile(0.5, dim=-1), rows),
        norm_at_start=over_states(run.first, begun, lambda x: observables.norms(x).quantile(0.5, dim=-1), rows),
        largest_norm=over_states(run.last, finite, lambda x: observables.norms(x).amax(dim=-1), rows),
        finite=finite,
    )


def section(run: Shown, endings: Ends) -> Section:
    """Return the section: how and where each system ended; those that ended alike are one line with their ranges."""
    question = "How did the run end?" if run.many == 1 else "How did each system end?"
    columns: dict[str, np.ndarray] = {"End time": run.end_times}
    if run.tokens > 1:
        columns |= {"Mean cosine": endings.cosine, f"Clusters at {math.degrees(ANGLE):g}°": endings.clusters}
        columns |= {"Largest angle (°)": endings.angle}
        columns |= {} if run.on_surface else {"Largest distance": endings.distance}
    columns |= {} if run.on_surface else {"Median norm": endings.norm, "Largest norm": endings.largest_norm}
    shown = range(min(run.many, _MOST_ROWS))
    rows = tuple(
        cells([system, str(run.status[system]), *(float(values[system]) for values in columns.values())])
        for system in shown
    )
    rest = "" if run.many <= _MOST_ROWS else f", the first {_MOST_ROWS:,} of {run.many:,}"
    table = Table(f"How and where each system ended{rest}", ("System", "Status", *columns), rows)
    if run.many <= _FEW:
        systems_table = table
    else:
        folded = fold(table, [1])
        systems_table = folded if len(folded.shown) <= _FEW else gather(table, [1])
    return Section("systems", question, tables=(systems_table,))


_MOST_COUNTS = 6


def findings(run: Shown, endings: Ends, certificates: Sequence[Certificate] | None) -> list[str]:
    """Return sentences on how the run ended, where the tokens are then, and which statements of the theory held.

    Args:
        run: What is shown.
        endings: Its ends.
        certificates: What held of the statements that apply; None where none was asked.
    """
    parts = []
    for status, count in run.statuses.most_common():
        at = run.end_times[run.status == status]
        low, high = number(float(at.min()), 4), number(float(at.max()), 4)
        when = f"t = {low}" if low == high else f"t = {low} to {high}"
        parts.append((count, status, when))
    if len(parts) == 1:
        count, status, when = parts[0]
        whose = "The run" if run.many == 1 else f"All {run.many:,} systems" if run.many > 2 else "Both systems"
        how_it_ended = f"{whose} {_phrase(status)} at {when}."
    else:
        listed = "; ".join(f"{count:,} {_phrase(status)} at {when}" for count, status, when in parts)
        how_it_ended = f"Of {run.many:,} systems, {listed}."
    known = np.isfinite(endings.distance) & np.isfinite(endings.distance_at_start)
    if run.on_surface or not known.any():
        distances = []
    else:
        end, start = _typical(endings.distance[known]), _typical(endings.distance_at_start[known])
        distances = [f"The largest distance between two tokens is {end} at the end and was {start} at the start."]
    sentences = [how_it_ended, *_directions(run, endings), *_lengths(run, endings), *distances]
    broken = int((~endings.finite).sum())
    if broken:
        sentences.append(f"{_how_many(broken, run.many)} ended in a non-finite state, whose measures are undefined.")
    if certificates is not None:
        if not certificates:
            certified = "No statement of the theory applies."
        else:
            counts = Counter(one.outcome for one in certificates)
            words: dict[str, str] = {"holds": "held", "fails": "failed", "undecided": "undecided"}
            outcomes = ", ".join(f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome])
            names = ", ".join(one.statement for one in certificates if one.outcome == "fails")
            many = len(certificates)
            apply = "applies" if many == 1 else "apply"
            certified = (
                f"{plural(many, 'statement')} of the theory {apply}: {outcomes}{f' ({names})' if names else ''}."
            )
        sentences.append(certified)
    return sentences


_PHRASES: dict[str, str] = {
    Status.HORIZON: "reached the end of the time interval",
    Status.CONSENSUS: "reached consensus",
    Status.DIVERGED: "diverged",
    Status.EQUILIBRIUM: "came to rest",
    Status.BUDGET: "spent the step budget",
    Status.UNDERFLOW: "stopped because the step size underflowed",
    Status.RADIUS: "stopped because the radius of a token reached zero",
    Status.NOT_FINITE: "stopped because the velocity was not finite",
    Status.INTERRUPTED: "was interrupted",
}


def _phrase(status: str) -> str:
    return _PHRASES.get(status, f"ended as “{status}”")


def _how_many(count: int, many: int) -> str:
    if many == 1:
        return "The run"
    return f"{plural(count, 'system')} of {many:,}"


def _directions(run: Shown, endings: Ends) -> list[str]:
    if run.tokens == 1:
        return ["With one token there is no distance to measure."]
    known = np.isfinite(endings.cosine)
    sentences = []
    if (endings.finite & ~known).any():
        missing = int((endings.finite & ~known).sum())
        sentences.append(f"{_how_many(missing, run.many)} ended with a token at zero, which has no direction.")
    if not known.any():
        return sentences
    if np.isfinite(endings.clusters).any():
        sentences.append(_clusters(run, endings))
    both = known & np.isfinite(endings.cosine_at_start)
    end = _typical(endings.cosine[known], _cosine)
    start = (
        f"; it was {_typical(endings.cosine_at_start[both], _cosine)} at t = {number(float(run.times[0]))}"
        if both.any()
        else ""
    )
    whose = "The mean cosine of two tokens" if run.many == 1 else "The mean cosine of two tokens of a system"
    sentences.append(f"{whose} is {end} at the end{start}.")
    return sentences


def _cosine(value: float) -> str:
    """Write a cosine; one near 1 by its difference from 1.

    >>> _cosine(0.5), _cosine(1.0), _cosine(1 - 2e-7)
    ('0.5', '1', '1 − 2 × 10⁻⁷')
    """
    return f"1 − {number(1 - value)}" if 0 < 1 - value < 5e-4 else number(value)


def _typical(values: np.ndarray, write: Callable[[float], str] = number) -> str:
    """Return one number, or the median of several with their range."""
    if len(values) == 1:
        return write(float(values[0]))
    low, middle, high = (write(float(value)) for value in (values.min(), np.median(values), values.max()))
    return middle if low == high else f"{middle} (median; range {low} to {high})"


def _clusters(run: Shown, endings: Ends) -> str:
    known = np.isfinite(endings.clusters)
    counts = Counter(endings.clusters[known].astype(int).tolist())
    linked = f"(tokens at most {math.degrees(ANGLE):g}° apart are linked)"
    widest = number(float(np.nanmax(endings.angle)))
    if run.many == 1:
        (count,) = counts
        return (
            f"At the end the directions of the {run.tokens:,} tokens form {plural(count, 'cluster')} {linked}; the "
            f"largest angle between two of them is {widest}°."
        )
    if len(counts) > _MOST_COUNTS:
        spelt = f"{_typical(endings.clusters[known])} clusters"
    else:
        spelt = ", ".join(
            f"{plural(count, 'cluster')} in {plural(many, 'system')}" for count, many in sorted(counts.items())
        )
    return (
        f"At the end the directions of a system’s tokens form {spelt} {linked}; the largest angle between two tokens "
        f"of a system is {widest}°."
    )


def _lengths(run: Shown, endings: Ends) -> list[str]:
    """Return how the norms changed, in free space."""
    if run.on_surface or not endings.finite.any():
        return []
    whose = "norm of the token" if run.tokens == 1 else "median norm of the tokens"
    end, start = (
        _typical(endings.norm[endings.finite]),
        _typical(endings.norm_at_start[np.isfinite(endings.norm_at_start)]),
    )
    largest = (
        ""
        if run.tokens == 1 and run.many == 1
        else f"; the largest of all is {number(float(np.nanmax(endings.largest_norm)))}"
    )
    return [f"The {whose} is {end} at the end and was {start} at the start{largest}."]
