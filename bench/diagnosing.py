"""`diagnose smollm2` from end to end in a fresh process: imports, each part of the measurement, and the page."""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from bench.measure import NO_TARGET, NOTHING_COMPARED, Comparison

IMPORTS, PAGE = 2.0, 0.1
"""Seconds that imports may take, and the share of the whole that the page may."""

_IMPORTING = "imports"
_ALONE = "import time, transformers.models.llama.modeling_llama; print(time.process_time())"
_STAGES = {
    "as_checkpoint": "loading",
    "traced": "trace",
    "_shared": "directions and source tokens",
    "audit": "audit",
    "token_paths": "paths of one text",
    "levers_and_heads": "levers and heads",
    "untrained_measures": "untrained network",
    "_judged": "verdict",
}
"""Functions of the diagnosis, and what they do."""


def run(quick: bool = False) -> Iterator[Comparison]:
    """SmolLM2-135M on fourteen texts with everything that the command does, processor time."""
    command = [sys.executable, "-m", "bench.diagnosing", str(torch.get_num_threads())]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        for _ in range(1 if quick else 3)
    ]
    alone = [
        float(subprocess.run([sys.executable, "-c", _ALONE], capture_output=True, text=True, check=True).stdout)
        for _ in runs
    ]
    wholes = [sum(taken.values()) for taken in runs]
    imports = [taken[_IMPORTING] for taken in runs]
    yield _row("imports, against two seconds", imports, [IMPORTS for _ in runs], f"≤ {IMPORTS:g} s", 1.0)
    yield _row("imports, against those of PyTorch and of the model's class alone", imports, alone, NO_TARGET, None)
    for stage in runs[0]:
        limit = PAGE if stage == "page" else None
        target = NO_TARGET if limit is None else f"≤ {limit:g} of the whole"
        yield _row(f"{stage}, of the whole", [taken[stage] for taken in runs], wholes, target, limit)


def _row(what: str, ours: Sequence[float], other: Sequence[float], target: str, at_most: float | None) -> Comparison:
    ratios = [one / whole for one, whole in zip(ours, other, strict=True)]
    ratio = statistics.median(ratios)
    met = at_most is None or ratio <= at_most
    seconds = statistics.median(ours), statistics.median(other)
    spread = min(ratios), max(ratios)
    return Comparison(f"diagnose smollm2, {what}", *seconds, ratio, spread, target, met, NOTHING_COMPARED)


class _Clock:
    """Processor time by stage: what a stage spends inside another one is the inner one's."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stages, self._since = ["rest"], time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._stages[-1]] += now - self._since
        self._since = now

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time is a stage's."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._stages.append(stage)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self._stages.pop()

        return timed


def _measured(threads: int) -> dict[str, float]:
    clock = _Clock()
    machinery: Any = importlib.import_module("importlib._bootstrap")
    machinery._find_and_load = clock.around(_IMPORTING, machinery._find_and_load)
    from tokendynamics.diagnosis import diagnose

    around = sys.modules[diagnose.__module__]
    for name, stage in _STAGES.items():
        setattr(around, name, clock.around(stage, getattr(around, name)))
    with tempfile.TemporaryDirectory() as folder:
        diagnosis = diagnose("smollm2", threads=threads)
        clock.around("files", diagnosis.save)(Path(folder) / "saved")
        clock.around("page", diagnosis.report)(Path(folder) / "report.html")
    clock.around("rest", lambda: None)()
    return dict(clock.seconds)


if __name__ == "__main__":
    print(json.dumps(_measured(int(sys.argv[1]))))
