"""What changes over time: the observables of a run, and a figure for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from tokendynamics import observables
from tokendynamics.figures.axes import Column
from tokendynamics.figures.curves import LOOKS, Curve, Curves
from tokendynamics.figures.figure import Figure, Section, Table, cells
from tokendynamics.figures.palette import BLUE
from tokendynamics.report.simulation._run import ANGLE, Shown, clock, over_states, with_directions
from tokendynamics.words import number, plural

_SPREAD = math.log(1e3)
"""From this ratio of its sizes on the potential is drawn by its logarithm."""

_OVER_TIME_HEIGHT = 250
_DECADES = 100.0
"""From this ratio of largest to smallest on, the axis is logarithmic."""

_CONSTANT = 1e-9
"""What varies by less than this share of its size is said to stay: a curve of it would show rounding."""


def section(run: Shown) -> Section:
    """Return the section: a figure for each observable that is defined somewhere in the run."""
    one_time = len(run.times) < 2
    measures = [] if one_time else [*_of_pairs(run), *_of_lengths(run), *_of_energy(run)]
    figures = tuple(_over_time(run, measure) for measure in measures if np.isfinite(measure.values).any())
    single = "Only one time is stored, so there are no curves." if one_time else ""
    not_paired = run.tokens > 1 and not run.pairs_measured
    fewer = []
    if len(run.systems) < run.many:
        fewer.append(f"{len(run.systems)} of {run.many:,} systems")
    if len(run.times) < run.kept:
        fewer.append(f"{len(run.times)} of {run.kept:,} times")
    rest = " The statements above cover all systems." if len(run.systems) < run.many else ""
    return Section(
        "time",
        "What changes over time?",
        tuple(filter(None, (f"The curves show {' at '.join(fewer)}, evenly spaced.{rest}" if fewer else "", single))),
        figures=figures,
        notes=(f"Distances and clusters of {run.tokens:,} tokens are not measured over time.",) if not_paired else (),
    )


@dataclass(frozen=True)
class Measure:
    """One observable over time.

    Attributes:
        ident: For links.
        question: What it answers.
        axis: What it is, with its unit.
        caption: Its formula in words.
        values: (line, time), NaN where it is not defined or the system had ended.
        lines: What the lines are: "system" or "token".
        names: The number of each line, as it is counted elsewhere.
        whole: Whether it counts something.
    """

    ident: str
    question: str
    axis: str
    caption: str
    values: np.ndarray
    lines: str
    names: tuple[int, ...]
    whole: bool = False


def _of_pairs(run: Shown) -> list[Measure]:
    if run.tokens < 2:
        return []
    directed = run.reached & with_directions(run.states)
    rows, names = run.tokens * run.dim, tuple(int(system) for system in run.systems)
    cosines = over_states(run.states, directed, observables.mean_pair_cosine, rows)
    consensus = over_states(run.states, directed, observables.consensus, rows)
    measures = [
        Measure(
            "cosine", "Do the tokens turn one way?", "Mean cosine of two tokens",
            "The mean of cos(xᵢ, xⱼ) over all pairs of different tokens: 1 where all point one way, near 0 where their "
            "directions have nothing in common.",
            cosines, "system", names,
        ),
        Measure(
            "consensus", "How far are they from the first token’s line?", "Consensus E",
            "E is the mean over tokens of 1 − |cos(x₁, xᵢ)| (asymptotic (25)): 0 where all tokens lie on the line of "
            "the first one, also on its far side.",
            consensus, "system", names,
        ),
    ]  # fmt: skip
    return measures + (_of_distances(run, directed, names) if run.pairs_measured else [])


def _of_distances(run: Shown, directed: np.ndarray, names: tuple[int, ...]) -> list[Measure]:
    size, sphere = run.tokens**2, run.space == "sphere"
    geometry, where = ("sphere", directed) if sphere else ("euclidean", run.reached)
    diameters = over_states(run.states, where, lambda x: observables.diameter(x, geometry=geometry), size)
    counts = over_states(run.states, directed, lambda x: observables.clusters(x, ANGLE), size)
    what = "angle between two tokens, in radians" if sphere else "distance |xᵢ − xⱼ| of two tokens"
    return [
        Measure(
            "diameter", "How far apart are they?", "Largest angle (rad)" if sphere else "Largest distance",
            f"The largest {what}: 0 where all coincide.",
            diameters, "system", names,
        ),
        Measure(
            "clusters", "In how many groups are they?", "Clusters of directions",
            f"Tokens at most {math.degrees(ANGLE):g}° apart are linked, and so are those that a chain of links joins "
            "(single linkage): a long chain is one cluster, too.",
            counts, "system", names, whole=True,
        ),
    ]  # fmt: skip


def _of_lengths(run: Shown) -> list[Measure]:
    """Return the norms: of each token of one system, or the median of each system; on a surface they say nothing."""
    if run.on_surface:
        return []
    safe = torch.where(torch.from_numpy(run.reached)[..., None, None], run.states, 0.0)
    sizes = np.where(run.reached[..., None], observables.norms(safe).numpy(), np.nan)
    if run.many == 1:
        values, lines, names = sizes[0].T, "token", tuple(range(1, run.tokens + 1))
        what = f"The Euclidean norm |{run.letter}ᵢ| of each token."
    else:
        values, lines, names = np.median(sizes, axis=-1), "system", tuple(int(system) for system in run.systems)
        what = f"The Euclidean norm |{run.letter}ᵢ|, the median over the tokens of a system."
    question = "Do they grow?" if run.tokens > 1 or run.many > 1 else "Does it grow?"
    return [Measure("norms", question, "Norm of a token", what, values, lines, names)]


def _of_energy(run: Shown) -> list[Measure]:
    """Return the potential of one head with a qk that stays: undefined for several or a changing one."""
    flow = run.flow
    attends = None if flow is None or run.frame == "rescaled" else flow.attention
    if attends is None or attends.heads != 1 or not attends.qk.constant or attends.positions is not None:
        return []
    if attends.weights in ("linear", "hardmax") or not (run.tokens == 1 or run.pairs_measured):
        return []
    form = attends.qk.matrix_at(0.0)[..., 0, :, :].detach().cpu().double()
    values = np.full(run.reached.shape, np.nan)
    for place, system in enumerate(run.systems):
        matrix = form if form.ndim == 2 else form.reshape(-1, *form.shape[-2:])[system]
        # Logits of states that diverge overflow; the sum of exponentials does so long before.
        fits = run.reached[place] & (run.states[place].abs().flatten(start_dim=-2).amax(dim=-1) < 1e100).numpy()
        values[place] = over_states(
            run.states[place], fits, lambda x, qk=matrix: observables.log_potential(x, qk), run.tokens**2
        )
    known = values[np.isfinite(values)]
    plain = known.size > 0 and float(known.max()) < 300 and float(np.ptp(known)) < _SPREAD
    axis = "Potential V" if plain else "log(−V)"
    caption = (
        f"V = −½ Σᵢⱼ exp(xᵢ · qk xⱼ){'' if plain else ', whose logarithm is drawn'}: one head with ov = 1 and a "
        "symmetric positive definite qk, on the ellipsoid of qk, moves the tokens down it (asymptotic, theorem 3.1); "
        "other flows need not."
    )
    names = tuple(int(system) for system in run.systems)
    drawn = -np.exp(values) if plain else values
    return [Measure("potential", "What becomes of the energy?", axis, caption, drawn, "system", names)]


def _over_time(run: Shown, measure: Measure) -> Figure:
    """Draw one observable over time, or say in words that it stays as it is."""
    defined = measure.values[np.isfinite(measure.values)]
    low, high = float(defined.min()), float(defined.max())
    table = _over_time_table(run, measure)
    if high - low <= _CONSTANT * max(abs(low), abs(high)):
        why = f"Nothing is drawn: it is {number(low)} at all times, to within rounding. {measure.caption}"
        return Figure(measure.ident, measure.question, why)
    drawn = run.drawn
    log = low >= 0 and high > _DECADES * float(defined[defined > 0].min())
    left_out = " Zeros have no place on the logarithmic axis and are left out." if log and low == 0 else ""
    return Figure(
        measure.ident,
        measure.question,
        f"{measure.caption}{_lines_in_words(measure)}{_early(run, measure)}{left_out}",
        Curves(
            _curves(run, measure, drawn),
            measure.axis + (" (log scale)" if log else ""),
            axis=clock(run),
            height=_OVER_TIME_HEIGHT,
            log=log,
            columns=_columns(run, measure, drawn),
        ),
        table,
        description=f"{measure.axis} over time: {_described(measure)} The table below holds every value drawn.",
    )


def _few(measure: Measure) -> bool:
    return len(measure.values) <= len(LOOKS)


def _summary(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lowest, median and highest of the lines at each time; NaN where undefined."""
    some = np.isfinite(values).any(axis=0)
    summary = np.full((3, values.shape[1]), np.nan)
    summary[:, some] = [f(values[:, some], axis=0) for f in (np.nanmin, np.nanmedian, np.nanmax)]
    return summary[0], summary[1], summary[2]


def _curves(run: Shown, measure: Measure, drawn: np.ndarray) -> list[Curve]:
    x = run.times[drawn].tolist()
    if _few(measure):
        alone = len(measure.values) == 1
        return [
            Curve(
                measure.axis if alone else f"{measure.lines} {name}", x, values[drawn].tolist(), colour, dash=dash,
                stepped=measure.whole,
            )
            for name, values, (colour, dash) in zip(measure.names, measure.values, LOOKS, strict=False)
        ]  # fmt: skip
    low, middle, high = (line[drawn].tolist() for line in _summary(measure.values))
    many = plural(len(measure.values), measure.lines)
    return [Curve(f"median of {many}", x, middle, BLUE, low, high, "lowest to highest", stepped=measure.whole)]


def _columns(run: Shown, measure: Measure, drawn: np.ndarray) -> list[Column]:
    """Return what is said of each time on hover; at most a hundred columns, or they are thinner than a pointer."""
    drawn = drawn[:: max(1, len(drawn) // 100)]
    times = run.times[drawn]
    if len(times) < 2:
        return []
    between = np.sqrt(times[1:] * times[:-1]) if run.log_times else (times[1:] + times[:-1]) / 2
    edges = [float(times[0]), *between.tolist(), float(times[-1])]
    columns = []
    for place, (left, right) in zip(drawn, pairwise(edges), strict=True):
        values = measure.values[:, place]
        known = values[np.isfinite(values)]
        when = f"t = {number(float(run.times[place]), 4)}: "
        if not _few(measure) and known.size:
            low, middle, high = (number(float(value)) for value in (known.min(), np.median(known), known.max()))
            text = f"median {middle}, {low} to {high}"
        elif len(measure.values) == 1:
            text = number(float(values[0]))
        else:
            text = ", ".join(number(float(value)) for value in values) if known.size else "all had ended"
        columns.append((left, right, when + text))
    return columns


def _described(measure: Measure) -> str:
    first, last = (np.flatnonzero(np.isfinite(measure.values).any(axis=0))[place] for place in (0, -1))
    ends = [float(np.nanmedian(measure.values[:, place])) for place in (first, last)]
    of = "" if len(measure.values) == 1 else f" (median of {plural(len(measure.values), measure.lines)})"
    return f"from {number(ends[0])} to {number(ends[1])}{of}."


def _lines_in_words(measure: Measure) -> str:
    if _few(measure):
        return ""
    return f" The line is the median of {plural(len(measure.values), measure.lines)}, the band spans all of them."


def _early(run: Shown, measure: Measure) -> str:
    """Say that a system counts as long as it runs, where some end before the horizon."""
    if run.reached.all():
        return ""
    if _few(measure):
        return " What is drawn ends with the run."
    return (
        " A system counts up to the end of its run: towards the right they become fewer, which alone can move the "
        "median, and the table says how many are left."
    )


def _over_time_table(run: Shown, measure: Measure) -> Table:
    if _few(measure):
        columns = ("Time", *(f"{measure.lines} {name}".capitalize() for name in measure.names))
        columns = ("Time", measure.axis) if len(measure.values) == 1 else columns
        rows = [[float(time), *map(float, values)] for time, values in zip(run.times, measure.values.T, strict=True)]
        return Table(f"{measure.axis} over time", columns, tuple(cells(row) for row in rows))
    low, middle, high = _summary(measure.values)
    counted = np.isfinite(measure.values).sum(axis=0)
    columns = ("Time", "Median", "Lowest", "Highest", f"{measure.lines.capitalize()}s that count")
    numbers = zip(run.times, middle, low, high, strict=True)
    table_rows = [
        cells([*(float(value) for value in row), int(many)]) for row, many in zip(numbers, counted, strict=True)
    ]
    return Table(f"{measure.axis} over time", columns, tuple(table_rows))
