"""Runs the benchmarks and prints their tables; ``python -m bench --only spectra`` runs one of them."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench import (
    attending,
    auditing,
    baseline,
    circuits,
    comparing,
    diagnosing,
    drawing,
    growing,
    heads,
    lanes,
    levers,
    monitoring,
    passing,
    reading,
    reporting,
    simulating,
    spectra,
    sweeping,
    teaching,
    tracing,
    watching,
)
from bench.measure import Comparison, Cost, Row
from bench.writing import COMPARISONS, COSTS, comparison_cells, cost_cells, write

FULL: dict[str, Callable[[], Iterable[Row]]] = {
    "spectra": spectra.run,
    "levers": levers.run,
    "heads": heads.run,
    "comparing": comparing.run,
    "reading": reading.run,
    "passing": passing.run,
    "watching": watching.run,
    "auditing": auditing.run,
    "reporting": reporting.run,
    "drawing": drawing.run,
    "circuits": circuits.run,
    "attending": attending.run,
    "teaching": teaching.run,
    "monitoring": monitoring.run,
}
"""What runs in full only."""

QUICK: dict[str, Callable[[bool], Iterable[Row]]] = {
    "simulating": simulating.run,
    "lanes": lanes.run,
    "sweeping": sweeping.run,
    "growing": growing.run,
    "tracing": tracing.run,
    "diagnosing": diagnosing.run,
}
"""What has a quick form as well."""

PEERS = ("numpy", "scipy", "torch", "numba", "torchdiffeq", "torchode", "diffrax", "jax")


def main() -> int:
    """Print the tables; exit with 1 when a target is missed."""
    arguments = _arguments()
    before = None if arguments.against is None else baseline.ratios_of(arguments.against)
    torch.set_num_threads(arguments.threads)
    console = Console(width=max(Console().width, 150), highlight=False)
    machine = _machine(arguments.threads, arguments.quick)
    words = ", ".join(f"{name} {value}" for name, value in machine.items())
    console.print(f"Ratios from alternating runs in this process ({words}); times are no results.")
    works = {name: partial(work, arguments.quick) for name, work in QUICK.items()}
    chosen = arguments.only or [*works, *(() if arguments.quick else FULL)]
    rows: list[Row] = []
    for name in chosen:
        console.print(f"running {name} …")
        rows.extend((works | FULL)[name]())
        if arguments.out is not None:  # after each, for what takes hours may be stopped
            write(arguments.out, machine, rows)
    console.print(_table(COSTS, [cost_cells(row) for row in rows if isinstance(row, Cost)]))
    console.print(_table(COMPARISONS, [comparison_cells(row) for row in rows if isinstance(row, Comparison)]))
    if before is not None:
        console.print(_table(baseline.HEAD, list(baseline.against(before, rows))))
    if arguments.out is not None:
        console.print(f"written to {arguments.out}")
    return 0 if all(row.met for row in rows if isinstance(row, Comparison)) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*QUICK, *FULL], action="append", help="one to run; may be repeated")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="PyTorch threads")
    parser.add_argument("--out", type=Path, help="folder for bench.json, bench.md and the curves")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="bench.json of an earlier run to compare ratios with"
    )
    quick = f"fewer and smaller runs, without {', '.join(FULL)}: minutes"
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser.parse_args()


def _machine(threads: int, quick: bool) -> dict[str, str]:
    """What the numbers were measured on and with."""
    machine = {"processor": _processor(), "cores": str(os.cpu_count()), "threads": str(threads), "quick": str(quick)}
    machine["python"] = platform.python_version()
    for name in PEERS:
        try:
            machine[name] = version(name)
        except PackageNotFoundError:
            machine[name] = "not installed"
    return machine


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(*head)
    for line in lines:
        table.add_row(*line)
    return table


if __name__ == "__main__":
    sys.exit(main())
