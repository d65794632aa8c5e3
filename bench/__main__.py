"""Runs the benchmarks and prints one table; ``python -m bench --only spectra`` runs one of them."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import torch
from rich.console import Console
from rich.table import Table

from bench import auditing, circuits, comparing, levers, passing, reading, reporting, simulating, spectra, tracing
from bench.measure import Comparison

BENCHMARKS = {
    "spectra": spectra.run,
    "tracing": tracing.run,
    "levers": levers.run,
    "comparing": comparing.run,
    "reading": reading.run,
    "passing": passing.run,
    "auditing": auditing.run,
    "reporting": reporting.run,
    "simulating": simulating.run,
    "circuits": circuits.run,
}


def main() -> int:
    """Print the table; exit with 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="a benchmark to run; may be repeated")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="PyTorch threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(width=max(Console().width, 150), highlight=False)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {arguments.threads} threads, torch {torch.__version__}"
    console.print(f"Ratios from alternating runs in this process ({machine}); times are no results.")
    rows: list[Comparison] = []
    for name in arguments.only or BENCHMARKS:
        console.print(f"running {name} …")
        rows.extend(BENCHMARKS[name]())
    console.print(_table(rows))
    return 0 if all(row.met for row in rows) else 1


def _table(rows: list[Comparison]) -> Table:
    table = Table()
    for column in ("workload", "ours", "other", "ratio", "lowest–highest", "target", "met", "error"):
        table.add_column(column)
    for row in rows:
        spread = f"{row.spread[0]:.2f}–{row.spread[1]:.2f}"
        ours, other = (f"{value:.4g} {row.unit}" for value in (row.ours, row.other))
        table.add_row(
            row.workload, ours, other, f"{row.ratio:.2f}", spread, row.target, "yes" if row.met else "NO", row.error
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
