"""From a sweep's file to its points, their systems, and the tasks that run them.

A task is a chunk of the store: which systems it has follows from the file alone.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification import SpecificationError, SpecificationFile
from tokendynamics.specification.build import Setup, build
from tokendynamics.specification.draws import OfSystems
from tokendynamics.specification.file import checked, checked_table, located
from tokendynamics.specification.section import did_you_mean
from tokendynamics.specification.toml import KeyPath, key_lines, parse_toml, read_text
from tokendynamics.sweeps._axes import Axis, axes_of
from tokendynamics.sweeps._tables import SweepOnly, SweepTable
from tokendynamics.sweeps.measures import MEASURES

DRAW, POINT = "draw", "point"
_MOST_OF_A_TASK, _TASKS, _FEWEST = 8192, 64, 256
"""Systems of a task, tasks of a sweep: small systems run at 30 µs each, what is to be done for a task takes 50 ms."""
_SAMPLES = 1000
_STEPS = 2000
"""Attempted steps of a system in the first try, unless the file says."""


@dataclass(frozen=True)
class Block:
    """Neighbouring draws of one point.

    Attributes:
        point: Index along each axis of points.
        draws: The streams of its systems.
    """

    point: tuple[int, ...]
    draws: OfSystems


@dataclass(frozen=True)
class Plan:
    """A checked sweep.

    Attributes:
        name: The file's name, for messages.
        text: What the file says.
        lines: The line of every key.
        values: The tables of the specification, as TOML has them.
        table: The table ``[sweep]``.
        axes: What varies.
    """

    name: str
    text: str
    lines: dict[KeyPath, int]
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

    def blocks(self, task: tuple[int, ...]) -> Iterator[Block]:
        """Return the systems of a task, in the order of the store."""
        *points, draws = self.region(task)
        for point in product(*(range(part.start, part.stop) for part in points)):
            yield Block(point, OfSystems(self._key(point), draws.start, draws.stop - draws.start))

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
                _put(values, path, value)
                lines |= {
                    path[: length + 1]: axis.line for length in range(len(path)) if path[: length + 1] not in lines
                }
                lines[path] = axis.line
        return checked(values, self.name, self.text, lines, of_systems=True)

    def setup(self, block: Block) -> Setup:
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

    def error(self, path: KeyPath, message: str) -> SpecificationError:
        """Return an error about the key at `path`, with its line."""
        return located(self.name, self.lines, path, message)

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


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set a key, and make the tables above it that are not there."""
    *above, last = path
    place: Any = values
    for part in above:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[last] = value


@typed_arguments
def read_plan(path: str | Path) -> Plan:
    """Read and check a sweep's file.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        OSError: The file cannot be read.
    """
    place = Path(path)
    return parse_plan(read_text(place), place.name)


@typed_arguments
def parse_plan(text: str, name: str) -> Plan:
    """Check the text of a sweep's file; see `read_plan`."""
    values, lines = parse_toml(text, name), key_lines(text)
    if "sweep" not in values:
        raise SpecificationError(f"{name}: missing table [sweep]; see docs/sweep.md")
    table = checked_table(SweepOnly, {"sweep": values.pop("sweep")}, name, lines).sweep
    plan = Plan(name, text, lines, _with_budget(values, table), table, axes_of(table, name, lines))
    _check_tables(plan)
    return plan


def _check_tables(plan: Plan) -> None:
    """Refuse tables and keys that a sweep has no use for, or other words for."""
    if "output" in plan.values:
        raise plan.error(("output",), "a sweep draws no trajectories; remove the table")
    if "systems" in plan.values.get("start", {}):
        raise plan.error(("start", "systems"), "a sweep has draws = … in [sweep] instead")
    for key in ("measure", "over_time"):
        for name in getattr(plan.table, key):
            known = MEASURES if key == "measure" else [each for each in MEASURES if MEASURES[each].of_states]
            if name not in known:
                raise plan.error(("sweep", key), f"unknown measure {name!r}; {did_you_mean(name, known)}")


def _draws_itself(values: Any) -> bool:
    """Tell whether there is a law without a seed, of which each system has its own draw."""
    if isinstance(values, dict):
        drawn = ("law" in values or "definite" in values) and "seed" not in values
        return drawn or any(_draws_itself(entry) for entry in values.values())
    return isinstance(values, list) and any(_draws_itself(entry) for entry in values)


def _with_budget(values: dict[str, Any], table: SweepTable) -> dict[str, Any]:
    """Give the first try a budget of steps where the file does not, and a second engine waits."""
    if table.retry == "none" or not isinstance(values.get("solver", {}), dict):
        return values
    return values | {"solver": {"max_steps": _STEPS, **values.get("solver", {})}}
