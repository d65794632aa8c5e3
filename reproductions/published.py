"""What is published of a figure and what else was expected of it, from the file published.toml of each paper."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproductions.record import Quantity, Record, Relation, measured

_RELATIONS: Mapping[str, Relation] = {"equals": "=", "at_most": "≤", "at_least": "≥"}


@dataclass(frozen=True)
class Published:
    """What is published of one figure.

    Attributes:
        paper: "asymptotic", "logical", "positional", or the key of another source.
        entry: Its table in the file: printed numbers and matrices by name; ``figure``, ``statement`` and ``invented``
            as `Record` has them; ``rows`` of expected values. A row has a ``name``; ``equals``, ``at_most`` or
            ``at_least`` with the tolerance ``within``; and, as `Quantity` has them, ``source`` ("paper" by default)
            and ``reason``, or the name of one in ``reasons``. A row without an expected value is measured only. Lists
            in a row stand for several rows, whose names may have ``{k}``, from 1, and the row's other entries in
            braces.
    """

    paper: str
    entry: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return what is printed under a name."""
        return self.entry[name]

    def matrix(self, name: str) -> Tensor:
        """Return printed rows as a float64 tensor."""
        return torch.tensor(self.entry[name], dtype=torch.float64)

    def quantities(
        self,
        computed: Mapping[str, Any],
        unsettled: Mapping[str, str] | None = None,
        *,
        some: bool = False,
        **words: Any,
    ) -> tuple[Quantity, ...]:
        """Return the rows beside what came out, in the order of the file.

        Args:
            computed: A number for each row, or as many as its lists have.
            unsettled: Why these data cannot tell, for some rows.
            some: Whether rows may be left out.
            words: What stands in braces in the names.

        Raises:
            KeyError: There is no such row, or one is missing.
            ValueError: A row with lists has another number of values.
        """
        rows: Mapping[str, Mapping[str, Any]] = self.entry["rows"]
        if wrong := computed.keys() - rows.keys() if some else computed.keys() ^ rows.keys():
            raise KeyError(
                f"expected the rows of {self.paper}, {self.entry['figure']}; missing or unknown: {sorted(wrong)}"
            )
        return tuple(
            self._quantity(row, value, (unsettled or {}).get(key, ""), words | {"k": k})
            for key, of_key in rows.items()
            if key in computed
            for k, (row, value) in enumerate(zip(*_several(of_key, computed[key]), strict=True), start=1)
        )

    def _quantity(self, row: Mapping[str, Any], value: Any, unsettled: str, words: Mapping[str, Any]) -> Quantity:
        name = row["name"].format(**{**row, **words})
        for key, relation in _RELATIONS.items():
            if key in row:
                source, reason = row.get("source", "paper"), row.get("reason", "")
                reason = self.entry.get("reasons", {}).get(reason, reason)
                number = type(row[key])(value)  # counts stay whole numbers
                return Quantity(name, row[key], number, row["within"], relation, source, reason, unsettled)
        return measured(name, float(value))

    def record(
        self, quantities: Iterable[Quantity], results: Mapping[str, Any], *, seed: int | None = None, **words: Any
    ) -> Record:
        """Return the record; `words` and the seed are what stands in braces in its statement and inventions."""
        statement, invented = (self.entry[key].format(seed=seed, **words) for key in ("statement", "invented"))
        return Record(self.paper, self.entry["figure"], statement, tuple(quantities), invented, seed, results)


def _several(row: Mapping[str, Any], values: Any) -> tuple[Iterator[Mapping[str, Any]], Sequence[Any]]:
    """Return the rows that one with lists stands for, and a number for each."""
    counts = {len(value) for value in row.values() if isinstance(value, list)}
    if not counts:
        return iter([row]), [values]
    (count,) = counts
    return (
        {key: value[k] if isinstance(value, list) else value for key, value in row.items()} for k in range(count)
    ), list(values)


def published(paper: str, figure: str) -> Published:
    """Return what the file of a paper says of one of its figures."""
    return Published(paper, _file(paper)[figure])


def sections(paper: str) -> tuple[Mapping[str, Any], ...]:
    """Return what the file of a paper says of each of its figures."""
    return tuple(entry for entry in _file(paper).values() if isinstance(entry, Mapping))


@functools.cache
def _file(paper: str) -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / paper / "published.toml").read_text(encoding="utf-8"))
