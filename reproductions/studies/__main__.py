"""``python -m reproductions.studies [name …] --out folder``: run studies, write records and pages."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reproductions.studies.study import STUDIES
from tokendynamics.numerics import ArgumentValueError, TokenDynamicsError


def main(arguments: list[str] | None = None) -> int:
    """Run the studies that were named, or all of them.

    Each gives name.json and name.md. Stores stay in the folder: a run that was stopped continues there.

    Returns:
        0; 1 after an error, 2 after a wrong argument, 130 if interrupted.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.records is not None and options.quick:
        parser.error("--records: are kept of runs at full size, not of --quick ones")
    if options.list:
        print("\n".join(f"{name:20s} {study.title}" for name, study in STUDIES.items()))
        return 0
    size = "quick" if options.quick else "full"
    try:
        for name in dict.fromkeys(options.name) or STUDIES:
            study = STUDIES[name]
            print(f"{name}: {study.title}", file=sys.stderr, flush=True)
            stores = options.out / f"stores-{size}"
            record = study.run(stores, size, progress=sys.stderr.isatty(), workers=options.workers)
            study.write(record, options.out)
            if options.records is not None:
                study.write(record, options.records)
            print("\n".join(f"  {sentence}" for sentence in study.conclusions(record)), flush=True)
    except (TokenDynamicsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ArgumentValueError) else 1
    except KeyboardInterrupt:
        print(f"interrupted: what is done is in {options.out}; the same command continues", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions.studies", description=(main.__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", nargs="*", choices=[*STUDIES, []], metavar="name", help="a study; see --list")
    parser.add_argument("--out", type=Path, default=Path("studies-out"), metavar="FOLDER", help="default: studies-out")
    kept = "copy records and pages to where the repository keeps them (docs/studies)"
    parser.add_argument("--records", type=Path, metavar="FOLDER", help=kept)
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each processor")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the draws: minutes in all")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
