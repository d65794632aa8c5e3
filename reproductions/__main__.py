"""``python -m reproductions [name …] --out folder``: run the papers' figures and write what came out."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from reproductions.figures import FIGURES, GIVEN
from reproductions.given import real_text
from reproductions.kept import store_record, summary, write_record
from reproductions.record import Record
from tokendynamics import figures
from tokendynamics.numerics import ArgumentValueError, CheckpointError, TokenDynamicsError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.printable import prepare_streams
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.whole import check_free, whole_folder

FORMATS = ("png", "svg", "pdf")
PAGE = "papers.md"
WRITER = "tokendynamics papers"


def main(arguments: list[str] | None = None) -> int:
    """Run the figures that were named, or all of them.

    Each gives name.png, name.svg, name.pdf and name.json; papers.md, written anew after each, holds them all.

    Returns:
        0; 1 if a quantity failed that theory or an independent simulation expects, for no known reason (what a paper
        claims and does not come out is reported, and is no failure of this program), or if a figure's network is not
        on this machine, which ends the run only if the figure was named; 130 if interrupted.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.records is not None and options.quick:
        parser.error("--records: are kept of runs at full size, not of --quick ones")
    if options.list:
        print("\n".join(f"{name:24s} {figure.title}" for name, figure in FIGURES.items()))
        return 0
    names = list(dict.fromkeys(options.name)) or list(FIGURES)
    try:
        given = _given(names, options)
        written = [entry for name in names for entry in _entries(name)]
        check_free(options.out, written, WRITER, overwrite=options.overwrite, keep=True, argument="--out")
        return _run_all(names, options, given)
    except (TokenDynamicsError, OSError) as error:
        _say(f"error: {error}")
        return 2 if isinstance(error, ArgumentValueError) else 1


def _given(names: list[str], options: argparse.Namespace) -> dict[str, str]:
    """Return the user's model and text by the name of the argument, and refuse what no chosen figure takes.

    Raises:
        ArgumentValueError: It is taken by none, or the text cannot be read.
    """
    given = {name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None}
    for argument in given:
        if not any(FIGURES[name].takes(argument) for name in names):
            wanted = f"a figure that takes it: {', '.join(name for name in FIGURES if FIGURES[name].takes(argument))}"
            raise ArgumentValueError(expected(f"--{argument}", wanted, ", ".join(names)))
    if "text" in given:
        real_text(given["text"])
    return given


def _run_all(names: list[str], options: argparse.Namespace, given: dict[str, str]) -> int:
    records: dict[str, Record] = {}
    widths: dict[str, float] = {}
    absent: list[str] = []
    try:
        with limited_threads(options.threads):
            for index, name in enumerate(names, start=1):
                _say(f"[{index}/{len(names)}] {name}: {FIGURES[name].title}")
                started = datetime.now(UTC)
                try:
                    records[name] = FIGURES[name].reproduce(
                        quick=options.quick, folder=options.runs or options.out / "learned", given=given
                    )
                except CheckpointError as error:
                    if options.name:
                        raise
                    absent.append(name)
                    _say(f"  not made: {error}")
                    continue
                if options.records is not None:
                    store_record(name, records[name], options.records)
                _write(name, records, widths, options, started)
                _say(_verdict(records[name]))
    except KeyboardInterrupt:
        _say(f"interrupted: {len(records)} of {len(names)} are written")
        return 130
    _say(f"written to {options.out / PAGE}" + (f", without {', '.join(absent)}" if absent else ""))
    unexplained = [
        quantity
        for record in records.values()
        for quantity in record.failures
        if quantity.source not in ("paper", "reading") and not quantity.reason
    ]
    return 1 if unexplained or absent else 0


def _entries(name: str) -> tuple[str, ...]:
    return (*(f"{name}.{kind}" for kind in (*FORMATS, "json")), PAGE)


def _write(
    name: str, records: dict[str, Record], widths: dict[str, float], options: argparse.Namespace, started: datetime
) -> None:
    """Write one figure in every format, its record and the page of all so far, beside the figures of earlier runs."""
    record = records[name]
    drawn = FIGURES[name].draw(record)
    widths[name] = float(drawn.get_size_inches()[0])
    command = shlex.join(["python", "-m", "reproductions", *sys.argv[1:]])
    described = manifest(command, {"last": name}, seed=record.seed, started=started, threads=options.threads)
    with whole_folder(
        options.out, described, WRITER, overwrite=options.overwrite, keep=True, shared=True, argument="--out"
    ) as made:
        for kind in FORMATS:
            figures.save(drawn, made / f"{name}.{kind}")
        write_record(record, made / f"{name}.json")
        (made / PAGE).write_text(summary(records, widths), encoding="utf-8")


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
    parser = argparse.ArgumentParser(prog="python -m reproductions", description=(main.__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="*", choices=[*FIGURES, []], metavar="name", help="a figure; see --list")
    parser.add_argument("--out", type=Path, default=Path("papers-out"), metavar="FOLDER", help="default: papers-out")
    learned = "where learned models are kept and taken from (default: 'learned' in the output)"
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help=learned)
    kept = "copy the numbers of each figure, as JSON and one page, to where the repository keeps them (docs/papers)"
    parser.add_argument("--records", type=Path, metavar="FOLDER", help=kept)
    model = "for figures of real networks, in the place of their own: whatever tokendynamics.load reads"
    parser.add_argument("--model", metavar="MODEL", help=model)
    text = "a text file in UTF-8 for figures that read one, such as WikiText-103's test set; default: Python's help"
    parser.add_argument("--text", metavar="FILE", help=text)
    parser.add_argument("--quick", action="store_true", help="fewer draws and starts: a minute or two in all")
    parser.add_argument("--threads", type=int, default=1, help="threads of the linear algebra, default 1")
    parser.add_argument("--overwrite", action="store_true", help="replace files in the way that no earlier run wrote")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    prepare_streams()
    sys.exit(main())
