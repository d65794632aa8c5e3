"""A statement of the theory and the paper it stands in: what it supposes, predicts, and requires of a trajectory.

Before "fails" is said, the same systems run again, tighter: what shrinks with the tolerance is the integrator's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Interrupted, Noise, Trajectory, simulate
from tokendynamics.numerics import ArgumentValueError, TokenDynamicsError
from tokendynamics.spaces import Ellipsoid
from tokendynamics.theorems._conditions import approximates_its_flow, combine, largest_error, step_controlled
from tokendynamics.theorems.result import (
    Certificate,
    Check,
    Condition,
    Hypothesis,
    Outcome,
    Prediction,
    Standing,
    Subject,
    counted,
)
from tokendynamics.words import number

_CONJECTURED = "conjectured, not proved: "
_CONJECTURE: dict[Outcome, str] = {
    "holds": "no counterexample to the conjecture: ",
    "fails": "a counterexample to the conjecture: ",
    "undecided": "",
}


@dataclass(frozen=True)
class Paper:
    """A paper in the version whose statements and figures are counted here.

    Attributes:
        key: What it is cited by.
        title: Its title.
        authors: Given and family name of each.
        year: In which that version appeared; None for a source without one.
        arxiv: Its identifier on arXiv, with the version where there are several; None where it has none.
        read: How its statements were read: the paper itself, or what stood for it. What was not read in the paper can
            differ from it in a hypothesis or a constant.
    """

    key: str
    title: str
    authors: tuple[tuple[str, str], ...]
    year: int | None = None
    arxiv: str | None = None
    read: str = "in the paper"

    def __str__(self) -> str:
        """Return a reference in one line.

        >>> print(PAPERS["logical"])
        Evgeniy Shin, Heinrich Matzinger: Is logical analysis ... in the fully connected part? (2025, arXiv:2501.11765)
        """
        printed = [str(part) for part in (self.year, self.arxiv and f"arXiv:{self.arxiv}") if part]
        names = ", ".join(f"{given} {family}" for given, family in self.authors)
        return f"{names}: {self.title}" + (f" ({', '.join(printed)})" if printed else "")


def _sources() -> Iterator[Paper]:
    text = files("tokendynamics.theorems").joinpath("papers.toml").read_text(encoding="utf-8")
    for key, entry in tomllib.loads(text).items():
        yield Paper(key, entry.pop("title"), tuple(map(tuple, entry.pop("authors"))), **entry)


SOURCES: Mapping[str, Paper] = MappingProxyType({paper.key: paper for paper in _sources()})
"""By key: the three papers, and those whose statements are in the atlas."""
PAPERS: Mapping[str, Paper] = MappingProxyType({key: SOURCES[key] for key in ("asymptotic", "logical", "positional")})
"""By key. README.md and CITATION.cff say the same."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One row of the theory, or a claim of your own, which `check` and `certify` take beside the names of the papers'.

    Every file of `statements` exports one as `STATEMENT`; some, its corollaries too.

    Attributes:
        name: The paper's key and the number, such as ``"asymptotic-4.1"``; any other text for one of your own.
        title: A few words.
        equations: The numbers of the equations in the paper.
        erratum: What the paper prints wrongly and what is meant here; empty where nothing is known.
        structure: What the statement supposes of the kind of flow (space, mask, heads, positions, weights): told
            without looking at matrices or tokens.
        hypotheses: Measures the other hypotheses on a flow of that structure and a start of shape (…, token, dim),
            float64.
        predict: The prediction for a flow and a start at which the hypotheses hold.
        conditions: What a trajectory must show. Can be evaluated where hypotheses fail, too.
        decidable: Whether the conditions can say anything about a trajectory; a probability needs many systems.
        subject: Whether it speaks of the flow, of layers, the runs of engine "layers" or one step for each time, of
            both, or of a flow with noise; of a flow, other layers than those with their residual connection are no
            approximation, nor is a run with noise.
        beyond: Whether it speaks of a graph for a mask ("graph") or of tokens that do not move ("frozen"); others apply
            to no such flow.
        standing: "theorem", "conjecture" (no proof and no counterexample is known) or "false" (one is known).
        rescaled: Whether the conditions can be evaluated on a run in the rescaled frame, too, whose states are z.

    >>> from tokendynamics.theorems import STATEMENTS
    >>> STATEMENTS[0].name, STATEMENTS[0].paper.key
    ('asymptotic-3.1', 'asymptotic')
    """

    name: str
    title: str
    equations: str
    erratum: str = ""
    structure: Callable[[Flow], tuple[Hypothesis, ...]]
    hypotheses: Callable[[Flow, Tensor], tuple[Hypothesis, ...]]
    predict: Callable[[Flow, Tensor], Prediction]
    conditions: Callable[[Trajectory], tuple[Condition, ...]]
    decidable: Callable[[Trajectory], bool] = lambda trajectory: True
    standing: Standing = "theorem"
    subject: Subject = "flow"
    beyond: tuple[Literal["graph", "frozen"], ...] = ()
    rescaled: bool = False

    @property
    def of_flows(self) -> bool:
        """Whether it speaks of flows without noise."""
        return self.subject.startswith("flow")

    @property
    def of_layers(self) -> bool:
        """Whether it speaks of layers."""
        return self.subject.endswith("layers")

    @property
    def paper(self) -> Paper:
        """Where it stands."""
        return SOURCES[self.name.partition("-")[0]]

    def __str__(self) -> str:
        """Return one line: the statement, what it is about, and where it stands, if that is in a paper."""
        known = self.name.partition("-")[0] in SOURCES
        return f"{self.name}: {self.title}" + (f"; {self.equations} of {self.paper}" if known else "")

    def concerns(self, flow: Flow) -> bool:
        """Tell whether a flow is of the kind that the statement is about, at some system at least."""
        return all(one.anywhere for one in self._kind(flow))

    def _kind(self, flow: Flow) -> tuple[Hypothesis, ...]:
        measured = self.structure(flow)
        usual = all(one.anywhere for one in measured)
        return (*measured, *self._beyond_what_it_speaks_of(flow)) if usual else measured

    def check(self, flow: Flow, start: Tensor, noise: Noise | None = None) -> Check:
        """Measure the hypotheses, and predict where none is violated; `noise` is that of the run, if it is known.

        Of a flow of another structure only that is said: what its circuits and start would have to be presupposes
        the structure, and can be costly to measure.
        """
        systems = tuple(start.shape[:-2])
        measured = self._kind(flow)
        structure = all(one.anywhere for one in measured)
        if structure:
            measured = (*measured, *self._about_noise(noise), *self.hypotheses(flow, start))
        satisfied = [one.satisfied(systems) for one in measured]
        applies_to = np.asarray(np.logical_and.reduce([np.ones(systems, dtype=bool), *satisfied]))
        return Check(
            statement=self.name,
            applies=bool(applies_to.all()),
            applies_to=applies_to,
            hypotheses=measured,
            reasons=tuple(_reason(one) for one in measured if one.holds is False),
            prediction=self._prediction(flow, start, applies_to),
            assumed=tuple(f"{one.name}: {one.text}" for one in measured if one.holds is None),
            erratum=self.erratum,
            equations=self.equations,
            structure=structure,
            standing=self.standing,
        )

    def certify(self, trajectory: Trajectory, applies_to: np.ndarray | None = None) -> Certificate:
        """Evaluate the conditions on a trajectory: at the systems in `applies_to`, or at all, whatever holds there.

        Raises:
            ArgumentValueError: A run in the rescaled frame, and a statement about x alone; a run with noise, and a
                statement that does not speak of it.
        """
        if has_noise(trajectory) and self.subject != "noise":
            wanted = f"a run without noise for {self.name}, which does not apply: noise"
            raise ArgumentValueError("trajectory", wanted, f"one with {trajectory.noise}")
        if trajectory.frame == "rescaled" and not self.rescaled:
            wanted = f"a run in the frame 'tokens' for {self.name}, which is about x"
            raise ArgumentValueError("trajectory", wanted, "one of rescaled tokens z")
        systems = tuple(trajectory.tensor.shape[:-3])
        where = np.ones(systems, dtype=bool) if applies_to is None else applies_to
        part = run_of_systems(trajectory, where)
        conditions = self.conditions(part)
        if self.subject != "noise":  # a tighter run has other noise
            conditions = confirmed(conditions, part, self.conditions)
        if not where.all():
            conditions = tuple(_among_all(one, where) for one in conditions)
        certificate = combine(self.name, conditions)
        about = _CONJECTURE[certificate.outcome] if self.standing == "conjecture" else ""
        first, horizon, end = float(part.times[0]), float(part.times[-1]), float(np.min(part.end_times))
        if end >= horizon:
            part_seen = []
        else:
            ended = int(np.sum(np.asarray(part.end_times) < horizon))
            share = "" if part.end_times.size == 1 else f" ({ended} of {part.end_times.size} systems ended early)"
            part_seen = [f"over [{number(first, 6)}, {number(end, 6)}] of {number(horizon, 6)}{share}"]
        notes = [about + certificate.text, *part_seen]
        if trajectory.engine == "layers" and not self.of_layers:
            notes.append("judged on discrete layers, of which the statement does not speak")
        return replace(certificate, text="; ".join(notes), standing=self.standing)

    def _beyond_what_it_speaks_of(self, flow: Flow) -> tuple[Hypothesis, ...]:
        """Return the hypotheses that a flow with a graph for a mask, or with frozen tokens, violates without a word."""
        violated = []
        if flow.attention.mask is not None and "graph" not in self.beyond:
            violated.append(Hypothesis("full or causal mask", False, None, 0.0, "the mask is a graph"))
        if flow.frozen and "frozen" not in self.beyond:
            count = len(flow.frozen)
            violated.append(Hypothesis("all tokens move", False, None, 0.0, f"{count} frozen"))
        return tuple(violated)

    def _about_noise(self, noise: Noise | None) -> tuple[Hypothesis, ...]:
        """Return what is known of the noise of a run: violated by a statement on the other kind of run."""
        if self.subject != "noise":
            if noise is None or noise.strength == 0:
                return ()
            return (Hypothesis("no noise", False, None, 0.0, f"noise has the strength {number(noise.strength)}"),)
        if noise is None:
            return (Hypothesis("noise", None, None, 0.0, "it is not known whether the run has noise"),)
        return (Hypothesis("noise", noise.strength > 0, None, 0.0, f"its strength is {number(noise.strength)}"),)

    def _prediction(self, flow: Flow, start: Tensor, where: np.ndarray) -> Prediction | None:
        if not where.any():
            return None
        if not where.all():
            flow, start = flow_of_systems(flow, where), states_of_systems(start, where)
        prediction = self.predict(flow, start)
        if self.standing != "conjecture":
            return prediction
        pattern = f"{_CONJECTURED}{prediction.pattern}" if prediction.pattern else ""
        return replace(prediction, text=_CONJECTURED + prediction.text, pattern=pattern)


def has_noise(trajectory: Trajectory) -> bool:
    """Tell whether a run has noise, of more strength than 0."""
    return trajectory.noise is not None and trajectory.noise.strength > 0


def _reason(violated: Hypothesis) -> str:
    share = "" if violated.at is None else f" (at {counted(~violated.at)})"
    return f"{violated.name}: {violated.text}{share}"


def _among_all(condition: Condition, where: np.ndarray) -> Condition:
    """Set a condition of the systems in `where` among all."""
    outcome = np.full(where.shape, "does not apply")
    margin, first = np.full(where.shape, np.inf), np.full(where.shape, np.nan)
    outcome[where] = condition.outcome.reshape(-1)
    margin[where] = condition.margin.reshape(-1)
    first[where] = condition.first_failure.reshape(-1)
    return replace(condition, outcome=outcome, margin=margin, first_failure=first)


def flow_of_systems(flow: Flow, where: np.ndarray) -> Flow:
    """Return the flow of the systems in `where`, (…,), as one axis; itself where all share its matrices."""
    index, metric = torch.as_tensor(np.flatnonzero(where)), flow.geometry.metric
    own_metric = metric is not None and metric.ndim > 2
    if not (flow.attention.system_shape or own_metric):
        return flow
    space = Ellipsoid(metric.flatten(0, -3)[index]) if metric is not None and own_metric else flow.space
    return flow.with_attention(flow.attention.flattened().select(index), space)


def states_of_systems(states: Tensor, where: np.ndarray, axes: int = 2) -> Tensor:
    """Return the states of the systems in `where`: (…, *axes) as (system, *axes)."""
    return states.reshape(-1, *states.shape[states.ndim - axes :])[torch.as_tensor(np.flatnonzero(where))]


def run_of_systems(trajectory: Trajectory, where: np.ndarray) -> Trajectory:
    """Return the runs of the systems in `where`, (…,), along one axis; itself where these are all."""
    if bool(np.all(where)):
        return trajectory
    chosen = np.flatnonzero(where)
    tensor, deviations = states_of_systems(trajectory.tensor, where, axes=3), trajectory.deviations
    return replace(
        trajectory,
        states=tensor,
        tensor=tensor,
        status=np.asarray(trajectory.status).reshape(-1)[chosen],
        reached=np.asarray(trajectory.reached).reshape(-1, len(trajectory.times))[chosen],
        end_times=np.asarray(trajectory.end_times).reshape(-1)[chosen],
        counts={name: np.asarray(count).reshape(-1)[chosen] for name, count in trajectory.counts.items()},
        flow=None if trajectory.flow is None else flow_of_systems(trajectory.flow, where),
        deviations=deviations and deviations.reshaped(len(where.reshape(-1))).select(torch.as_tensor(chosen)),
    )


_TIGHTER = 1e-2
_TIGHTEST = 1e-12
_USUAL = 1e-8
_MORE_STEPS = 10
_FEWEST_STEPS, _MOST_STEPS = 2_000, 30_000
_SHRUNK = 0.25


@dataclass(frozen=True)
class Repeat:
    """A tighter run of some systems.

    Attributes:
        trajectory: The run, its systems along one axis.
        words: Which tolerance it had.
    """

    trajectory: Trajectory
    words: str


def confirmed(
    conditions: tuple[Condition, ...], trajectory: Trajectory, evaluate: Callable[[Trajectory], tuple[Condition, ...]]
) -> tuple[Condition, ...]:
    """Return the conditions, with "fails" left where a tighter run of the same flow and start fails as well.

    Elsewhere the word becomes "undecided", with the reason; save where the violation is larger than any error of a run
    with these tolerances (`largest_error`): then the states are not those of the flow, and the failure stands. What
    is measured at the saved states without regard to how they came about (`pointwise`) is left unchanged.
    """
    doubted = [np.asarray((one.outcome == "fails") & (not one.pointwise)) for one in conditions]
    where = np.asarray(np.logical_or.reduce(np.broadcast_arrays(*doubted)))
    if not where.any():
        return conditions
    repeat = _repeated(trajectory, where)
    if isinstance(repeat, str):
        return tuple(
            _doubting(one, chosen, f"could not be run again tighter: {repeat}") if chosen.any() else one
            for one, chosen in zip(conditions, doubted, strict=True)
        )
    again = evaluate(repeat.trajectory)
    return tuple(
        _compared(one, chosen, where, trajectory, repeat, again[index] if index < len(again) else None)
        if chosen.any()
        else one
        for index, (one, chosen) in enumerate(zip(conditions, doubted, strict=True))
    )


def _compared(
    first: Condition,
    chosen: np.ndarray,
    where: np.ndarray,
    trajectory: Trajectory,
    repeat: Repeat,
    second: Condition | None,
) -> Condition:
    """One condition of both runs: where the failure persists, where it is out of reach of any error, and the rest."""
    again, reached = np.full(where.shape, False), np.full(where.shape, False)
    before = first.tolerance - first.margin
    reached[where] = repeat.trajectory.end_times.reshape(-1) >= _flow_times(
        trajectory, np.nan_to_num(first.first_failure[where])
    )
    if second is not None:
        after = np.broadcast_to(second.tolerance - second.margin, repeat.trajectory.end_times.shape).reshape(-1)
        kept = ~(after <= _SHRUNK * before[where]) | (after > largest_error(repeat.trajectory).reshape(-1))
        again[where] = (second.outcome == "fails").reshape(-1) & kept
    foreign = chosen & reached & ~again & ~(before <= largest_error(trajectory)) & (first.tolerance > 0)
    standing = np.asarray(chosen & (again | foreign))
    if bool((standing == chosen).all()):
        beyond = "no error of a run with these tolerances is as large: the states are not those of the flow"
        return replace(first, reason=beyond if foreign.any() else f"so does a run with {repeat.words}")
    lost = np.asarray(chosen & ~standing)
    early = "" if reached[lost].all() else ", as far as that came"
    return _doubting(first, lost, f"a run with {repeat.words} does not show it{early}")


def _doubting(condition: Condition, where: np.ndarray, reason: str) -> Condition:
    return replace(
        condition,
        outcome=np.where(where, "undecided", condition.outcome),
        first_failure=np.where(where, np.nan, condition.first_failure),
        reason=reason,
    )


def _flow_times(trajectory: Trajectory, times: np.ndarray) -> np.ndarray:
    """Return times in units of the flow's: layers of step τ count each as τ."""
    first = float(trajectory.times[0])
    tau = float(trajectory.parameters.get("tau", 1.0)) if trajectory.engine == "layers" else 1.0
    return first + tau * (np.asarray(times, dtype=float) - first)


def _repeated(trajectory: Trajectory, where: np.ndarray) -> Repeat | str:
    """Run the systems in `where` again with a hundredth of the tolerances, in float64; or say why not."""
    if trajectory.flow is None:
        return "its flow is not known"
    if not approximates_its_flow(trajectory):
        return "layers with another residual factor than 1 are no steps of the flow"
    part = run_of_systems(trajectory, where)
    reached = np.asarray(part.reached).reshape(-1, len(part.times))
    until = int(np.flatnonzero(reached.any(axis=0)).max(initial=0)) + 1
    if until < 2:
        return "it ended at its start"
    controlled = step_controlled(trajectory)
    given = trajectory.parameters if controlled else {"rtol": _USUAL, "atol": _USUAL}
    rtol, atol = (max(_TIGHTER * float(given[name]), _TIGHTEST) for name in ("rtol", "atol"))
    is_exact = trajectory.flow.attention.weights == "hardmax"
    steps = np.asarray(part.counts.get("accepted", 0)).max(initial=0)
    start = states_of_systems(trajectory.tensor[..., 0, :, :].detach().double(), where)
    try:
        with torch.no_grad():
            run = simulate(
                flow_of_systems(trajectory.flow, where),
                start,
                _flow_times(part, part.times)[:until],
                rtol=None if is_exact else rtol,
                atol=None if is_exact else atol,
                engine="stiff" if trajectory.engine == "stiff" else "auto",
                max_steps=int(np.clip(_MORE_STEPS * steps, _FEWEST_STEPS, _MOST_STEPS)),
                frame=trajectory.frame,
            )
    except TokenDynamicsError as error:
        return str(error)
    except Interrupted:
        return "interrupted"
    # Later states than the run itself reached are none of its business.
    counted = run.reached & reached[:, :until]
    return Repeat(replace(run, reached=counted), "the engine hardmax" if is_exact else f"rtol {number(rtol)}")
