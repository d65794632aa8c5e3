"""The records that the repository keeps: numbers of runs at full size, to be read without computing anything."""

from __future__ import annotations

import json
from pathlib import Path

from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.papers.figures import FIGURES
from tokendynamics.papers.record import Record
from tokendynamics.papers.summary import summary
from tokendynamics.provenance.whole_file import whole_file

PAGE = "papers.md"


def keep(name: str, record: Record, folder: str | Path) -> None:
    """Write a record to ``folder/name.json``, and the page of all records there.

    What is written are numbers and what they mean: expected, ours, tolerance, sizes, seeds, versions. There is no
    drawing and no path of the machine that computed them.

    Args:
        name: Of the figure.
        record: At full size.
        folder: Made if it does not exist; the records of other figures stay.

    Raises:
        ArgumentValueError: A quick run, or a record there that cannot be read.
    """
    if record.quick is not None:
        raise ArgumentValueError(expected("record", "a run at full size", record.banner))
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    write_record(record, place / f"{name}.json")
    with whole_file(place / PAGE) as page:
        page.write_text(summary(kept(place)), encoding="utf-8")


def kept(folder: str | Path) -> dict[str, Record]:
    """Return the records of a folder by the name of their figure, in the order of the papers.

    Raises:
        ArgumentValueError: A record that cannot be read.
    """
    found = {name: Path(folder) / f"{name}.json" for name in FIGURES}
    return {name: _read(path) for name, path in found.items() if path.exists()}


def write_record(record: Record, path: Path) -> None:
    """Write a record as JSON, whole or not at all."""
    text = json.dumps(record.as_json(), indent=2, ensure_ascii=False, allow_nan=False)
    with whole_file(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def _read(path: Path) -> Record:
    try:
        return Record.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        advice = "run that figure again"
        raise ArgumentValueError(expected("records", f"a record in {path}", repr(error)[:200], advice)) from error
