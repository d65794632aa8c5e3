"""All records as one page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from tokendynamics.papers.record import Quantity, Record

_SOURCES = {"paper": "the paper", "theory": "theory", "simulation": "independent simulation"}


def summary(records: Mapping[str, Record]) -> str:
    """A page with the counts, what does not come out and why, and a section with a table for each record.

    Args:
        records: By name, which is also that of the PNG beside the page.
    """
    quantities = [quantity for record in records.values() for quantity in record.quantities]
    held = sum(quantity.ok for quantity in quantities)
    lines = [
        "# The papers' figures, reproduced",
        "",
        f"{held} of {len(quantities)} quantities come out as expected.",
        "",
    ]
    missing = [(name, quantity) for name, record in records.items() for quantity in record.failures]
    if missing:
        lines += [
            "## What does not come out",
            "",
            "| figure | quantity | who expects it | expected | ours | why |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| [{name}](#{name}) | {quantity.name} | {_SOURCES[quantity.source]} | {_expected(quantity)} | "
            f"{_number(quantity.ours)} | {quantity.reason} |"
            for name, quantity in missing
        ]
        lines.append("")
    for name, record in records.items():
        lines += _section(name, record)
    return "\n".join(lines)


def _section(name: str, record: Record) -> list[str]:
    rows = [
        f"| {quantity.name} | {_SOURCES[quantity.source]} | {_expected(quantity)} | {_number(quantity.ours)} | "
        f"{_number(quantity.tolerance)} | {'yes' if quantity.ok else '**no**'} |"
        for quantity in record.quantities
    ]
    machine = ", ".join(f"{key} {value}" for key, value in record.ran_on.items())
    return [
        f"## {name}",
        "",
        f"![{name}]({name}.png)",
        "",
        record.caption,
        "",
        "| quantity | who expects it | expected | ours | tolerance | holds |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"{record.seconds:.1f} s on {machine}.",
        "",
    ]


def _expected(quantity: Quantity) -> str:
    bound = "" if quantity.relation == "=" else f"{quantity.relation} "
    return f"{bound}{_number(quantity.expected)}"


def _number(value: float) -> str:
    return f"{value:.7g}"
