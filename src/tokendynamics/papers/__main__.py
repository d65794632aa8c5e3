"""``python -m tokendynamics.papers [name …] --out folder``: run the papers' figures and write what came out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokendynamics import plots
from tokendynamics.numerics.threads import limited_threads
from tokendynamics.papers.figures import FIGURES
from tokendynamics.papers.kept import keep, write_record
from tokendynamics.papers.record import Record
from tokendynamics.papers.summary import summary

FORMATS = ("png", "svg", "pdf")


def main(arguments: list[str] | None = None) -> int:
    """Run the figures that were named, or all of them.

    Each gives name.png, name.svg, name.pdf and name.json; papers.md, written anew after each, holds them all.

    Returns:
        0; 1 if a quantity failed that theory or an independent simulation expects, for no known reason (what a paper
        claims and does not come out is reported, and is no failure of this program); 130 if interrupted.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.records is not None and options.quick:
        parser.error("--records: are kept of runs at full size, not of --quick ones")
    if options.list:
        print("\n".join(f"{name:24s} {figure.title}" for name, figure in FIGURES.items()))
        return 0
    names = list(dict.fromkeys(options.name)) or list(FIGURES)
    options.out.mkdir(parents=True, exist_ok=True)
    records: dict[str, Record] = {}
    widths: dict[str, float] = {}
    try:
        with limited_threads(options.threads):
            for index, name in enumerate(names, start=1):
                _say(f"[{index}/{len(names)}] {name}: {FIGURES[name].title}")
                record, widths[name] = _run(name, options.out, options.runs, quick=options.quick)
                records[name] = record
                if options.records is not None:
                    keep(name, record, options.records)
                (options.out / "papers.md").write_text(summary(records, widths), encoding="utf-8")
                _say(_verdict(record))
    except KeyboardInterrupt:
        _say(f"interrupted: {len(records)} of {len(names)} are written")
        return 130
    _say(f"written to {options.out / 'papers.md'}")
    ours = [
        quantity
        for record in records.values()
        for quantity in record.failures
        if quantity.source not in ("paper", "reading") and not quantity.reason
    ]
    return 1 if ours else 0


def _run(name: str, folder: Path, runs: Path | None, *, quick: bool) -> tuple[Record, float]:
    """Write what comes out of one figure; return it and the width of the drawing in inches."""
    figure = FIGURES[name]
    record = figure.reproduce(quick=quick, folder=runs or folder / "learned")
    drawn = figure.draw(record)
    for kind in FORMATS:
        plots.save(drawn, folder / f"{name}.{kind}")
    write_record(record, folder / f"{name}.json")
    return record, float(drawn.get_size_inches()[0])


def _verdict(record: Record) -> str:
    held = len(record.of_verdict("yes"))
    lines = [f"  {held} of {len(record.compared)} hold, {record.seconds:.1f} s"]
    lines += [f"  {record.banner}"] if record.banner else []
    for quantity in record.failures:
        because = f" ({quantity.reason})" if quantity.reason else ""
        lines.append(f"  does not hold: {quantity.name}: {quantity.expected:.6g}, ours {quantity.ours:.6g}{because}")
    for quantity in record.of_verdict("cannot tell"):
        lines.append(f"  cannot tell: {quantity.name}: ours {quantity.ours:.6g} ({quantity.unsettled})")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tokendynamics.papers", description=(main.__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", nargs="*", choices=[*FIGURES, []], metavar="name", help="a figure; see --list")
    parser.add_argument("--out", type=Path, default=Path("papers-out"), metavar="FOLDER", help="default: papers-out")
    learned = "where learned models are kept and taken from (default: 'learned' in the output)"
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help=learned)
    kept = "copy the numbers of each figure, as JSON and one page, to where the repository keeps them (docs/papers)"
    parser.add_argument("--records", type=Path, metavar="FOLDER", help=kept)
    parser.add_argument("--quick", action="store_true", help="fewer draws and starts: a minute or two in all")
    parser.add_argument("--threads", type=int, default=1, help="threads of the linear algebra, default 1")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
