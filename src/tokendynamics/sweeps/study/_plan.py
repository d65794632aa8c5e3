"""From a study's file to its runs: what each arm trains, on which seeds, and what is to be tested.

`docs/study.md` shows each key of the file with its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from tokendynamics.modules import REGIMES
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, MemoryLimitError
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification.file import Source, parsed
from tokendynamics.specification.section import TomlTable, did_you_mean
from tokendynamics.specification.toml import KeyPath, read_text
from tokendynamics.sweeps.study.paired import Claim
from tokendynamics.training import TASKS, Experiment
from tokendynamics.training.experiment import PRESETS

Seeds = Annotated[list[NonNegativeInt], Field(min_length=1)]
Changes = Annotated[dict[str, Any], Field(default_factory=dict)]
Positive = Annotated[float, Field(gt=0.0)]


class ChangesTable(TomlTable):
    """What of an experiment is changed."""

    regime: str | None = None
    remedy: str | None = None
    data: str | None = None
    model: Changes
    options: Changes
    recipe: Changes


class StudyTable(ChangesTable):
    """``[study]``: what is trained, with which seeds, and which arm the others are compared with."""

    name: str | None = None
    preset: str
    seeds: Seeds
    reference: str
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95


class TuningTable(TomlTable):
    """``[tuning]``: the learning rates that every arm tries, on seeds of their own."""

    learning_rate: Annotated[list[Positive], Field(min_length=2)]
    seeds: Seeds


class ArmTable(ChangesTable):
    """``[arms.NAME]``: what an arm changes beyond ``[study]``."""


class ClaimTable(TomlTable):
    """``[[claims]]``: that one arm is better than another, by at least `difference` where that is given."""

    better: str
    worse: str
    difference: Positive | None = None


class StudyFile(TomlTable):
    """A study's file."""

    study: StudyTable
    tuning: TuningTable | None = None
    arms: dict[str, ArmTable]
    claims: list[ClaimTable] = Field(default=[])


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Of an arm, which is the name of a folder."""
BETTER = {"bits_per_byte": "lower", "perplexity": "lower", "top1": "higher"}
"""Which direction of each task's measure is the better one."""


@dataclass(frozen=True)
class PlannedRun:
    """One training run.

    Attributes:
        place: Its folder within the store, such as "runs/divergence/3" and "tuning/divergence/0.004/101".
        experiment: What is trained.
    """

    place: str
    experiment: Experiment


@dataclass(frozen=True)
class StudyPlan:
    """A checked study.

    Attributes:
        name: What it is called.
        source: What the file says, and the line of every key.
        tables: The tables of the file.
        arms: What each arm trains; its seed, and with tuning its learning rate, are still to be set.

    >>> from tokendynamics.specification.examples import example_text
    >>> plan = parse_plan(example_text("table1", "study"), "table1.toml")
    >>> list(plan.arms), plan.lower_is_better
    (['baseline', 'tied', 'w_only', 'convergence', 'intermediate', 'divergence'], True)
    """

    name: str
    source: Source
    tables: StudyFile
    arms: Mapping[str, Experiment]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that every arm runs."""
        return tuple(self.tables.study.seeds)

    @property
    def preset(self) -> str:
        """What the arms are changes of."""
        return self.tables.study.preset

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What is to be tested."""
        return tuple(Claim(claim.better, claim.worse, claim.difference) for claim in self.tables.claims)

    @property
    def measure(self) -> str:
        """Name of what is compared: the measure of the task."""
        return TASKS[next(iter(self.arms.values())).task].measure

    @property
    def lower_is_better(self) -> bool:
        """Direction of the measure."""
        return BETTER[self.measure] == "lower"

    def tuning_runs(self, arm: str) -> dict[float, list[PlannedRun]]:
        """Return the runs by which an arm's learning rate is chosen; none without tuning."""
        tuning = self.tables.tuning
        if tuning is None:
            return {}
        return {
            rate: [
                PlannedRun(
                    f"tuning/{arm}/{rate!r}/{seed}", self.arms[arm].changed(seed=seed, recipe={"learning_rate": rate})
                )
                for seed in tuning.seeds
            ]
            for rate in tuning.learning_rate
        }

    def runs(self, arm: str, learning_rate: float | None) -> list[PlannedRun]:
        """Return the runs whose measures are compared, one a seed.

        Args:
            arm: Which.
            learning_rate: What tuning chose; None without tuning.
        """
        recipe = {} if learning_rate is None else {"learning_rate": learning_rate}
        return [
            PlannedRun(f"runs/{arm}/{seed}", self.arms[arm].changed(seed=seed, recipe=recipe)) for seed in self.seeds
        ]

    def identity(self) -> dict[str, Any]:
        """Return everything that the results depend on but the versions, as plain values."""
        study, tuning = self.tables.study, self.tables.tuning
        return {
            "name": self.name,
            "arms": {
                # Each run sets its seed.
                arm: {key: value for key, value in experiment.as_json().items() if key != "seed"}
                for arm, experiment in self.arms.items()
            },
            "seeds": list(self.seeds),
            "reference": study.reference,
            "confidence": study.confidence,
            "tuning": None if tuning is None else tuning.model_dump(mode="json"),
            "claims": [asdict(claim) for claim in self.claims],
        }

    def check(self) -> None:
        """Make the task and the network of every arm, so that what is wrong is said before anything is run.

        Raises:
            SpecificationError: Data that cannot be used, an argument that there is not, or a network or batch that
                takes more memory than is free; with its line.
        """
        from tokendynamics.training.networks import network_of, task_of

        for arm, experiment in self.arms.items():
            recipe = experiment.recipe
            with _blaming(self.source, ("arms", arm)):
                network_of(experiment, task_of(experiment, recipe.steps * recipe.batch * recipe.accumulation))


@typed_arguments
def read_plan(path: str | Path) -> StudyPlan:
    """Read and check a study's file.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        OSError: The file cannot be read.

    >>> from importlib.resources import files
    >>> read_plan(str(files("tokendynamics.specification.examples") / "study" / "table1.toml")).measure
    'bits_per_byte'
    """
    place = Path(path)
    return parse_plan(read_text(place), place.name)


@typed_arguments
def parse_plan(text: str, name: str) -> StudyPlan:
    """Check the text of a study's file; see `read_plan`.

    >>> from tokendynamics.specification.examples import example_text
    >>> plan = parse_plan(example_text("table1", "study"), "table1.toml")
    >>> plan.preset, plan.seeds
    ('bytes-small', (1, 2, 3, 4, 5))
    """
    values, source = parsed(text, name)
    tables = source.checked(StudyFile, values)
    study = tables.study
    if study.preset not in PRESETS:
        message = f"unknown preset {study.preset!r}; {did_you_mean(study.preset, PRESETS)}"
        raise source.error(("study", "preset"), message)
    base = _changed(PRESETS[study.preset], study, source, ("study",))
    arms = {arm: _changed(base, table, source, ("arms", arm)) for arm, table in tables.arms.items()}
    plan = StudyPlan(study.name or Path(name).stem, source, tables, arms)
    for arm in plan.arms:
        if not _NAME.fullmatch(arm):
            why = f"expected a name of up to 64 letters, digits, - and _, got {arm!r}"
            raise plan.source.error(("arms", arm), why)
    if len(plan.arms) < 2:
        raise plan.source.error(("arms",), f"expected two arms or more, got {', '.join(plan.arms) or 'none'}")
    if plan.tables.study.reference not in plan.arms:
        raise plan.source.error(("study", "reference"), _unknown_arm(plan, plan.tables.study.reference))
    names = list(plan.arms)
    for place, arm in enumerate(names):
        same = next((other for other in names[:place] if plan.arms[other] == plan.arms[arm]), None)
        if same is not None:
            why = f"expected an arm that differs from the others, got the same as arm {same!r}"
            raise plan.source.error(("arms", arm), why)
    _check_seeds(plan)
    for number, claim in enumerate(plan.claims):
        for key in ("better", "worse"):
            if getattr(claim, key) not in plan.arms:
                raise plan.source.error(("claims", number, key), _unknown_arm(plan, getattr(claim, key)))
        if claim.better == claim.worse:
            raise plan.source.error(("claims", number, "worse"), f"expected another arm than {claim.better!r}")
        if (claim.better, claim.worse) in [(other.better, other.worse) for other in plan.claims[:number]]:
            problem = f"expected each claim once, got {claim.better} over {claim.worse} again"
            raise plan.source.error(("claims", number), problem)
    return plan


def _changed(experiment: Experiment, table: ChangesTable, source: Source, path: KeyPath) -> Experiment:
    if table.regime is not None and table.regime not in REGIMES:
        raise source.error((*path, "regime"), f"unknown regime {table.regime!r}; {did_you_mean(table.regime, REGIMES)}")
    with _blaming(source, path):
        return experiment.changed(**{name: getattr(table, name) for name in ChangesTable.model_fields})


@contextmanager
def _blaming(source: Source, path: KeyPath) -> Iterator[None]:
    """Give an error the line of the key that it names: of those below `path`, or else of those of all arms."""
    try:
        yield
    except (ArgumentTypeError, ArgumentValueError, MemoryLimitError) as error:
        message = str(error)
        words = set(re.findall(r"[A-Za-z0-9_]+", message))
        below = [
            key
            for above in (path, ("study",))
            for key in source.lines
            if len(key) > len(above) and key[: len(above)] == above and key[-1] in words
        ]
        blamed = max(below, key=lambda key: (key[: len(path)] == path, len(key)), default=path)
        raise source.error(blamed, message.removeprefix(f"{blamed[-1]}: ")) from error


def _check_seeds(plan: StudyPlan) -> None:
    """Refuse repeated seeds and rates, tuning on seeds of the comparison, and a rate beside those to be tuned."""
    tuning = plan.tables.tuning
    _check_distinct(plan, ("study", "seeds"), plan.seeds)
    if tuning is None:
        return
    _check_distinct(plan, ("tuning", "seeds"), tuning.seeds)
    _check_distinct(plan, ("tuning", "learning_rate"), tuning.learning_rate)
    for place, seed in enumerate(tuning.seeds):
        if seed in plan.seeds:
            message = f"expected separate seeds, got {seed}, which is one of study.seeds as well"
            raise plan.source.error(("tuning", "seeds", place), message)
    for path, table in (
        (("study",), plan.tables.study),
        *((("arms", arm), experiment) for arm, experiment in plan.tables.arms.items()),
    ):
        if "learning_rate" in table.recipe:
            raise plan.source.error(
                (*path, "recipe", "learning_rate"), "expected none beside [tuning], which chooses it"
            )


def _check_distinct(plan: StudyPlan, path: KeyPath, values: Sequence[float]) -> None:
    for place, value in enumerate(values):
        if value in values[:place]:
            raise plan.source.error((*path, place), f"expected each once, got {value} for the second time")


def _unknown_arm(plan: StudyPlan, name: str) -> str:
    return f"unknown arm {name!r}; {did_you_mean(name, plan.arms)}"
