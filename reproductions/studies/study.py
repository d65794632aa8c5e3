"""The studies by name: run one, say what it found, keep it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from reproductions.record import environment
from reproductions.studies import (
    consensus_time,
    metastability,
    remark_3_2,
    remark_3_5,
    rotary_strength,
    wendel,
)
from reproductions.studies.design import design
from reproductions.studies.record import Cell, Estimate, Size, StudyRecord, Table
from tokendynamics.figures import save
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.whole import whole_file


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: By which it is asked for.
        module: With `TITLE`, `QUESTION`, `SPECS`, `measure` and `conclude`, and `PICTURES` of tables, if there are any.
    """

    name: str
    module: ModuleType

    @property
    def title(self) -> str:
        """Heading of its page."""
        return self.module.TITLE

    @property
    def specs(self) -> tuple[str, ...]:
        """Names of its designs."""
        return self.module.SPECS

    @property
    def pictures(self) -> Mapping[str, Callable[[Table], Figure]]:
        """What draws a table, by the table's name."""
        return getattr(self.module, "PICTURES", {})

    def run(self, folder: Path, size: Size = "full", progress: bool | Progress = False, **how: Any) -> StudyRecord:
        """Run every design and measure.

        Args:
            folder: Where stores are, and go on where they were stopped.
            size: "quick" for a twentieth of the draws.
            progress: See `tokendynamics.sweeps.sweep`.
            how: `scheduler` or `workers` of it.
        """
        started = time.perf_counter()
        designs = {name: design(name, size, folder, progress=progress, **how) for name in self.specs}
        measure: Callable[[Mapping[str, Any]], tuple[Table, ...]] = self.module.measure
        tables = measure(designs)
        descriptions = {name: planned.told() for name, planned in designs.items()}
        return StudyRecord(self.name, size, descriptions, tables, time.perf_counter() - started, environment())

    def conclusions(self, record: StudyRecord) -> list[str]:
        """Return what the tables of a record say, in sentences."""
        return self.module.conclude({table.name: table for table in record.tables})

    def page(self, record: StudyRecord) -> str:
        """Return the record's page."""
        files = {table: self._file(table) for table in self.pictures}
        return page(record, self.module.TITLE, self.module.QUESTION, self.conclusions(record), files)

    def _file(self, table: str) -> str:
        return f"{self.name}-{table.lower().replace(' ', '-')}.svg"

    def write(self, record: StudyRecord, folder: Path) -> None:
        """Write the record, its page and pictures to a folder, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record.as_json(), indent=1, ensure_ascii=False, allow_nan=False)
        with whole_file(folder / f"{self.name}.json") as made:
            made.write_text(text + "\n", encoding="utf-8")
        # Of the record as it was written, so that the page is always that of the file.
        written = StudyRecord.from_json(json.loads(text))
        for table in written.tables:
            if table.name in self.pictures:
                save(self.pictures[table.name](table), folder / self._file(table.name))
        with whole_file(folder / f"{self.name}.md") as made:
            made.write_text(self.page(written), encoding="utf-8")

    def kept(self, folder: Path) -> StudyRecord:
        """Return the record in a folder.

        Raises:
            ArgumentValueError: It does not exist or cannot be read.
        """
        place = folder / f"{self.name}.json"
        try:
            return StudyRecord.from_json(json.loads(place.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArgumentValueError(expected("folder", f"the record of {self.name}", f"{place} ({error})")) from error


_ESTIMATES = "Numbers with brackets are estimates: value (lower … upper end of the 95 % interval)."


def page(record: StudyRecord, title: str, question: str, sentences: Sequence[str], pictures: Mapping[str, str]) -> str:
    """Return the page: question, answers, tables, how it was run.

    Args:
        record: What was found.
        title: Heading.
        question: What is asked, with the source.
        sentences: What the tables say.
        pictures: Files beside the page, by the names of the tables that they show.
    """
    quick = ["**Quick run**: few draws, wide intervals.", ""] if record.size == "quick" else []
    answers = [f"- {sentence}" for sentence in sentences]
    tables = [line for table in record.tables for line in _table(table, pictures.get(table.name))]
    return "\n".join(
        [
            f"# {title}",
            "",
            *quick,
            question,
            "",
            "## What was found",
            "",
            *answers,
            "",
            _ESTIMATES,
            "",
            *tables,
            *_run(record),
        ]
    )


def _table(table: Table, picture: str | None) -> list[str]:
    shown = [f"![{table.name}]({picture})", ""] if picture else []
    head = [f"| {' | '.join(table.columns)} |", "|" + "---|" * len(table.columns)]
    rows = [f"| {' | '.join(_text(cell) for cell in row)} |" for row in table.rows]
    return [f"## {table.name}", "", table.caption, "", *shown, *head, *rows, ""]


def _text(cell: Cell) -> str:
    if isinstance(cell, Estimate | str):
        return str(cell).replace("|", "\\|")
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    return "–" if cell != cell else f"{cell:.4g}"


def _run(record: StudyRecord) -> list[str]:
    folder = "../../reproductions/studies/specs"
    rows = [
        f"| [{name}]({folder}/{name}.toml) | {description['systems']:,} | {description['draws']:,} | "
        f"{description['seed']} | {description['sha256']} |"
        for name, description in record.designs.items()
    ]
    machine = ", ".join(f"{key} {value}" for key, value in record.ran_on.items())
    return [
        "## How it was run",
        "",
        f"`python -m reproductions.studies {record.study}` runs it again, with `--quick` a twentieth of it.",
        "",
        "| design | systems | draws a point | seed | SHA-256 of the file |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"{record.seconds:.0f} s on {machine}.",
        "",
    ]


STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study("remark-3-5", remark_3_5),
        Study("remark-3-2", remark_3_2),
        Study("wendel", wendel),
        Study("consensus-time", consensus_time),
        Study("rotary-strength", rotary_strength),
        Study("metastability", metastability),
    )
}
