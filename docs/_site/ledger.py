"""The ledger's table and a page of details for each paper, from docs/ledger.toml, the records and the tests."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sphinx.application import Sphinx

from reproductions.kept import why
from reproductions.ledger import RECORDS, ROOT, VERDICTS, Row, ledger_records, ledger_rows
from reproductions.record import Quantity, Record
from reproductions.tried import Test
from tokendynamics.theorems import ATLAS, PAPERS
from tokendynamics.words import count, duration, number

FOLDER = Path(__file__).parents[1] / "built" / "ledger"
SECONDS: Mapping[str, float] = json.loads((FOLDER.parents[1] / "ledger_seconds.json").read_text(encoding="utf-8"))
"""How long each test of the ledger took when it was timed."""
PARTS = {paper: f"{PAPERS[paper]}." for paper in PAPERS} | {
    "atlas": "What other papers state, under the key of each; [the atlas](../../atlas.md) has the statements."
}
"""What the ledger has a page for, and what that page says first."""
SOURCES = {statement.paper.key: statement.paper for statement in ATLAS}

_UNITS = re.compile(r"(\d) (%|s\b)")
"""A number and its unit, which stay on one line."""
_OUTCOMES = {"yes": "yes", "no": "**no**", "cannot tell": "cannot tell"}


def table(rows: Sequence[Row], records: Mapping[str, Record]) -> Iterator[str]:
    """Yield the lines of the overview: counts of verdicts, every claim in one row, and claims by verdict."""
    decided = {row.key: row.decided(records) for row in rows}
    yield "## Counts"
    yield ""
    yield f"| verdict | {' | '.join(f'`{paper}`' for paper in PARTS)} | all |"
    yield f"|---|{'--:|' * (len(PARTS) + 1)}"
    for verdict, words in VERDICTS.items():
        chosen = [row.part for row in rows if decided[row.key] == verdict]
        cells = " | ".join(str(chosen.count(paper)) for paper in PARTS)
        yield f"| [{words}](#{_anchor(words)}) | {cells} | {len(chosen)} |"
    for paper in PARTS:
        yield from ("", f"## Claims of {paper}", "", "| number | claim | verdict |", "|---|---|---|")
        for row in rows:
            if row.part == paper:
                yield f"| [{_place(row)}](#ledger-{row.key}) | {row.says} | {row.words(records)} |"
    yield from ("", "## Claims by verdict")
    for verdict, words in VERDICTS.items():
        yield from ("", f"### {words[0].upper()}{words[1:]}", "")
        for paper in PARTS:
            links = [
                f"[{_place(row)}](#ledger-{row.key})"
                for row in rows
                if (row.part, decided[row.key]) == (paper, verdict)
            ]
            yield f"- `{paper}`: {', '.join(links) or 'no claim'}"


def _place(row: Row) -> str:
    return row.number if row.part == row.paper else f"`{row.paper}` {row.number}"


def _anchor(words: str) -> str:
    return re.sub(r"[^\w -]", "", words).replace(" ", "-")


def page(paper: str, rows: Sequence[Row], records: Mapping[str, Record], commits: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the page of one paper."""
    yield from (f"# Ledger: {paper}", "", PARTS[paper], "", "[All claims in one table](../../ledger.md)")
    for row in rows:
        yield from ("", f"(ledger-{row.key})=", f"## {_place(row)}", "", row.says, "")
        if row.part != row.paper:
            yield f"- **Source:** {SOURCES[row.paper]}; read {SOURCES[row.paper].read}."
        if row.given:
            yield f"- **Hypotheses:** {row.given}"
        words = row.words(records)
        yield f"- **Verdict:** {words}.{f' {row.because}' if row.because else ''}"
        if row.measured:
            yield f"- **Compared:** {row.measured}."
        if row.record:
            yield from _of_record(row, records[row.record], commits.get(row.record, ""))
        if row.tests or row.against:
            yield from _of_tests(row)


def _of_record(row: Row, record: Record, commit: str) -> Iterator[str]:
    quantities = row.quantities({row.record: record})
    came_out = sum(quantity.verdict == "yes" for quantity in quantities)
    computed = f", computed at commit `{commit}`" if commit else ""
    yield (
        f"- **Record:** {came_out} of {len(quantities)} quantities come out "
        f"([all numbers](../../papers/papers.md#{row.record})); {_time(record.seconds)}{_before(record)}{computed}."
    )
    yield f"- **Run again:** `python -m reproductions {row.record}`"
    others = [quantity for quantity in quantities if quantity.verdict != "yes"]
    title = "Quantities that do not come out or are not decided" if others else "Quantities"
    yield from ("", f"<details><summary>{title}</summary>", "")
    yield from ("| quantity | expected | ours | tolerance | comes out | why |", "|---|---|---|---|---|---|")
    yield from (_quantity(row.record, quantity) for quantity in others or quantities)
    yield from ("", "</details>", "")


_TRAINED = {
    "seconds of learning, all runs": "for learning",
    "seconds of training in all": "for training",
    "seconds of a run, median": "for each training",
}
"""Quantities that say how long the networks took that a run found trained."""


def _before(record: Record) -> str:
    times = [
        f", besides {_time(quantity.ours)} {_TRAINED[quantity.name]}"
        for quantity in record.quantities
        if quantity.name in _TRAINED
    ]
    return "".join(times)


def _quantity(name: str, quantity: Quantity) -> str:
    bound = "" if quantity.relation == "=" else f"{quantity.relation} "
    cells = (
        quantity.name,
        f"{bound}{number(quantity.expected, 4)}",
        number(quantity.ours, 4),
        number(quantity.tolerance, 2),
        _OUTCOMES[quantity.verdict],
        quantity.unsettled or (why(name, quantity) if quantity.verdict == "no" else ""),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _of_tests(row: Row) -> Iterator[str]:
    yield from ("", f"<details><summary>Tests{_took(row)}</summary>", "")
    if row.tests:
        yield from (f"Tests that hold the claim, {count(row.tried)} cases in all:", "", *_listed(row.tests), "")
    if row.against:
        yield from ("Tests that show where the claim or its print fails:", "", *_listed(row.against), "")
    identities = " ".join(dict.fromkeys(str(test) for test in (*row.tests, *row.against)))
    yield from ("```console", f"$ pytest {identities}", "```", "", "</details>", "")


def _listed(tests: Sequence[Test]) -> Iterator[str]:
    return (f"- `{test}`" for test in tests)


def _took(row: Row) -> str:
    times = [SECONDS.get(str(test)) for test in (*row.tests, *row.against)]
    known = [seconds for seconds in times if seconds is not None]
    return f" ({_time(sum(known))})" if len(known) == len(times) else ""


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 0.1 else "less than 0.1 s"


def commits_of_records() -> dict[str, str]:
    """Return the commit that stored the numbers of each record; empty where git or the history is not at hand."""
    commits: dict[str, str] = {}
    for path in sorted(RECORDS.glob("*.json")):
        command = ["git", "log", "-1", "--format=%h", "-G", '"seconds": ', "--", path.as_posix()]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
        except (OSError, subprocess.CalledProcessError):
            return {}
        commits[path.stem] = done.stdout.strip()
    return commits


def write_ledger(app: Sphinx) -> None:
    """Write the table, which docs/ledger.md includes, and the pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows, records, commits = ledger_rows(), ledger_records(), commits_of_records()
    texts = {"table.txt": table(rows, records)}
    for paper in PARTS:
        texts[f"{paper}.md"] = page(paper, [row for row in rows if row.part == paper], records, commits)
    for name, lines in texts.items():
        path, text = FOLDER / name, _UNITS.sub("\\1\u00a0\\2", "\n".join(lines)) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # Sphinx reads again what is newer
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before the sources are listed."""
    app.connect("builder-inited", write_ledger)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
