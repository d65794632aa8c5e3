"""``tokendynamics check``: which statements of the theory apply to the flow and start of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from tokendynamics.cli._options import SpecFile
from tokendynamics.cli._signature import Json, Positive, command
from tokendynamics.cli._terminal import Console, echo_json, table

if TYPE_CHECKING:
    from tokendynamics.theorems import Check


_WHERE = (
    "A name is the paper's key and the number of the statement in it: asymptotic-4.1 is Theorem 4.1 of `asymptotic`. "
    "docs/mathematics.md and docs/atlas.md have every statement; tokendynamics.theorems.PAPERS has the papers."
)


@command("check")
def check_command(spec: SpecFile, *, threads: Positive | None = None, as_json: Json = False) -> None:
    """List the theorems that apply to a flow, and why others do not.

    SPEC is a TOML file as for simulate. What the theorems that apply predict is printed with them. Hypotheses are
    measured on the circuits and the start; nothing is integrated and nothing is written.

    Options:
        threads: CPU threads; overrides [solver] threads.
        as_json: Print the checks as JSON on standard output.
    """
    from tokendynamics.specification import check, read

    file = read(spec)
    checks = check(file, threads=threads)
    if as_json:
        from tokendynamics.provenance.manifest import plain

        echo_json(plain({"file": spec.name, "title": file.tables.title, "checks": checks}))
    else:
        _print(checks, file.tables.title or spec.name)


def _print(checks: list[Check], title: str) -> None:
    from tokendynamics.theorems.result import counted, symbols_in

    console = Console(highlight=False)
    columns = ("statement", "applies", "prediction, or why it does not apply")
    shown = table(*columns, left=columns, unbroken=columns[:1], title=title)
    for one in sorted((one for one in checks if one.structure), key=lambda one: -one.applies_to.mean()):
        assumed = [f"assumed: {text}" for text in one.assumed]
        predicted = [] if one.prediction is None else [one.prediction.text, *assumed]
        applies = "yes" if one.applies else f"to {counted(one.applies_to)}" if one.applies_to.any() else "no"
        shown.add_row(one.statement, applies, Text("\n".join([*predicted, *_violated(one)])))
    console.print(shown)
    texts = [one.prediction.text for one in checks if one.prediction is not None]
    texts += [reason for one in checks if one.structure for reason in one.reasons]
    if symbols := symbols_in(texts):
        console.print(Text(f"Symbols: {symbols}"))
    elsewhere: dict[str, list[str]] = {}
    for one in checks:
        if not one.structure:
            elsewhere.setdefault(one.reasons[0], []).append(one.statement)
    if elsewhere:
        console.print(Text("Statements about flows of another kind (what they need: what this flow has: their names)"))
    for reason, names in elsewhere.items():
        console.print(Text(f"  {reason}: {', '.join(names)}"))
    console.print(Text(_WHERE))
    for one in checks:
        if one.applies_to.any() and one.erratum:
            console.print(Text(f"{one.statement}, erratum: {one.erratum}"))


def _violated(one: Check) -> list[str]:
    """Return the sentence of each hypothesis violated somewhere, with its margin."""
    from tokendynamics.words import number

    margins = {
        f"{hypothesis.name}: {hypothesis.text}": hypothesis.margin
        for hypothesis in one.hypotheses
        if hypothesis.holds is False and hypothesis.margin is not None
    }
    beginnings = {text: next((start for start in margins if text.startswith(start)), None) for text in one.reasons}
    return [
        text if start is None else f"{text} (margin {number(margins[start])})" for text, start in beginnings.items()
    ]
