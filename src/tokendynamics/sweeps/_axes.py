"""What varies in a sweep: keys of the specification and the values that they take."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokendynamics.numerics.errors import shown
from tokendynamics.specification import SpecificationError
from tokendynamics.specification.toml import KeyPath, nearest_line
from tokendynamics.sweeps._tables import AxisTable, SweepTable
from tokendynamics.sweeps.measures import ALWAYS, COMPLETE, MEASURES

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


def axes_of(table: SweepTable, name: str, lines: dict[KeyPath, int]) -> tuple[Axis, ...]:
    """Return the axes of a sweep.

    Raises:
        SpecificationError: Two axes of one name or key, a number of points where none belongs or none where one does.
    """
    axes: list[Axis] = []
    for number, entry in enumerate(table.axis):
        line = nearest_line(lines, ("sweep", "axis", number, "key"))
        keys = (entry.key,) if isinstance(entry.key, str) else tuple(entry.key)
        called = keys[0].rsplit(".", 1)[-1] if entry.name is None else entry.name
        named = line if entry.name is None else nearest_line(lines, ("sweep", "axis", number, "name"))
        _check_name(called, axes, f"{name} line {named}: sweep.axis[{number}]")
        where = f"{name} line {line}: sweep.axis[{number}]"
        taken = next((key for key in keys for axis in axes if key in axis.keys), None)
        if taken is not None:
            raise SpecificationError(
                f"{where}: expected a key that no other axis has, got {taken!r} for the second time"
            )
        values = _values(entry, table, number, where)
        axes.append(Axis(called, keys, values, _labels(entry, values), line))
    if table.design == "random" and table.points is None:
        raise SpecificationError(f"{name} line {lines[('sweep',)]}: sweep: design 'random' needs points, their number")
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
    raise SpecificationError(f"{where}: expected {wanted}, got {shown(name)}; add name = …")


def _values(entry: AxisTable, table: SweepTable, number: int, where: str) -> tuple[Any, ...]:
    if table.design == "random":
        if entry.points is not None:
            raise SpecificationError(f"{where}: expected points in [sweep], not at an axis of a random design")
        return _random(entry, table, number)
    if table.points is not None:
        raise SpecificationError(f"{where}: expected points at the axes of a grid, not in [sweep]")
    if entry.values is not None:
        return tuple(entry.values)
    if entry.points is None or entry.points < 2:
        raise SpecificationError(f"{where}: expected points = 2 or more between low and high, got {entry.points}")
    space = np.geomspace if entry.spacing == "log" else np.linspace
    found = space(_float(entry.low), _float(entry.high), entry.points)
    whole = np.unique(np.rint(found).astype(int)).tolist()
    return tuple(whole if entry.whole else found.tolist())


def _random(entry: AxisTable, table: SweepTable, number: int) -> tuple[Any, ...]:
    """Draw the values of all points; those of an axis do not depend on the other axes."""
    source = np.random.Generator(np.random.Philox(np.random.SeedSequence(table.seed, spawn_key=(number,))))
    if entry.values is not None:
        return tuple(entry.values[place] for place in source.integers(len(entry.values), size=table.points).tolist())
    low, high = _float(entry.low), _float(entry.high)
    share = source.random(table.points)
    drawn = low * (high / low) ** share if entry.spacing == "log" else low + (high - low) * share
    return tuple(np.rint(drawn).astype(int).tolist() if entry.whole else drawn.tolist())


def _float(value: float | None) -> float:
    if value is None:
        raise AssertionError
    return value


def _labels(entry: AxisTable, values: tuple[Any, ...]) -> np.ndarray:
    kinds = {type(value) for value in values}
    if entry.labels is not None:
        words = {json.dumps(value): label for value, label in zip(entry.values or (), entry.labels, strict=True)}
        return np.array([words[json.dumps(value)] for value in values])
    if kinds <= {int, float} or kinds == {bool}:
        return np.array(values)
    return np.array([value if isinstance(value, str) else json.dumps(value) for value in values])
