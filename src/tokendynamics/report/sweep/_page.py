"""Puts a sweep into one page: how often each outcome was, where, and how the runs ended."""

from __future__ import annotations

import xarray as xr

from tokendynamics.figures.figure import Section, Table, cells
from tokendynamics.report._page import render, shortened
from tokendynamics.report._registry import page_of
from tokendynamics.report.sweep._diagrams import diagrams
from tokendynamics.report.sweep._shares import kind_of, together, words_of
from tokendynamics.report.sweep._words import findings, ranges
from tokendynamics.sweeps.systems.results import SweepResult
from tokendynamics.words import Convention, count


@page_of.register(SweepResult)
def sweep_page(found: SweepResult) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        found: What is shown; nothing is measured here.
    """
    run = int(found.status.total.sum())
    missing = [] if run == found.systems else [f"Of {count(found.systems)} systems {count(run)} were run so far."]
    said = missing + (findings(found.shares, found.status, found.again) if run else [])
    return render(
        "sweep.html.jinja",
        title=f"{found.title}: how often does each outcome occur?",
        verdict_title="Result",
        sections=_sections(found) if run else [],
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in found.manifest.items()},
        files=found.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        name=found.title,
        shape=found.shape,
        facts=[*ranges(found.shares), *found.facts],
        findings=said,
    )


def _sections(found: SweepResult) -> list[Section]:
    shown = diagrams(found.shares)
    further = [str(axis) for axis in found.shares.total.dims if found.shares.sizes[axis] > 1][2:]
    notes = [f"Systems of all values of {' and of '.join(further)} are counted together here."] if further else []
    many = len(shown) > 1
    parts = {"variants" if many else "figures": tuple(shown), "notes": (*notes, *found.notes)}
    sections = [Section("where", "Where does each outcome occur?", **parts)] if shown else []
    return [*sections, Section("ends", "How did the runs end?", tables=_tables(found))]


def _tables(found: SweepResult) -> tuple[Table, ...]:
    shown = [found.status] if kind_of(found.shares) == "status" else [found.shares, found.status]
    return tuple(_table(shares) for shares in shown)


def _table(shares: xr.Dataset) -> Table:
    rows = []
    for word in words_of(shares):
        share = together(shares, word)
        rows.append(cells([word, share.count, share.count / share.total, *share.interval]))
    kind = kind_of(shares).capitalize()
    return Table(f"{kind} of all systems, with 95 % intervals", (kind, "Systems", "Share", "Low", "High"), tuple(rows))


_CONVENTIONS = (
    Convention(
        "Intervals",
        "are Wilson’s, of 95 %, of the probability with which a system drawn at a point ends in that way",
        "shares of few systems would look as sure as those of many",
    ),
    Convention(
        "Along a parameter",
        "systems of all values of the others are counted together, with the weight that the design gives them",
        "an effect that is opposite at two values of another parameter would show, which cancels here: see the maps",
    ),
    Convention(
        "What changes most",
        "is the largest difference of any two values; it was looked for, so that of many values some differ by chance, "
        "and intervals that just do not overlap are a weak sign",
        "a difference would have to be named before the sweep",
    ),
    Convention(
        "Undecided",
        "is what neither rests nor has met at the end of its run; of these a longer run may decide some",
        "they would be counted with an outcome that they have not reached",
    ),
)
