"""The observables that a page draws over time, each with its formula and where it is defined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics import observables
from tokendynamics.report.simulation._shown import Shown, with_directions

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
