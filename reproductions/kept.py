"""The records that the repository keeps, numbers of runs at full size, and all of them as one page of Markdown."""

from __future__ import annotations

import functools
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from reproductions.figures import FIGURES
from reproductions.record import Quantity, Record
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.provenance.whole import whole_file

_SOURCES = {
    "paper": "the paper",
    "reading": "our reading of the paper",
    "theory": "theory",
    "simulation": "independent reference (separate code, float64)",
    "nobody": "",
}
_VERDICTS = {"yes": "yes", "no": "**no**", "cannot tell": "*cannot tell*", "measured": ""}


_PIXELS_PER_INCH = 110


def summary(records: Mapping[str, Record], widths: Mapping[str, float] | None = None) -> str:
    """Write a page: counts, what does not come out and why, what is not decided, a section for each record.

    Args:
        records: By name, which is also that of the PNG beside the page.
        widths: Of the figures in inches, by name: all are shown to one scale, so that their type has one size. None
            for a page without drawings.
    """
    held, compared = (
        sum(len(rows) for rows in columns)
        for columns in zip(*((record.of_verdict("yes"), record.compared) for record in records.values()), strict=True)
    )
    lines = ["# The papers' figures, reproduced", ""]
    if any(record.quick is not None for record in records.values()):
        lines += ["**Quick run**: each section says what was reduced; shares of few draws are rough.", ""]
    lines += [f"{held} of {compared} quantities of which something was expected come out.", "", *_EXPLAINED, ""]
    lines += _missing(records)
    lines += _unsettled(records)
    for name, record in records.items():
        lines += _section(name, record, None if widths is None else widths.get(name))
    return "\n".join(lines)


_EXPLAINED = (
    "Who expects it: *the paper* prints or claims the number; *our reading of the paper* puts a number, chosen here, "
    "to what the paper says in words or draws; *theory* follows from the equations; an *independent reference* was "
    "computed before by separate code. A row that nobody expects is only measured.",
)


def _missing(records: Mapping[str, Record]) -> list[str]:
    rows = [
        f"| [{name}](#{name}) | {_cell(quantity.name)} | {_SOURCES[quantity.source]} | {_expected(quantity)} | "
        f"{_number(quantity.ours)} | {_cell(why(name, quantity))} |"
        for name, record in records.items()
        for quantity in record.failures
    ]
    head = ["| figure | quantity | who expects it | expected | ours | why |", "|---|---|---|---|---|---|"]
    return ["## What does not come out", "", *head, *rows, ""] if rows else []


def why(name: str, quantity: Quantity) -> str:
    """Return why a quantity of a record does not come out: as its figure says, or as was found later; empty if unknown.

    Args:
        name: Of the record.
        quantity: Of it.
    """
    return quantity.reason or explained().get(name, {}).get(quantity.name, "")


@functools.cache
def explained() -> Mapping[str, Mapping[str, str]]:
    """Return the reasons that became known after the runs, by record and quantity."""
    return tomllib.loads((Path(__file__).parent / "explained.toml").read_text(encoding="utf-8"))


def _unsettled(records: Mapping[str, Record]) -> list[str]:
    rows = [
        f"| [{name}](#{name}) | {_cell(quantity.name)} | {_expected(quantity)} | {_number(quantity.ours)} | "
        f"{_cell(quantity.unsettled)} |"
        for name, record in records.items()
        for quantity in record.of_verdict("cannot tell")
    ]
    head = ["| figure | quantity | expected | ours | why |", "|---|---|---|---|---|"]
    return ["## What these runs cannot tell", "", *head, *rows, ""] if rows else []


def _section(name: str, record: Record, width: float | None) -> list[str]:
    rows = [
        f"| {_cell(quantity.name)} | {_SOURCES[quantity.source]} | {_expected(quantity)} | {_number(quantity.ours)} | "
        f"{_number(quantity.tolerance)} | {_VERDICTS[quantity.verdict]} |"
        for quantity in record.quantities
    ]
    picture = f'<img src="{name}.png" alt="{name}" width="{_PIXELS_PER_INCH * width:.0f}">' if width else ""
    machine = ", ".join(f"{key} {value}" for key, value in record.ran_on.items())
    return [
        f"## {name}",
        "",
        *((f"**{record.banner}**", "") if record.banner else ()),
        *((picture, "") if picture else ()),
        record.caption,
        "",
        "| quantity | who expects it | expected | ours | tolerance | holds |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *_said(record),
        f"{record.seconds:.1f} s on {machine}.",
        "",
    ]


def _said(record: Record) -> list[str]:
    """Return a table of the words that a network said; empty for most figures."""
    rows = [f"| {_cell(name)} | {_verbatim(text)} |" for name, text in record.texts.items()]
    return ["| when | words |", "|---|---|", *rows, ""] if rows else []


def _verbatim(text: str) -> str:
    r"""Return a text as code, so that nothing in it is taken for Markdown; ⏎ stands for the end of a line.

    >>> _verbatim("a | `b`")
    '`` a \\| `b` ``'
    """
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {_cell(' ⏎ '.join(text.splitlines()))} {fence}"


def _cell(text: str) -> str:
    """Escape bars, which inside a cell of a table would end it."""
    return text.replace("|", "\\|")


def _expected(quantity: Quantity) -> str:
    bound = f"{quantity.relation} " if quantity.relation in ("≤", "≥") else ""
    return f"{bound}{_number(quantity.expected)}"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.7g}"


PAGE = "papers.md"


def store_record(name: str, record: Record, folder: str | Path) -> None:
    """Write a record to ``folder/name.json``, and the page of all records there.

    What is written are numbers and what they mean: expected, ours, tolerance, sizes, seeds, versions. There is no
    drawing and no path of the machine that computed them.

    Raises:
        ArgumentValueError: A quick run, or a record there that cannot be read.
    """
    if record.quick is not None:
        raise ArgumentValueError(expected("record", "a run at full size", record.banner))
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    write_record(record, place / f"{name}.json")
    with whole_file(place / PAGE) as page:
        page.write_text(summary(stored_records(place)), encoding="utf-8")


def stored_records(folder: str | Path) -> dict[str, Record]:
    """Return the records of a folder by the name of their figure, in the order of the papers.

    Raises:
        ArgumentValueError: A record that cannot be read.
    """
    paths = {name: Path(folder) / f"{name}.json" for name in FIGURES}
    return {name: _read(path) for name, path in paths.items() if path.exists()}


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
