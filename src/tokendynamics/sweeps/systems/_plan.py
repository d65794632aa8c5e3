"""From a sweep's file to its points, their systems, and the tasks that run them; `docs/sweep.md` shows each key.

A task is a chunk of the store: which systems it has follows from the file alone.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic_core import PydanticCustomError

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification import SpecificationError, SpecificationFile
from tokendynamics.specification.build import Setup, build
from tokendynamics.specification.draws import OfSystems
from tokendynamics.specification.file import Source, parsed, specified
from tokendynamics.specification.section import Angle, TomlTable, did_you_mean
from tokendynamics.specification.toml import KeyPath, nearest_line, read_text
from tokendynamics.sweeps.systems.measures import ALWAYS, COMPLETE, MEASURES
from tokendynamics.words import plural

MOST_POINTS = 10**7
"""Of an axis, and of a random design: their coordinates are held in memory."""


class AxisTable(TomlTable):
    """``[[sweep.axis]]``: keys of the specification that take the same value, and the values."""

    key: str | Annotated[list[str], Field(min_length=1)]
    name: str | None = None
    values: Annotated[list[Any], Field(min_length=1)] | None = None
    labels: list[str] | None = None
    low: float | None = None
    high: float | None = None
    points: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = None
    spacing: Literal["linear", "log"] = "linear"
    whole: bool = False

    def model_post_init(self, context: Any) -> None:
        """Refuse an axis without values, with values of two kinds, or in the wrong order."""
        given = [name for name in ("low", "high", "points") if getattr(self, name) is not None]
        if self.values is not None and given:
            raise PydanticCustomError("bounds", "expected values, or low and high, got both")
        if self.values is None and not {"low", "high"} <= set(given):
            raise PydanticCustomError("bounds", "expected values, or low and high, got neither")
        if self.low is not None and self.high is not None and not self.low < self.high:
            message = "expected low < high, got {low} and {high}"
            raise PydanticCustomError("bounds", message, {"low": self.low, "high": self.high})
        if self.spacing == "log" and not (self.low or 0) > 0:
            raise PydanticCustomError("bounds", "expected low > 0 for spacing 'log', got {low}", {"low": self.low})
        if self.labels is not None and len(self.labels) != len(self.values or ()):
            raise PydanticCustomError("bounds", "expected a label for each of the values")


class SweepTable(TomlTable):
    """``[sweep]``: which systems are run, what is kept of them, and when another engine tries again."""

    design: Literal["grid", "random"] = "grid"
    points: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = None
    draws: PositiveInt = 1
    seed: NonNegativeInt
    axis: list[AxisTable] = Field(default=[])
    measure: list[str] = Field(default=["outcome"])
    over_time: list[str] = Field(default=[])
    cluster_angle: Annotated[Angle, Field(gt=0.0)] = 0.0872664625997164788
    keep: Literal["states"] | None = None
    retry: Literal["stiff", "none"] = "stiff"
    retry_steps: PositiveInt = 3000
    last_steps: PositiveInt | None = None
    task: PositiveInt | None = None


class SweepOnly(TomlTable):
    """What a sweep's file has beyond a specification."""

    sweep: SweepTable


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Of an axis: it names a folder of the store, a dimension and a column of a table."""
RESERVED = frozenset(
    {
        *("draw", "point", "time", "token", "feature", "states", COMPLETE),
        *ALWAYS,
        *MEASURES,
        *(f"{name}_over_time" for name in MEASURES),
        *("word", "count", "fraction", "low", "high", "total"),  # of `fractions`
    }
)
"""Names of the variables and dimensions of a store and of what is counted from it."""


@dataclass(frozen=True)
class Axis:
    """Keys that take the same values.

    Attributes:
        name: Of the dimension, or, in a random design, of the coordinate.
        keys: As the file has them.
        values: As TOML has them.
        labels: What they are called: numbers, truth values or words.
        line: Where the axis stands in the file.
    """

    name: str
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    labels: np.ndarray
    line: int

    @property
    def paths(self) -> tuple[KeyPath, ...]:
        """The keys, part by part."""
        return tuple(tuple(int(part) if part.isdigit() else part for part in key.split(".")) for key in self.keys)


def axes_of(table: SweepTable, source: Source) -> tuple[Axis, ...]:
    """Return the axes of a sweep.

    Raises:
        SpecificationError: Two axes of one name or key, a number of points where none belongs or none where one does.
    """
    axes: list[Axis] = []
    for number, entry in enumerate(table.axis):
        line = nearest_line(source.lines, ("sweep", "axis", number, "key"))
        keys = (entry.key,) if isinstance(entry.key, str) else tuple(entry.key)
        name = keys[0].rsplit(".", 1)[-1] if entry.name is None else entry.name
        named = line if entry.name is None else nearest_line(source.lines, ("sweep", "axis", number, "name"))
        _check_name(name, axes, f"{source.name} line {named}: sweep.axis[{number}]")
        where = f"{source.name} line {line}: sweep.axis[{number}]"
        taken = next((key for key in keys for axis in axes if key in axis.keys), None)
        if taken is not None:
            raise SpecificationError(
                f"{where}: expected a key that no other axis has, got {taken!r} for the second time"
            )
        values = _values(entry, table, number, where)
        kinds = {type(value) for value in values}
        if entry.labels is not None:
            words = {json.dumps(value): label for value, label in zip(entry.values or (), entry.labels, strict=True)}
            labels = np.array([words[json.dumps(value)] for value in values])
        elif kinds <= {int, float} or kinds == {bool}:
            labels = np.array(values)
        else:
            labels = np.array([value if isinstance(value, str) else json.dumps(value) for value in values])
        axes.append(Axis(name, keys, values, labels, line))
    if table.design == "random" and table.points is None:
        raise source.error(("sweep",), "design 'random' needs points, their number")
    return tuple(axes)


def _check_name(name: str, axes: list[Axis], where: str) -> None:
    """Refuse what cannot name a folder, a dimension and a column, and names that the store or another axis uses.

    Some file systems take "Status" and "status" for one name, so that case does not count.
    """
    if not _NAME.fullmatch(name):
        wanted = "a name of up to 64 letters, digits and _ that does not begin with a digit"
    elif name.lower() in RESERVED:
        wanted = "a name that the store does not use itself"
    elif any(name.lower() == axis.name.lower() for axis in axes):
        wanted = "a name that no other axis has"
    else:
        return
    raise SpecificationError(f"{where}: expected {wanted}, got {shown(name)}; give the axis another name = …")


def _values(entry: AxisTable, table: SweepTable, number: int, where: str) -> tuple[Any, ...]:
    """Return the values of an axis; in a random design those of all points, which depend on no other axis."""
    low, high = entry.low or 0.0, entry.high or 0.0
    if table.design == "random":
        if entry.points is not None:
            raise SpecificationError(f"{where}: expected points in [sweep], not at an axis of a random design")
        source = np.random.Generator(np.random.Philox(np.random.SeedSequence(table.seed, spawn_key=(number,))))
        if entry.values is not None:
            chosen = source.integers(len(entry.values), size=table.points)
            return tuple(entry.values[place] for place in chosen.tolist())
        share = source.random(table.points)
        drawn = low * (high / low) ** share if entry.spacing == "log" else low + (high - low) * share
        return tuple(np.rint(drawn).astype(int).tolist() if entry.whole else drawn.tolist())
    if table.points is not None:
        raise SpecificationError(f"{where}: expected points at the axes of a grid, not in [sweep]")
    if entry.values is not None:
        return tuple(entry.values)
    if entry.points is None or entry.points < 2:
        raise SpecificationError(f"{where}: expected points = 2 or more between low and high, got {entry.points}")
    spaced = (np.geomspace if entry.spacing == "log" else np.linspace)(low, high, entry.points)
    return tuple(np.unique(np.rint(spaced).astype(int)).tolist() if entry.whole else spaced.tolist())


DRAW, POINT = "draw", "point"
_MOST_OF_A_TASK, _TASKS, _FEWEST = 8192, 64, 256
"""Systems of a task, tasks of a sweep: small systems run at 30 µs each, what is to be done for a task takes 50 ms."""
_SAMPLES = 1000
_STEPS = 2000
"""Attempted steps of a system in the first try, unless the file says or no second engine waits."""


@dataclass(frozen=True)
class DrawBlock:
    """Neighbouring draws of one point.

    Attributes:
        point: Index along each axis of points.
        draws: The streams of its systems.
    """

    point: tuple[int, ...]
    draws: OfSystems


@dataclass(frozen=True)
class Plan(Source):
    """A checked sweep.

    Attributes:
        name: The file's name, for messages.
        text: What the file says.
        lines: The line of every key.
        values: The tables of the specification, as TOML has them.
        table: The table ``[sweep]``.
        axes: What varies.

    >>> from tokendynamics.specification.examples import example_text
    >>> plan = parse_plan(example_text("outcomes", "sweep"), "outcomes.toml")
    >>> plan.systems, [axis.name for axis in plan.axes]
    (600, ['ov', 'dim'])
    """

    values: dict[str, Any]
    table: SweepTable
    axes: tuple[Axis, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes of the store."""
        points = (POINT,) if self.table.design == "random" else tuple(axis.name for axis in self.axes)
        return (*points, DRAW)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis, then draws."""
        if self.table.design == "random":
            return self.table.points or 1, self.table.draws
        return (*(len(axis.values) for axis in self.axes), self.table.draws)

    @property
    def systems(self) -> int:
        """How many in all."""
        return math.prod(self.shape)

    @property
    def engine(self) -> str | None:
        """The engine that the file names for all systems; None where it leaves the choice open."""
        named = self.values.get("solver", {}).get("engine", "auto")
        return None if named == "auto" else named

    def __repr__(self) -> str:
        return f"Plan({self.name!r}: {plural(self.systems, 'system')} over {', '.join(self.dims)})"

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """The systems of a task along each axis: the last axes whole, a part of one, single points of the others."""
        room = self.table.task or min(_MOST_OF_A_TASK, max(_FEWEST, -(-self.systems // _TASKS)))
        chunks: list[int] = []
        for length in reversed(self.shape):
            chunks.append(min(length, room))
            room = room // length if length <= room else 1
            room = max(room, 1)
        return tuple(reversed(chunks))

    @cached_property
    def tasks(self) -> tuple[int, ...]:
        """How many tasks along each axis."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))

    def region(self, task: tuple[int, ...]) -> tuple[slice, ...]:
        """Return where a task's systems stand in the arrays of the store."""
        starts = (number * chunk for number, chunk in zip(task, self.chunks, strict=True))
        ends = ((number + 1) * chunk for number, chunk in zip(task, self.chunks, strict=True))
        limits = zip(starts, ends, self.shape, strict=True)
        return tuple(slice(start, min(end, length)) for start, end, length in limits)

    def blocks(self, task: tuple[int, ...]) -> Iterator[DrawBlock]:
        """Return the systems of a task, in the order of the store."""
        *points, draws = self.region(task)
        for point in product(*(range(part.start, part.stop) for part in points)):
            yield DrawBlock(point, OfSystems(self._key(point), draws.start, draws.stop - draws.start))

    def at(self, point: tuple[int, ...]) -> dict[str, Any]:
        """Return what the axes are at a point, by the first key of each."""
        random = self.table.design == "random"
        numbers = point * len(self.axes) if random else point
        return {axis.keys[0]: axis.values[number] for axis, number in zip(self.axes, numbers, strict=True)}

    def file(self, point: tuple[int, ...]) -> SpecificationFile:
        """Return the specification of a point.

        Raises:
            SpecificationError: A value or key that the specification does not have; the line is that of the axis.
        """
        values, lines = copy.deepcopy(self.values), dict(self.lines)
        for axis, value in zip(self.axes, self.at(point).values(), strict=True):
            for path in axis.paths:
                place: Any = values
                for part in path[:-1]:
                    place = place[part] if isinstance(part, int) else place.setdefault(part, {})
                place[path[-1]] = value
                lines |= {
                    path[: length + 1]: axis.line for length in range(len(path)) if path[: length + 1] not in lines
                }
                lines[path] = axis.line
        return specified(values, Source(self.name, self.text, lines), of_systems=True)

    def setup(self, block: DrawBlock) -> Setup:
        """Build the systems of a block.

        Raises:
            SpecificationError: The values of the axes do not go together; the point is named.
        """
        with self._naming(block.point):
            return build(self.file(block.point), block.draws)

    @contextmanager
    def _naming(self, point: tuple[int, ...]) -> Iterator[None]:
        """Name the point in errors: values that are fine by themselves may not go together."""
        try:
            yield
        except (ArgumentTypeError, ArgumentValueError) as error:
            named = ", ".join(f"{key} = {shown(value)}" for key, value in self.at(point).items())
            raise SpecificationError(f"{error}; at the point {named}" if named else str(error)) from error

    def identity(self) -> dict[str, Any]:
        """Return everything that the numbers depend on but the versions: two stores of one identity hold the same."""
        return self.values | {"sweep": self.table.model_dump(mode="json", exclude_none=True)}

    def samples(self) -> Iterator[tuple[tuple[int, ...], OfSystems]]:
        """Return all points, or of many some at which every value of every axis occurs, each with its first system."""
        points = self.shape[:-1]
        if self.table.design == "random" or math.prod(points) <= _SAMPLES:
            chosen = list(islice(product(*map(range, points)), _SAMPLES))
        else:
            lines = [[(axis, place) for place in range(length)] for axis, length in enumerate(points)]
            origin = (0,) * len(points)
            chosen = [origin, *((*origin[:axis], place, *origin[axis + 1 :]) for line in lines for axis, place in line)]
        for point in dict.fromkeys(chosen):
            yield point, OfSystems(self._key(point), 0, 1)

    def check(self) -> None:
        """Build one system of every point, or of some of many, so that what is wrong is said before anything is run.

        Raises:
            SpecificationError: An axis that the specification does not have, a value that does not fit; with its line.
        """
        for point, first in self.samples():
            with self._naming(point):
                file = self.file(point)
                build(file, first)
            if self.table.draws > 1 and not _draws_itself(file.tables.model_dump(exclude_none=True)):
                message = "every draw of a point would be the same system: expected a law without seed, or draws = 1"
                raise self.error(("sweep", "draws"), message)

    def _key(self, point: tuple[int, ...]) -> str:
        """Return what the draws of a point belong to: the sweep's seed and the point's coordinates."""
        coordinates: dict[str, Any] = self.at(point)
        if self.table.design == "random":
            coordinates[POINT] = point[0]
        return json.dumps([self.table.seed, coordinates], sort_keys=True)


@typed_arguments
def read_plan(path: str | Path) -> Plan:
    """Read and check a sweep's file.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        OSError: The file cannot be read.

    >>> from importlib.resources import files
    >>> read_plan(str(files("tokendynamics.specification.examples") / "sweep" / "temperature.toml")).dims
    ('beta', 'tokens', 'draw')
    """
    place = Path(path)
    return parse_plan(read_text(place), place.name)


@typed_arguments
def parse_plan(text: str, name: str) -> Plan:
    """Check the text of a sweep's file; see `read_plan`.

    >>> from tokendynamics.specification.examples import example_text
    >>> plan = parse_plan(example_text("temperature", "sweep"), "temperature.toml")
    >>> plan.dims, plan.shape
    (('beta', 'tokens', 'draw'), (10, 7, 200))
    """
    values, source = parsed(text, name)
    if "sweep" not in values:
        raise SpecificationError(f"{name}: missing table [sweep]; see docs/sweep.md")
    table = source.checked(SweepOnly, {"sweep": values.pop("sweep")}).sweep
    solver = values.get("solver", {})
    if table.retry != "none" and isinstance(solver, dict) and "step" not in solver:
        values |= {"solver": {"max_steps": _STEPS, **solver}}
    plan = Plan(name, text, source.lines, values, table, axes_of(table, source))
    # Tables and keys that a sweep has no use for, or other words for.
    if "output" in values:
        raise source.error(("output",), "a sweep draws no trajectories; remove the table")
    if "systems" in values.get("start", {}):
        raise source.error(("start", "systems"), "a sweep has draws = … in [sweep] instead")
    for key, known in (
        ("measure", list(MEASURES)),
        ("over_time", [name for name in MEASURES if MEASURES[name].of_states]),
    ):
        for name in getattr(table, key):
            if name not in known:
                raise source.error(("sweep", key), f"unknown measure {name!r}; {did_you_mean(name, known)}")
    _check_what_is_measured(plan, solver if isinstance(solver, dict) else {})
    return plan


def _check_what_is_measured(plan: Plan, solver: dict[str, Any]) -> None:
    """Refuse outcomes where they are not defined, and a seed of noise, which would not be the same for all systems."""
    varied = [key for axis in plan.axes for key in axis.keys]
    noisy = "noise" in solver or any(key.startswith("solver.noise") for key in varied)
    seeded = "solver.noise.seed" in varied or (isinstance(solver.get("noise"), dict) and "seed" in solver["noise"])
    if "outcome" in plan.table.measure and solver.get("frame") == "rescaled":
        raise plan.error(("sweep", "measure"), "'outcome' is that of x, not of rescaled tokens; name other measures")
    if "outcome" in plan.table.measure and noisy:
        message = (
            "'outcome', the default, needs a flow without noise; name other measures, such as \"mean_pair_cosine\""
        )
        raise plan.error(("sweep", "measure"), message)
    if seeded:
        message = "noise of a sweep has no seed: every system has noise of its own, which follows from that of [sweep]"
        raise plan.error(("solver", "noise", "seed"), message)


def _draws_itself(values: Any) -> bool:
    """Tell whether there is a law without a seed, or noise, of which each system has its own draw."""
    if isinstance(values, dict):
        drawn = ("law" in values or "definite" in values or "noise" in values) and "seed" not in values
        return drawn or any(_draws_itself(entry) for entry in values.values())
    return isinstance(values, list) and any(_draws_itself(entry) for entry in values)
