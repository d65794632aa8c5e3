"""Steps of training in a regime, and with a remedy, beside those of the baseline."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.measure import NOTHING_COMPARED, Comparison, alternate, overhead, rounds_of
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.positions import ColumnsBeside, Pair, split

REDUCED = ("4 layers of 64 on 16 × 128 bytes", {"hidden_size": 64, "num_hidden_layers": 4}, (16, 128), 1.25, 45)
AT_SCALE = (
    "a layer of 512 on 16 × 1024 bytes, as a step of the paper's EnWik8 model has them",
    {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 1, "intermediate_size": 2048},
    (16, 1024),
    1.1,
    3,
)
ARMS = {
    "divergence": {"regime": "divergence"},
    "divergence, in the paper's form": {"regime": "divergence", "form": "solve"},
    "contracting": {"regime": "contracting"},
}
OTHERS = "the models differ"
_REMEDY = {"remedy": "diagonal"}
_COLUMNS = {"columns": True}
"""As many columns of queries and keys as the remedy has, without what it does to them: see `network_of`."""
_ALLOWED = 1.1
"""Of the remedy, and of memory."""

_PEAK = """
import json, sys
from pathlib import Path
import torch
from bench.teaching import step_of

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) * 1024

settings, shape, small, threads = json.loads(sys.argv[1])
torch.set_num_threads(threads)
step_of(settings, small)()
footprint, step = peak(), step_of(settings, shape)
for _ in range(3):
    step()
print(peak() - footprint)
"""


def run() -> Iterator[Comparison]:
    """Compare a forward pass, a backward pass and a step of AdamW with those of the baseline, in alternation."""
    for size, sizes, shape, allowed, rounds in (REDUCED, AT_SCALE):
        base = {**sizes, "max_position_embeddings": shape[1]}
        plain, rotary = ({**base, "positions": positions} for positions in ("sinusoidal", "rotary"))
        yield from _times(f"{size}, sinusoidal positions", plain, ARMS, shape, allowed, rounds)
        yield from _memory(f"{size}, sinusoidal positions", plain, ARMS, shape)
        remedy = {"+ λA, beside as many columns": _REMEDY}
        yield from _times(f"{size}, rotary positions", rotary, remedy, shape, _ALLOWED, rounds, baseline=_COLUMNS)
        yield from _memory(f"{size}, rotary positions", rotary, remedy, shape, baseline=_COLUMNS)
        name = f"evaluation, {size}, rotary positions: + λA, beside as many columns"
        ours, other = (evaluation_of({**rotary, **arm}, shape) for arm in (_REMEDY, _COLUMNS))
        yield overhead(name, alternate(ours, other, rounds), at_most=_ALLOWED, error=OTHERS)


def _times(
    size: str,
    base: dict,
    arms: dict[str, dict],
    shape: tuple[int, int],
    allowed: float,
    rounds: int,
    baseline: dict | None = None,
) -> Iterator[Comparison]:
    works = {name: step_of({**base, **arm}, shape) for name, arm in {"baseline": baseline or {}, **arms}.items()}
    taken = rounds_of(works, rounds)
    for name in arms:
        ratios = [seconds[name] / seconds["baseline"] for seconds in taken]
        middle = statistics.median(ratios)
        ours, other = (statistics.median(seconds[arm] for seconds in taken) for arm in (name, "baseline"))
        yield Comparison(
            f"step of training, {size}: {name}", ours, other, middle, (min(ratios), max(ratios)),
            f"≤ {allowed:g} × the baseline's", middle <= allowed, OTHERS,
        )  # fmt: skip


def _memory(
    size: str, base: dict, arms: dict[str, dict], shape: tuple[int, int], baseline: dict | None = None
) -> Iterator[Comparison]:
    """Compare what three steps add to a process of their own that has trained on one short window, in turns."""
    every = {"baseline": baseline or {}, **arms}
    rounds = [{name: _peak({**base, **arm}, shape) for name, arm in every.items()} for _ in range(3)]
    for name in arms:
        ratios = [seconds[name] / seconds["baseline"] for seconds in rounds]
        middle = statistics.median(ratios)
        ours, other = (statistics.median(seconds[arm] for seconds in rounds) for arm in (name, "baseline"))
        yield Comparison(
            f"memory of training, {size}: {name}", ours / 1e6, other / 1e6, middle, (min(ratios), max(ratios)),
            f"≤ {_ALLOWED:g} × the baseline's", middle <= _ALLOWED, NOTHING_COMPARED, "MB",
        )  # fmt: skip


def _peak(settings: dict, shape: tuple[int, int]) -> int:
    given = json.dumps([settings, shape, [1, 8], torch.get_num_threads()])
    # Memory that is freed goes back at once: the peak is of what is used, not of what malloc has in reserve.
    place = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", _PEAK, given], capture_output=True, text=True, check=True, env=place)
    return int(done.stdout.split()[-1])


class PlainColumns(ColumnsBeside):
    """Columns of queries and keys that are the states: those of `NegativeDiagonal` without its factors."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def beside(self, query: torch.Tensor, x: torch.Tensor) -> Pair:
        """See `ColumnsBeside`."""
        columns = split(x, self.heads).to(query.dtype)
        return Pair(columns, columns)


def network_of(settings: dict) -> LanguageModel:
    """Return a network of these settings; with ``columns`` it has as many columns of queries and keys again."""
    settings = dict(settings)
    columns = settings.pop("columns", False)
    model = LanguageModel(LanguageModelConfig(**settings))
    if columns:
        for layer in model.model.layers:
            attention: Any = layer.get_submodule("attention")
            attention.terms.append(PlainColumns(attention.heads))
    return model


def evaluation_of(settings: dict, shape: tuple[int, int]) -> Callable[[], object]:
    """Return a forward pass, without gradients, of a new network on bytes drawn once, (window, byte)."""
    torch.manual_seed(0)
    model = network_of(settings).eval()
    ids = torch.randint(model.config.vocab_size, tuple(shape))
    return torch.no_grad()(lambda: model(ids))


def step_of(settings: dict, shape: tuple[int, int]) -> Callable[[], float]:
    """Return a step of training of a new network on bytes drawn once, (window, byte)."""
    torch.manual_seed(0)
    model = network_of(settings)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    ids = torch.randint(model.config.vocab_size, tuple(shape))

    def step() -> float:
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
