"""A gallery page for every figure, table and remark that `reproductions` computes: text, then its code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reproductions.figures import FIGURES
from reproductions.ledger import Row, ledger_records, ledger_rows
from reproductions.record import Quantity, Record
from tokendynamics.theorems import ATLAS, PAPERS
from tokendynamics.words import listing, number

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path(__file__).parents[1] / "built" / "paper_scripts"

FAST = frozenset(
    {
        "asymptotic-fig1", "asymptotic-fig2", "asymptotic-fig3", "asymptotic-wendel",
        "logical-worked-examples", "logical-2-18", "logical-equivalence",
        "positional-fig1", "positional-fig2b", "positional-fig5", "positional-fig9b", "positional-remark-3-2",
        "metastability-lifetime", "metastability-staircase", "metastability-circle", "noise-phases", "norms-rates",
        "rank-collapse",
    }
)  # fmt: skip
"""Those that a quick build runs: each takes a few seconds."""

_SHOWN = 6
_HEAD = """Figures of the papers
=====================

Every figure and table of the papers, with the code that computes it and what comes out.
"""
_SOURCES = {
    "paper": "the paper",
    "reading": "our reading of the paper",
    "theory": "theory",
    "simulation": "an independent computation",
}


def script(name: str, record: Record, rows: Sequence[Row], records: dict[str, Record]) -> str:
    """Return the script of one page.

    Args:
        name: Of the figure.
        record: Of its run at full size.
        rows: Of the ledger that the record decides.
        records: All, for the verdicts.
    """
    title = f"{record.figure} of {record.paper}"
    lines = [
        'r"""',
        plain(title),
        "=" * len(title),
        "",
        *_claims(rows, records),
        "At full size",
        "------------",
        "",
        *_numbers(name, record),
        f"**What was invented:** {plain(record.invented)}.",
        "",
        "The code",
        "--------",
        "",
        *_size(name),
        '"""',
        "",
        *([] if name in FAST else [f"# sphinx_gallery_thumbnail_path = 'gallery/thumbs/{name}.png'"]),
        "from reproductions.figures import FIGURES",
        "",
        f'figure = FIGURES["{name}"]',
        "record = figure.reproduce(quick=True)",
        "for quantity in record.compared:",
        '    print(f"{quantity.verdict:11}  {quantity.name}: {quantity.ours:.4g}")',
        "",
        "# %%",
        "# The drawing:",
        "",
        "figure.draw(record)",
    ]
    return "\n".join(lines) + "\n"


def _claims(rows: Sequence[Row], records: dict[str, Record]) -> Iterator[str]:
    for row in rows:
        because = f" {plain(row.because)}" if row.because else ""
        yield f"**Claim** (:ref:`ledger, {row.number} <ledger-{row.key}>`): {plain(row.says)}"
        yield ""
        yield f"**Verdict:** {row.words(records)}.{because}"
        yield ""


def _numbers(name: str, record: Record) -> Iterator[str]:
    came_out = len(record.of_verdict("yes"))
    failed = [quantity for quantity in record.compared if quantity.verdict != "yes"]
    chosen = (failed + [quantity for quantity in record.compared if quantity.verdict == "yes"])[:_SHOWN]
    of_all = "" if len(chosen) == len(record.compared) else " Some of them:"
    yield f"{came_out} of {len(record.compared)} quantities come out (:doc:`all numbers </papers/papers>`).{of_all}"
    yield ""
    yield from (".. list-table::", "   :header-rows: 1", "")
    yield from _row("quantity", "who expects it", "expected", "ours", "tolerance", "comes out")
    for quantity in chosen:
        yield from _row(*_cells(quantity))
    yield ""


def _cells(quantity: Quantity) -> tuple[str, ...]:
    bound = "" if quantity.relation == "=" else f"{quantity.relation} "
    return (
        plain(quantity.name),
        _SOURCES[quantity.source],
        f"{bound}{number(quantity.expected, 4)}",
        number(quantity.ours, 4),
        number(quantity.tolerance, 2),
        quantity.verdict,
    )


def _row(*cells: str) -> Iterator[str]:
    for index, cell in enumerate(cells):
        yield f"   {'* -' if index == 0 else '  -'} {cell}"


def _size(name: str) -> Iterator[str]:
    reduced = FIGURES[name].quick
    words = listing([f"{plain(argument)} = {plain(str(value))}" for argument, value in reduced.items()])
    yield f"This page computes it at a reduced size: {words}." if reduced else "This page computes it at full size."
    yield "The code runs in a clone of the repository. There, the command for the figure at full size and its files is"
    yield from ("", ".. code-block:: console", "", f"   $ python -m reproductions {name} --out papers-out", "")
    if name not in FAST:
        yield "A quick build of this site shows a picture of an earlier run instead of running it."
        yield from ("", f".. image:: /gallery/thumbs/{name}.png", f"   :alt: {FIGURES[name].title}")
    yield ""


def plain(text: str) -> str:
    r"""Escape what RST would read as markup, and write formulas between dollars as it does.

    >>> plain("|P_2|, $e^{2s}$")
    '\\|P\\_2\\|, :math:`e^{2s}`'
    """
    return "".join(
        f":math:`{part}`" if index % 2 else re.sub(r"([\\*`|_])", r"\\\1", part)
        for index, part in enumerate(text.split("$"))
    )


def place_of(name: str) -> Path:
    """Return where the script of a figure is written."""
    paper, _, rest = name.partition("-")
    prefix = "" if name in FAST else "slow_"
    return FOLDER / paper / f"{prefix}{paper}_{rest.replace('-', '_')}.py"


def write_scripts(app: Sphinx) -> None:
    """Write a script for every figure, and a heading for every paper."""
    rows, records = ledger_rows(), ledger_records()
    texts = {
        FOLDER
        / "README.rst": "Figures of the papers\n=====================\n\nEvery figure and table, with its code.\n"
    }
    sources = PAPERS | {statement.paper.key: statement.paper for statement in ATLAS}
    for paper in (sources[key] for key in dict.fromkeys(records[name].paper for name in FIGURES)):
        texts[FOLDER / paper.key / "README.rst"] = f"{paper.key}\n{'-' * len(paper.key)}\n\n{paper}\n"
    for name in FIGURES:
        chosen = [row for row in rows if row.record == name]
        texts[place_of(name)] = script(name, records[name], chosen, records)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in set(FOLDER.rglob("*.py")) - set(texts):
        path.unlink()


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the scripts before sphinx-gallery lists them."""
    app.connect("builder-inited", write_scripts, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
