"""The first sentences of a simulation's page, each with what was measured for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from tokendynamics.report.simulation._ends import Ends
from tokendynamics.report.simulation._measures import ANGLE
from tokendynamics.report.simulation._shown import Shown
from tokendynamics.theorems import Certificate
from tokendynamics.words import number, plural

_SPACES = {"free": "in free space", "sphere": "on the unit sphere", "ellipsoid": "on an ellipsoid"}
_MOST_COUNTS = 6


def shape(run: Shown) -> str:
    """Say what was simulated.

    Args:
        run: What is shown.
    """
    what = f"{plural(run.tokens, 'token')} of dim {run.dim:,}"
    what = what if run.many == 1 else f"{plural(run.many, 'system')} of {what} each"
    return f"{what}{_moved_by(run)}"


def _moved_by(run: Shown) -> str:
    flow = run.flow
    if flow is None:
        return ", under a flow that the file does not hold (a function of the user’s)"
    where = _SPACES.get(run.space, f"in the space {run.space!r}")
    attends = flow.attention
    mask = "causal" if attends.causal else "full"
    linear = " with linear weights" if attends.weights == "linear" else ""
    positions = "" if attends.positions is None else f", with {type(attends.positions).__name__}"
    changing = "" if attends.constant else ", its matrices changing with time"
    return f" {where}, under {plural(flow.heads, 'head')} of {mask} attention{linear}{positions}{changing}"


def findings(run: Shown, found: Ends, certificates: Sequence[Certificate] | None) -> list[str]:
    """Return sentences on how the run ended, where the tokens are then, and what the theory has to say.

    Args:
        run: What is shown.
        found: Its ends.
        certificates: What held of the statements that apply; None where none was asked.
    """
    said = [_how_it_ended(run), *_directions(run, found), *_lengths(run, found), *_distances(run, found)]
    broken = int((~found.finite).sum())
    if broken:
        said.append(f"{_some(broken, run.many)} ended in a state that is not finite; nothing is said of where.")
    if certificates is not None:
        said.append(_certified(certificates))
    return said


def _how_it_ended(run: Shown) -> str:
    """Say how all systems ended, by status."""
    parts = []
    for status, count in run.statuses.most_common():
        at = run.end_times[run.status == status]
        low, high = number(float(at.min()), 4), number(float(at.max()), 4)
        when = f"t = {low}" if low == high else f"t = {low} to {high}"
        parts.append((count, status, when))
    if len(parts) == 1:
        count, status, when = parts[0]
        whose = "The run" if run.many == 1 else f"All {run.many:,} systems" if run.many > 2 else "Both systems"
        return f"{whose} ended as “{status}”, at {when}."
    listed = "; ".join(f"{count:,} ended as “{status}”, at {when}" for count, status, when in parts)
    return f"Of {run.many:,} systems {listed}."


def _some(count: int, many: int) -> str:
    if many == 1:
        return "The run"
    return f"{plural(count, 'system')} of {many:,}"


def _directions(run: Shown, found: Ends) -> list[str]:
    if run.tokens == 1:
        return ["There is one token: nothing to compare it with."]
    known = np.isfinite(found.cosine)
    said = []
    if (found.finite & ~known).any():
        missing = int((found.finite & ~known).sum())
        said.append(f"{_some(missing, run.many)} ended with a token at zero, which has no direction.")
    if not known.any():
        return said
    if np.isfinite(found.clusters).any():
        said.append(_clusters(run, found))
    both = known & np.isfinite(found.cosine_at_start)
    end = _typical(found.cosine[known], _cosine)
    start = (
        f"; it was {_typical(found.cosine_at_start[both], _cosine)} at t = {number(float(run.times[0]))}"
        if both.any()
        else ""
    )
    whose = "The mean cosine of two tokens" if run.many == 1 else "The mean cosine of two tokens of a system"
    said.append(f"{whose} is {end} at the end{start}.")
    return said


def _cosine(value: float) -> str:
    """Write a cosine; one that is nearly 1 by what is missing, for it is not 1.

    >>> _cosine(0.5), _cosine(1.0), _cosine(1 - 2e-7)
    ('0.5', '1', '1 − 2 × 10⁻⁷')
    """
    return f"1 − {number(1 - value)}" if 0 < 1 - value < 5e-4 else number(value)


def _typical(values: np.ndarray, write: Callable[[float], str] = number) -> str:
    """Return one number, or the median of several with their range."""
    if len(values) == 1:
        return write(float(values[0]))
    low, middle, high = (write(float(each)) for each in (values.min(), np.median(values), values.max()))
    return middle if low == high else f"{middle} in the median ({low} to {high})"


def _clusters(run: Shown, found: Ends) -> str:
    known = np.isfinite(found.clusters)
    counts = Counter(found.clusters[known].astype(int).tolist())
    linked = f"(tokens at most {math.degrees(ANGLE):g}° apart are linked)"
    widest = number(float(np.nanmax(found.angle)))
    if run.many == 1:
        (count,) = counts
        return (
            f"At the end the directions of the {run.tokens:,} tokens form {plural(count, 'cluster')} {linked}; the "
            f"largest angle between two of them is {widest}°."
        )
    if len(counts) > _MOST_COUNTS:
        spelt = f"{_typical(found.clusters[known])} clusters"
    else:
        spelt = ", ".join(
            f"{plural(count, 'cluster')} in {plural(many, 'system')}" for count, many in sorted(counts.items())
        )
    return (
        f"At the end the directions of a system’s tokens form {spelt} {linked}; the largest angle in any is {widest}°."
    )


def _lengths(run: Shown, found: Ends) -> list[str]:
    """Say what became of the norms, where tokens are free to grow."""
    if run.on_surface or not found.finite.any():
        return []
    whose = "norm of the token" if run.tokens == 1 else "median norm of the tokens"
    end, start = _typical(found.norm[found.finite]), _typical(found.norm_at_start[np.isfinite(found.norm_at_start)])
    largest = (
        ""
        if run.tokens == 1 and run.many == 1
        else f"; the largest of all is {number(float(np.nanmax(found.largest_norm)))}"
    )
    return [f"The {whose} is {end} at the end and was {start} at the start{largest}."]


def _distances(run: Shown, found: Ends) -> list[str]:
    known = np.isfinite(found.distance) & np.isfinite(found.distance_at_start)
    if run.on_surface or not known.any():
        return []
    end, start = _typical(found.distance[known]), _typical(found.distance_at_start[known])
    return [f"The largest distance between two tokens is {end} at the end and was {start} at the start."]


def _certified(certificates: Sequence[Certificate]) -> str:
    if not certificates:
        return "No statement of the theory applies: there is nothing to certify."
    counts = Counter(one.outcome for one in certificates)
    words: dict[str, str] = {"holds": "held", "fails": "failed", "undecided": "undecided"}
    listed = ", ".join(f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome])
    names = ", ".join(one.statement for one in certificates if one.outcome == "fails")
    many = len(certificates)
    apply = "applies" if many == 1 else "apply"
    return f"{plural(many, 'statement')} of the theory {apply}: {listed}{f' ({names})' if names else ''}."


def chosen(run: Shown) -> str:
    """Say which systems and times the curves are of; empty where they are of all.

    Args:
        run: What is shown.
    """
    parts = []
    if len(run.systems) < run.many:
        parts.append(f"{len(run.systems)} of {run.many:,} systems")
    if len(run.times) < run.kept:
        parts.append(f"{len(run.times)} of {run.kept:,} times")
    rest = " What is said above is of all." if len(run.systems) < run.many else ""
    return f"The curves are of {' at '.join(parts)}, evenly by number.{rest}" if parts else ""
