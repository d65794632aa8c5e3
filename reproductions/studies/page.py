"""A study's record as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproductions.studies.record import Cell, Estimate, StudyRecord, Table

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
    said = [f"- {sentence}" for sentence in sentences]
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
            *said,
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
        f"| [{name}]({folder}/{name}.toml) | {told['systems']:,} | {told['draws']:,} | {told['seed']} | "
        f"{told['sha256']} |"
        for name, told in record.designs.items()
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
