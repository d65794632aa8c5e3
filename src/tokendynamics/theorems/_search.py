"""The search for a counterexample: systems inside the hypotheses of a statement at which its conclusion fails.

Half of each round is drawn at random; the other half follows the estimated gradient of the shortfall, by how much the
conclusion is missed. What fails is made as small as it can be, and must fail again with another engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Noise, Trajectory, simulate
from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, TokenDynamicsError
from tokendynamics.numerics.arguments import ArrayLike, as_integer
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import versions, write_json
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import whole_file
from tokendynamics.spaces import Free
from tokendynamics.theorems._families import family_of
from tokendynamics.theorems._statement import Statement, flow_of_systems, states_of_systems
from tokendynamics.theorems.registry import named
from tokendynamics.theorems.result import Certificate
from tokendynamics.words import number, plural


@runtime_checkable
class Systems(Protocol):
    """What can be searched: `Family`, or an object of your own."""

    @property
    def numbers(self) -> int:
        """How many standard normal numbers a system takes."""
        ...

    def systems(self, numbers: Tensor, /) -> tuple[Flow, Tensor]:
        """Return the flow of (system, `numbers`) normal numbers, and its start (system, token, dim)."""
        ...


@dataclass(frozen=True)
class Counterexample:
    """A system that meets the hypotheses of a statement and not its conclusion.

    Attributes:
        flow: Its flow, after it was made small: no token can be left out, and decimals are as short as they can be.
        start: Its start, (token, dim), float64.
        certificate: What the statement says of its run: fails.
        confirmed: The engine and tolerance with which another run fails as well; empty where none does.
        text: One line, with the matrices and the start.
    """

    flow: Flow = field(repr=False)
    start: Tensor = field(repr=False)
    certificate: Certificate = field(repr=False)
    confirmed: str
    text: str

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True)
class Search:
    """What a search for a counterexample came to.

    Attributes:
        statement: The name of the statement.
        seed: Of every number drawn.
        drawn: Systems drawn.
        applying: Systems of these that meet the hypotheses.
        outcomes: Of these, how many "holds", "undecided" and "fails".
        shortfall: The largest amount by which a conclusion is missed, above 0 where it is: of bounds by how much they
            are exceeded, of limits the distance left in the end, also where a run is too short to tell. None where no
            system that was drawn meets the hypotheses.
        counterexample: The first one, made small; None where no system fails.

    >>> print(search_counterexample("asymptotic-4.1", seed=1, rounds=1, count=8))
    asymptotic-4.1: no counterexample among 29 systems that meet the hypotheses: 29 hold, 0 undecided (seed 1)
    """

    statement: str
    seed: int
    drawn: int
    applying: int
    outcomes: dict[str, int]
    shortfall: float | None
    counterexample: Counterexample | None

    def __str__(self) -> str:
        """Return one line."""
        if self.counterexample is not None:
            return f"{self.statement}: counterexample: {self.counterexample}"
        counts = f"{self.outcomes['holds']:,} hold, {self.outcomes['undecided']:,} undecided"
        among = f"{plural(self.applying, 'system')} that meet the hypotheses"
        return f"{self.statement}: no counterexample among {among}: {counts} (seed {self.seed})"


_HORIZON, _RESCALED_HORIZON = 40.0, 10.0
"""Of the runs; rescaled tokens come to their limits sooner, for their logits grow exponentially."""
_SAVED = 21
_STEPS = 2000
_TOLERANCES = {"rtol": 1e-6, "atol": 1e-8}
_STEP = 0.05
"""Of runs with noise, which have no step control."""
_LONGER = 8
"""By this factor the undecided systems with the largest shortfall are followed further, once."""
_KEPT = 16
"""Systems that are changed in the next round."""
_FIRST_STEP, _LEAST_STEP = 0.3, 1e-3
"""Of the normal numbers, when a system is changed."""
_LONGER_STEP, _SHORTER_STEP = 1.5, 1.5**-0.25
"""After a change that made the shortfall larger, and after none did: a balance where one in five does."""
_TIGHTEST = 1e-12
_DECIMALS = 7
_OUTCOMES = ("holds", "undecided", "fails")
_SIZES = ((2, 2), (3, 2), (3, 3), (4, 4))


@typed_arguments
def search_counterexample(
    statement: str | Statement,
    systems: Sequence[Systems] | None = None,
    *,
    seed: int,
    rounds: int = 8,
    count: int = 256,
    times: ArrayLike | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    progress: bool | Progress = False,
    **options: Any,
) -> Search:
    """Look for systems inside the hypotheses of a statement at which its conclusion fails.

    Sizes come in the order given, the smallest first, and each has `rounds` rounds: one at random, then rounds of which
    half is random and half are changes of the `_KEPT` systems with the largest shortfall: in random directions and
    along the gradient estimated from these. The undecided with the largest shortfall are run eight times as long. The
    first system that fails ends the search: tokens are left out and decimals cut as long as it fails, and it runs
    again with another engine at a tolerance of 1e-12.

    Args:
        statement: A name, or a `Statement`.
        systems: Families, or objects of your own with `numbers` and `systems`. If None, the most general ones in which
            the hypotheses are met often enough, of 2 to 4 tokens in 2 to 4 dimensions.
        seed: Of all numbers: the same seed makes the same search.
        rounds: Of every family.
        count: Systems drawn in a round.
        times: Of the runs; 21 from 0 to 40, or to 10 in the rescaled frame, if None.
        store: A JSON file that is written anew after every round; None for no file.
        resume: Whether a search that `store` has is continued: from the round after the last, or with more rounds.
        progress: True for a progress bar, or a function; see `tokendynamics.simulate`.
        options: Of `simulate`, such as `engine`, `rtol`, `residual`, `max_steps` (2000 if not given, `rtol` 1e-6), for
            a statement on noise `noise` (of strength 1 if not given, with a `step` of 0.05), and
            `frame`, which is "rescaled" if not given and the statement can read that.

    Returns:
        A `Search`; its text is one line.

    Raises:
        ArgumentTypeError, ArgumentValueError: A name that is no statement, no family that meets its hypotheses, a file
            in the way, or one of another search.

    >>> from tokendynamics.theorems import Family
    >>> families = [Family(2, 2, mask="causal")]
    >>> search = search_counterexample("masking-table-1-simple", families, seed=0, rounds=1, count=64)
    >>> search.counterexample.certificate.outcome, len(search.counterexample.start)
    ('fails', 2)
    """
    asked = named(statement, "statement")
    as_integer(seed, "seed", at_least=0)
    as_integer(rounds, "rounds", at_least=1)
    as_integer(count, "count", at_least=2)
    families = _chosen(asked) if systems is None else _checked(systems)
    trial = _trial(asked, families[0], times, options)
    place = None if store is None else Path(store)
    fronts = _searched(trial, families, (seed, rounds, count), place, resume, progress)
    return _result(trial, families, fronts, seed)


def _checked(systems: Any) -> list[Systems]:
    """Return the families of the caller, refused where they are none."""
    if not isinstance(systems, Sequence) or not all(isinstance(family, Systems) for family in systems):
        raise ArgumentTypeError("systems", "a list of families", shown(systems))
    if not systems:
        raise ArgumentValueError("systems", "at least one family", "none")
    return list(systems)


def _chosen(statement: Statement) -> list[Systems]:
    """Return the families of every size at which the hypotheses can be met."""
    families: list[Systems] = []
    refusal: ArgumentValueError | None = None
    for tokens, dim in _SIZES:
        try:
            families.append(family_of(statement, tokens, dim))
        except ArgumentValueError as error:
            refusal = error
    if not families and refusal is not None:
        raise refusal
    return families


# --- one system, or many: what becomes of them ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """Outcomes, "does not apply" outside the hypotheses, and shortfalls, −inf where nothing was missed; (system,)."""

    outcomes: np.ndarray
    shortfalls: np.ndarray


@dataclass(frozen=True)
class _Trial:
    """How systems are put to the test: the statement, the times, and the options of `simulate`."""

    statement: Statement
    times: np.ndarray
    options: dict[str, Any]

    @property
    def longer(self) -> _Trial:
        """The same, followed further."""
        return replace(self, times=self.times[0] + _LONGER * (self.times - self.times[0]))

    def run(self, flow: Flow, start: Tensor, **options: Any) -> Trajectory:
        """Simulate, in the frame and with the engine that the statement is about."""
        return simulate(flow, start, self.times, **(self.options | options))

    def judge(self, flow: Flow, start: Tensor) -> _Judged:
        """Check and certify systems (system, token, dim)."""
        applies = self.statement.check(flow, start).applies_to
        outcomes = np.full(len(start), "does not apply", dtype=object)
        shortfalls = np.full(len(start), -np.inf)
        if applies.any():
            run = self.run(flow_of_systems(flow, applies), states_of_systems(start, applies))
            certificate = self.statement.certify(run)
            outcomes[applies] = certificate.outcomes
            missed = np.max(
                [-np.broadcast_to(one.margin, (len(run.status),)) for one in certificate.conditions], axis=0
            )
            shortfalls[applies] = np.where(np.isfinite(missed), missed, -np.inf)
        return _Judged(outcomes, shortfalls)

    def failing(self, flow: Flow, start: Tensor) -> _Trial | None:
        """Return the trial, this one or the longer, that one system fails; None where it fails neither."""
        return next((one for one in (self, self.longer) if one.judge(flow, start).outcomes[0] == "fails"), None)


def _trial(statement: Statement, family: Systems, times: ArrayLike | None, options: dict[str, Any]) -> _Trial:
    """Return the test of systems, in the frame and with the engine that the statement is about."""
    usual: dict[str, Any] = {"max_steps": _STEPS}
    flow, start = family.systems(torch.from_numpy(np.random.default_rng(0).standard_normal((1, family.numbers))))
    # Hardmax weights are run without steps that a tolerance would choose.
    tolerances = {} if flow.attention.weights == "hardmax" else _TOLERANCES
    if statement.subject == "layers":
        usual |= {"engine": "layers", "residual": 0.0} if options.get("engine", "layers") == "layers" else {}
    elif statement.subject == "noise":
        usual |= {"noise": Noise(1.0, seed=0), "step": _STEP}
    elif statement.rescaled and isinstance(flow.space, Free):
        usual |= {"frame": "rescaled", **tolerances}
    else:
        usual |= tolerances
    chosen = usual | options
    horizon = _RESCALED_HORIZON if chosen.get("frame") == "rescaled" else _HORIZON
    moments = np.linspace(0.0, horizon, _SAVED) if times is None else np.array(read_times(times))
    trial = _Trial(statement, moments, chosen)
    replace(trial, times=moments[:2]).run(flow, start)  # What `simulate` refuses, it refuses before the search begins.
    return trial


# --- rounds ----------------------------------------------------------------------------------------------------------


@dataclass
class _Front:
    """What the rounds of one family have come to: plain lists, which the file of the search has, too."""

    rounds: int = 0
    drawn: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OUTCOMES, 0))
    shortfall: float | None = None
    kept: list[list[float]] = field(default_factory=list)
    shortfalls: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    failing: list[float] | None = None

    def judged(self, trial: _Trial, family: Systems, numbers: Tensor) -> np.ndarray:
        """Put systems (system, number) to the test, count what became of them, and return their shortfalls."""
        flow, start = family.systems(numbers)
        judged = trial.judge(flow, start)
        undecided = np.where(judged.outcomes == "undecided", judged.shortfalls, -np.inf)
        later = np.zeros(len(start), dtype=bool)
        later[np.argsort(-undecided, kind="stable")[:_KEPT]] = True
        later &= np.isfinite(undecided)
        if later.any():
            again = trial.longer.judge(flow_of_systems(flow, later), states_of_systems(start, later))
            judged.outcomes[later], judged.shortfalls[later] = again.outcomes, again.shortfalls
        self.drawn += len(start)
        for outcome in _OUTCOMES:
            self.outcomes[outcome] += int((judged.outcomes == outcome).sum())
        finite = judged.shortfalls[np.isfinite(judged.shortfalls)].tolist()
        self.shortfall = max([*finite, *([] if self.shortfall is None else [self.shortfall])], default=None)
        fails = judged.outcomes == "fails"
        if fails.any() and self.failing is None:
            self.failing = numbers[int(np.argmax(np.where(fails, judged.shortfalls, -np.inf)))].tolist()
        return judged.shortfalls

    def keep(self, numbers: Tensor, shortfalls: np.ndarray) -> None:
        """Keep the systems with the largest shortfalls, those that were kept among them."""
        values = [*self.shortfalls, *shortfalls.tolist()]
        candidates, steps = [*self.kept, *numbers.tolist()], [*self.steps, *[_FIRST_STEP] * len(numbers)]
        order = [place for place in np.argsort(-np.array(values), kind="stable").tolist() if np.isfinite(values[place])]
        self.kept = [candidates[place] for place in order[:_KEPT]]
        self.shortfalls = [values[place] for place in order[:_KEPT]]
        self.steps = [steps[place] for place in order[:_KEPT]]

    def climb(self, trial: _Trial, family: Systems, budget: int, source: np.random.Generator) -> None:
        """Change every kept system in random directions, and along the gradient that these let estimate."""
        pairs = max(1, budget // 2 // len(self.kept))
        centers, steps = torch.tensor(self.kept).double(), torch.tensor(self.steps).double()[:, None]
        directions = torch.from_numpy(source.standard_normal((len(centers), pairs, centers.shape[-1])))
        moves = steps[..., None] * directions
        tried = torch.cat([centers[:, None] + moves, centers[:, None] - moves], dim=1)
        values = self._of_changes(trial, family, tried)
        forward, back = values.split(pairs, dim=1)
        slopes = torch.where(forward.isfinite() & back.isfinite(), forward - back, 0.0)
        uphill = torch.nn.functional.normalize((slopes[..., None] * directions).sum(dim=1), dim=-1)
        ahead = (centers + steps * centers.shape[-1] ** 0.5 * uphill)[:, None]
        tried = torch.cat([tried, ahead], dim=1)
        values = torch.cat([values, self._of_changes(trial, family, ahead)], dim=1)
        for row, best in enumerate(values.argmax(dim=1).tolist()):
            if float(values[row, best]) > self.shortfalls[row]:
                self.kept[row], self.shortfalls[row] = tried[row, best].tolist(), float(values[row, best])
                self.steps[row] *= _LONGER_STEP
            else:
                self.steps[row] = max(self.steps[row] * _SHORTER_STEP, _LEAST_STEP)

    def _of_changes(self, trial: _Trial, family: Systems, numbers: Tensor) -> Tensor:
        """Return the shortfalls of changed systems (kept, change, number), (kept, change)."""
        return torch.from_numpy(self.judged(trial, family, numbers.flatten(0, 1))).reshape(numbers.shape[:2])


def _searched(
    trial: _Trial,
    families: list[Systems],
    numbers: tuple[int, int, int],
    place: Path | None,
    resume: bool,
    progress: bool | Progress,
) -> list[_Front]:
    """Return what the rounds of the families come to, up to the first system that fails.

    Args:
        trial: The test of systems.
        families: The families.
        numbers: Seed, rounds of every family, systems of a round.
        place: The file that is written after each round.
        resume: Whether it is continued.
        progress: Where progress is reported.
    """
    seed, rounds, count = numbers
    fronts = [_Front() for _ in families]
    settings = {
        "statement": trial.statement.name,
        "seed": seed,
        "count": count,
        "times": trial.times.tolist(),
        "options": {name: str(value) for name, value in sorted(trial.options.items())},
        "systems": [str(family) for family in families],
    }
    if place is not None and place.exists():
        if not resume:
            advice = "continue it with resume=True, or choose another one"
            raise ArgumentValueError("store", "a name where nothing is", str(place), advice)
        fronts = _resumed(place, settings)
    total, what = rounds * len(families), f"searching {trial.statement.name}"
    with reporting(progress) as report:
        for index, (family, front) in enumerate(zip(families, fronts, strict=True)):
            while front.rounds < rounds and not any(one.failing for one in fronts):
                report(index * rounds + front.rounds, total, what)
                _one_round(front, trial, family, count, (seed, index))
                if place is not None:
                    made_with = versions("tokendynamics", "torch", "numpy")
                    with whole_file(place) as path:
                        write_json(path, {"search": settings, "versions": made_with, "families": fronts})
        report(total, total, what)
    return fronts


def _one_round(front: _Front, trial: _Trial, family: Systems, count: int, seed: Sequence[int]) -> None:
    source = np.random.default_rng([*seed, front.rounds])
    fresh = count if front.rounds == 0 else count // 2
    numbers = torch.from_numpy(source.standard_normal((fresh, family.numbers)))
    shortfalls = front.judged(trial, family, numbers)
    if front.kept and front.failing is None:
        front.climb(trial, family, count - fresh, source)
    front.keep(numbers, shortfalls)
    front.rounds += 1


def _resumed(place: Path, settings: dict[str, Any]) -> list[_Front]:
    """Return what an earlier search of the same settings has come to."""
    record = read_json(place, "store")
    try:
        before = record["search"]
        different = [name for name, value in settings.items() if before[name] != value]
        fronts = [_Front(**front) for front in record["families"]]
    except (TypeError, KeyError) as error:
        raise ArgumentValueError("store", "the file of a search", str(place)) from error
    if different:
        raise ArgumentValueError("store", f"{place} to be of the same search", f"other {', '.join(different)}")
    return fronts


def _result(trial: _Trial, families: list[Systems], fronts: list[_Front], seed: int) -> Search:
    """Return what all rounds have come to."""
    outcomes = {name: sum(front.outcomes[name] for front in fronts) for name in _OUTCOMES}
    failing = next(((family, one.failing) for family, one in zip(families, fronts, strict=True) if one.failing), None)
    return Search(
        statement=trial.statement.name,
        seed=seed,
        drawn=sum(front.drawn for front in fronts),
        applying=sum(outcomes.values()),
        outcomes=outcomes,
        shortfall=max((one.shortfall for one in fronts if one.shortfall is not None), default=None),
        counterexample=failing and _counterexample(trial, *failing[0].systems(torch.tensor([failing[1]]).double())),
    )


# --- a counterexample ------------------------------------------------------------------------------------------------


def _counterexample(trial: _Trial, flow: Flow, start: Tensor) -> Counterexample | None:
    """Return a system that fails, (1, token, dim), made as small as it can be and run with another engine."""
    start = _of_fewest_tokens(trial, flow, start)
    written = start
    for part in ("qk", "ov", "start"):
        for digits in range(_DECIMALS):
            shorter = _cut(flow, written, part, digits)
            if shorter is not None and trial.failing(shorter[0], shorter[0].geometry.project(shorter[1])):
                flow, written = shorter
                break
    start = flow.geometry.project(written)
    failed = trial.failing(flow, start)
    if failed is None:
        return None
    run = failed.run(flow, start)
    confirmed = _confirmed(failed, flow, start, run.engine)
    text = f"{_in_words(flow, written[0])}; {confirmed or 'not confirmed by another engine'}"
    return Counterexample(flow, start[0], trial.statement.certify(run), confirmed, text)


def _of_fewest_tokens(trial: _Trial, flow: Flow, start: Tensor) -> Tensor:
    """Leave out tokens, one after the other, as long as the rest fails."""
    if flow.attention.mask is not None or flow.frozen:
        return start
    for token in reversed(range(start.shape[-2])):
        fewer = torch.cat([start[:, :token], start[:, token + 1 :]], dim=1)
        if fewer.shape[-2] and trial.failing(flow, fewer):
            start = fewer
    return start


def _cut(flow: Flow, start: Tensor, part: str, digits: int) -> tuple[Flow, Tensor] | None:
    """Return the system with the decimals of a part cut; None where that cannot be."""
    attention = flow.attention
    if part == "start":
        rounded = start.round(decimals=digits) + 0.0
        return None if bool((rounded == 0).all(dim=-1).any()) else (flow, rounded)
    if not (attention.qk.constant and attention.ov.constant):
        return None
    circuits = {"qk": attention.qk.matrix_at(0.0), "ov": attention.ov.matrix_at(0.0)}
    circuits[part] = circuits[part].round(decimals=digits) + 0.0  # No −0.0, which is printed.
    return flow.with_attention(attention.with_schedules(circuits["qk"], circuits["ov"], attention.positions)), start


def _confirmed(trial: _Trial, flow: Flow, start: Tensor, engine: str) -> str:
    """Say with which other engine a run at the tightest tolerance fails as well; empty where none does."""
    if not trial.statement.of_flows:
        return ""
    other = "batched" if engine == "stiff" else "stiff"
    try:
        run = trial.run(flow, start, engine=other, rtol=_TIGHTEST, atol=_TIGHTEST)
    except TokenDynamicsError:
        return ""
    fails = trial.statement.certify(run).outcome == "fails"
    return f"confirmed by engine {other} at rtol {number(_TIGHTEST)}" if fails else ""


def _in_words(flow: Flow, start: Tensor) -> str:
    attention = flow.attention
    parts = [f"{plural(len(start), 'token')} of dim {flow.dim}, {attention.mask_in_words}"]
    for name, schedule in (("qk", attention.qk), ("ov", attention.ov)):
        if schedule.constant:
            parts.append(f"{name} = {schedule.matrix_at(0.0)[0].squeeze(0).tolist()}")
    along = "along " if flow.geometry.constrained else ""
    return "; ".join([*parts, f"tokens {along}{start.tolist()}"])
