"""What a run of the benchmarks leaves in a folder: all numbers as JSON, tables as Markdown, curves as SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.measure import NO_TARGET, Comparison, Cost, Curve, Row

COMPARISONS = ("workload", "ours", "other", "ratio", "lowest–highest", "target", "met", "error")
COSTS = (
    "workload", "solver", "systems", "error", "rtol", "ms/system", "lowest–highest", "right-hand sides", "peak MB",
    "first call s", "from cache s",
)  # fmt: skip


def comparison_cells(row: Comparison) -> list[str]:
    """A comparison as the cells of a table."""
    ours, other = (f"{value:.4g} {row.unit}" for value in (row.ours, row.other))
    spread = f"{row.spread[0]:.2f}–{row.spread[1]:.2f}"
    met = "–" if row.target == NO_TARGET else "yes" if row.met else "NO"
    return [row.workload, ours, other, f"{row.ratio:.2f}", spread, row.target, met, row.error]


def cost_cells(row: Cost) -> list[str]:
    """A cost as the cells of a table; what is not known or does not apply is a dash."""
    error = f"{row.error:.1e}" if row.right else f"{row.error:.1e} (MISSED)"
    spread = f"{row.spread[0]:.4g}–{row.spread[1]:.4g}"
    calls = "–" if math.isnan(row.right_hand_sides) else f"{row.right_hand_sides:.0f}"
    cached = "–" if row.cached is None else f"{row.cached:.2f}"
    return [
        row.workload, row.solver, str(row.systems), error, f"{row.rtol:.1e}", f"{row.milliseconds:.4g}", spread, calls,
        f"{row.peak:.1f}", f"{row.first:.2f}", cached,
    ]  # fmt: skip


def write(folder: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write ``bench.json``, ``bench.md`` and a drawing of each curve into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"comparisons": Comparison, "costs": Cost, "curves": Curve}
    sorted_out = {name: [asdict(row) for row in rows if isinstance(row, kind)] for name, kind in parts.items()}
    text = json.dumps(_finite({"machine": machine, **sorted_out}), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "bench.json").write_text(text + "\n", encoding="utf-8")
    curves = [row for row in rows if isinstance(row, Curve)]
    for curve in curves:
        _draw(curve).savefig(folder / f"{curve.along}.svg")
    (folder / "bench.md").write_text("\n".join(_page(machine, rows, curves)), encoding="utf-8")


def _finite(value: Any) -> Any:
    """Put None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _page(machine: dict[str, Any], rows: Sequence[Row], curves: Sequence[Curve]) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield "Measured in alternation in one run; ratios are results, times are of this machine alone.\n"
    yield from (f"- {name}: {value}" for name, value in machine.items())
    yield "\n## Solvers beside each other, at equal error\n"
    yield from _table(COSTS, [cost_cells(row) for row in rows if isinstance(row, Cost)])
    yield "\n## Comparisons and their targets\n"
    yield from _table(COMPARISONS, [comparison_cells(row) for row in rows if isinstance(row, Comparison)])
    for curve in curves:
        yield f"\n## Cost against {curve.along}\n\n{curve.title}, {curve.unit}.\n\n![]({curve.along}.svg)\n"
        lines = [[f"{at:g}", *(f"{cost[n]:.4g}" for cost in curve.costs.values())] for n, at in enumerate(curve.at)]
        yield from _table((curve.along, *curve.costs), lines)
    yield ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    if not lines:
        yield "Not run."
        return
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for line in lines:
        cells = [cell.replace("|", "\\|") for cell in line]
        yield f"| {' | '.join(cells)} |"


def _draw(curve: Curve) -> Figure:
    with rc_context({"svg.hashsalt": curve.along}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        for name, costs in curve.costs.items():
            axes.plot(curve.at, costs, marker="o", label=name)
        if curve.along != "cores":
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks(curve.at, [f"{at:g}" for at in curve.at])
        axes.set_xlabel(curve.along)
        axes.set_ylabel(curve.unit)
        axes.set_title(curve.title, fontsize="small", wrap=True)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    return figure
