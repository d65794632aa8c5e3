"""What is measured of a run: which systems and times, observables over time, and the end of each system."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics import observables
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.figures.figure import Table, cells, fold, gather
from tokendynamics.figures.lines import evenly
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.observables import norms

MOST_TIMES, FEWEST_TIMES = 201, 41
_FULL_TIMES = 81
_ENOUGH_SYSTEMS = 50
_SHOWN_PAIRS = 2**24
"""Pairs of tokens that are measured over time, in all: about two seconds of work."""


@dataclass(frozen=True)
class Shown:
    """A run as its page sees it.

    Attributes:
        states: (system, time, token, dim), float64: of the chosen systems at the chosen times.
        reached: (system, time): whether the system's run got as far, and its numbers are finite.
        times: (time,), the chosen ones.
        systems: Which systems were chosen, counted from 0.
        last: (all systems, token, dim): where every system ended.
        first: (all systems, token, dim): the first state of each that was kept.
        status: (all systems,), a word for each.
        end_times: (all systems,).
        kept: How many times the run keeps.
        horizon: The last of them.
        flow: What was simulated; None where it is not known.
        engine: Which engine did the work.
    """

    states: Tensor
    reached: np.ndarray
    times: np.ndarray
    systems: np.ndarray
    last: Tensor
    first: Tensor
    status: np.ndarray
    end_times: np.ndarray
    kept: int
    horizon: float
    flow: Flow | None
    engine: str

    @property
    def many(self) -> int:
        """How many systems the run has."""
        return len(self.status)

    @property
    def tokens(self) -> int:
        """Tokens of each system."""
        return self.states.shape[-2]

    @property
    def dim(self) -> int:
        """Features of each token."""
        return self.states.shape[-1]

    @property
    def space(self) -> str:
        """The name of the space; empty where it is not known."""
        return "" if self.flow is None else self.flow.space.name

    @property
    def on_surface(self) -> bool:
        """Whether tokens are held to a sphere or an ellipsoid, so that their length says nothing."""
        return self.flow is not None and self.flow.geometry.quadratic

    @property
    def drawn(self) -> np.ndarray:
        """Which times have a place on an axis: up to the end of the last run, and above 0 where it is logarithmic."""
        some = self.reached.any(axis=0)
        return np.flatnonzero(some & (self.times > 0) if self.log_times else some)

    @property
    def statuses(self) -> Counter[str]:
        """How many systems ended with each status."""
        return Counter(self.status.tolist())

    @property
    def pairs_measured(self) -> bool:
        """Whether there are pairs of tokens, and few enough to be measured within seconds."""
        return self.tokens > 1 and self.tokens**2 * min(len(self.times), FEWEST_TIMES) <= 4 * _SHOWN_PAIRS

    @property
    def log_times(self) -> bool:
        """Whether the times are spread over decades, so that a linear axis would crowd most of them at its start."""
        later = self.times[self.times > 0]
        return len(later) > 2 and self.times[0] >= 0 and bool(np.median(later) < 0.1 * later[-1])


def shown(trajectory: Trajectory, system: int = 0) -> Shown:
    """Choose what a page shows of a run: everything, or systems and times evenly by their number.

    Args:
        trajectory: From `tokendynamics.simulate`.
        system: One that is chosen in any case.

    Raises:
        ArgumentValueError: There is no such system.
    """
    tensor = trajectory.tensor.detach().cpu()
    times, tokens, dim = tensor.shape[-3:]
    many = math.prod(tensor.shape[:-3])
    if not 0 <= system < many:
        raise ArgumentValueError(expected("system", f"a system from 0 to {many - 1}", system))
    states = tensor.reshape(many, times, tokens, dim)
    systems, moments = _chosen(many, times, tokens)
    systems = np.union1d(systems, [system])
    part = states[systems][:, moments].double()
    finite = torch.isfinite(part).all(dim=-1).all(dim=-1).numpy()
    return Shown(
        states=part,
        reached=trajectory.reached.reshape(many, times)[systems][:, moments] & finite,
        times=trajectory.times[moments],
        systems=systems,
        last=states[:, -1].double(),
        first=states[:, 0].double(),
        status=np.array([str(word) for word in trajectory.status.reshape(many)]),
        end_times=trajectory.end_times.reshape(many),
        kept=times,
        horizon=float(trajectory.times[-1]),
        flow=trajectory.flow,
        engine=trajectory.engine,
    )


def _chosen(many: int, times: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose systems and times, the first and the last among them, so that the pairs of tokens stay within a budget."""
    room = _SHOWN_PAIRS // tokens**2
    most = MOST_TIMES if min(many, _ENOUGH_SYSTEMS) * MOST_TIMES <= room else _FULL_TIMES
    moments = max(FEWEST_TIMES, min(most, room // min(many, _ENOUGH_SYSTEMS)))
    moments = min(moments, times)
    return evenly(many, max(1, min(room // moments, 4 * _ENOUGH_SYSTEMS))), evenly(times, moments)


def with_directions(states: Tensor) -> np.ndarray:
    """Tell which states (…, token, dim) are finite with no token at zero, so that every token has a direction."""
    finite = torch.isfinite(states).all(dim=-1).all(dim=-1)
    sizes = norms(torch.where(finite[..., None, None], states, 1.0))
    return (finite & (sizes > 0).all(dim=-1)).numpy()


ANGLE = math.radians(5)
"""Tokens at most this far apart are linked to one cluster, as in the figures of `positional`."""

_PIECE = 2**21
_SPREAD = math.log(1e3)
"""From this ratio of its sizes on the potential is drawn by its logarithm."""


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


def measures(run: Shown) -> list[Measure]:
    """Return every observable that is defined somewhere in the run.

    Args:
        run: What is shown of it.
    """
    found = [*_of_pairs(run), *_of_lengths(run), *_of_energy(run)]
    return [one for one in found if np.isfinite(one.values).any()]


def over_states(states: Tensor, where: np.ndarray, function: Callable[[Tensor], Tensor], size: int) -> np.ndarray:
    """Return a function of each chosen state, NaN elsewhere, a few states at a time.

    Args:
        states: (system, time, token, dim), or without the axis of time.
        where: Which states, of their leading shape.
        function: Of states (piece, token, dim).
        size: What one state costs, in numbers.
    """
    values = np.full(where.shape, np.nan)
    at = torch.from_numpy(where)
    parts = [function(piece).double() for piece in _pieces(states[at], size)]
    if parts:
        values[where] = torch.cat(parts).numpy()
    return values


def _pieces(states: Tensor, size: int) -> Iterator[Tensor]:
    yield from states.split(max(1, _PIECE // size)) if len(states) else ()


def _of_pairs(run: Shown) -> list[Measure]:
    if run.tokens < 2:
        return []
    directed = run.reached & with_directions(run.states)
    rows, names = run.tokens * run.dim, tuple(int(system) for system in run.systems)
    cosines = over_states(run.states, directed, observables.mean_pair_cosine, rows)
    consensus = over_states(run.states, directed, observables.consensus, rows)
    found = [
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
    return found + (_of_distances(run, directed, names) if run.pairs_measured else [])


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
        what = "The Euclidean norm |xᵢ| of each token."
    else:
        values, lines, names = np.median(sizes, axis=-1), "system", tuple(int(system) for system in run.systems)
        what = "The Euclidean norm |xᵢ|, the median over the tokens of a system."
    question = "Do they grow?" if run.tokens > 1 or run.many > 1 else "Does it grow?"
    return [Measure("norms", question, "Norm of a token", what, values, lines, names)]


def _of_energy(run: Shown) -> list[Measure]:
    """Return the potential of one head with a qk that stays: undefined for several or a changing one."""
    flow = run.flow
    attends = None if flow is None else flow.attention
    if attends is None or attends.heads != 1 or not attends.qk.constant or attends.positions is not None:
        return []
    if attends.weights != "softmax" or not (run.tokens == 1 or run.pairs_measured):
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


MOST_ROWS = 2000
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
    finite, size = torch.isfinite(run.last).all(dim=-1).all(dim=-1).numpy(), run.tokens**2
    begun = np.ones_like(finite)
    directed, directed_then = (with_directions(states) & (run.tokens > 1) for states in (run.last, run.first))
    pairs = run.tokens > 1 and run.many * size <= _ENDS_PAIRS
    rows = run.tokens * run.dim
    return Ends(
        cosine=over_states(run.last, directed, observables.mean_pair_cosine, rows),
        cosine_at_start=over_states(run.first, directed_then, observables.mean_pair_cosine, rows),
        clusters=over_states(run.last, directed & pairs, lambda x: observables.clusters(x, ANGLE), size),
        angle=np.degrees(over_states(run.last, directed & pairs, _widest, size)),
        distance=over_states(run.last, finite & pairs, observables.diameter, size),
        distance_at_start=over_states(run.first, begun & pairs, observables.diameter, size),
        norm=over_states(run.last, finite, lambda x: observables.norms(x).quantile(0.5, dim=-1), rows),
        norm_at_start=over_states(run.first, begun, lambda x: observables.norms(x).quantile(0.5, dim=-1), rows),
        largest_norm=over_states(run.last, finite, lambda x: observables.norms(x).amax(dim=-1), rows),
        finite=finite,
    )


def _widest(states: torch.Tensor) -> torch.Tensor:
    return observables.diameter(states, geometry="sphere")


def systems_table(run: Shown, found: Ends) -> Table:
    """Return how and where each system ended; systems that ended alike are one line with the range of their numbers.

    Args:
        run: What is shown.
        found: Its ends.
    """
    columns: dict[str, np.ndarray] = {"End time": run.end_times}
    if run.tokens > 1:
        columns |= {"Mean cosine": found.cosine, f"Clusters at {math.degrees(ANGLE):g}°": found.clusters}
        columns |= {"Largest angle (°)": found.angle}
        columns |= {} if run.on_surface else {"Largest distance": found.distance}
    columns |= {} if run.on_surface else {"Median norm": found.norm, "Largest norm": found.largest_norm}
    shown = range(min(run.many, MOST_ROWS))
    rows = tuple(
        cells([system, str(run.status[system]), *(float(each[system]) for each in columns.values())])
        for system in shown
    )
    rest = "" if run.many <= MOST_ROWS else f", the first {MOST_ROWS:,} of {run.many:,}"
    table = Table(f"How and where each system ended{rest}", ("System", "Status", *columns), rows)
    if run.many <= _FEW:
        return table
    folded = fold(table, [1])
    return folded if len(folded.shown) <= _FEW else gather(table, [1])
