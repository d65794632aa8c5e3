"""A program in place of training: its measures follow a law that a test plants, and it can end as a run can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TWO_ARMS = """
[study]
preset = "bytes-small"
seeds = [1, 2, 3]
reference = "baseline"

[arms.baseline]
regime = "baseline"

[arms.divergence]
regime = "divergence"

[[claims]]
better = "divergence"
worse = "baseline"
"""

TUNED = (
    TWO_ARMS
    + """
[tuning]
learning_rate = [1e-3, 2e-3, 4e-3]
seeds = [101, 102]
"""
)

_STAND_IN = """
import json, os, pathlib, random, sys, time
law_file, folder = map(pathlib.Path, sys.argv[1:])
law, experiment = json.loads(law_file.read_text()), json.loads((folder / "experiment.json").read_text())
regime, seed, rate = experiment["model"]["regime"], experiment["seed"], experiment["recipe"]["learning_rate"]
with (folder / "starts").open("a") as file:
    file.write("once\\n")
act = law["acts"].get(f"{regime} {seed}") or law["acts"].get(f"{regime} {seed} {rate}")
if act == "fail":
    print("something before")
    sys.exit("RuntimeError: the planted failure")
if act == "silent":
    sys.exit(3)
if act == "killed":
    os.kill(os.getpid(), 9)
if act == "wait":
    (folder / "waiting").write_text(str(os.getpid()))
    while not law_file.with_name("go").exists():
        time.sleep(0.02)
value = 2.0 + law["means"].get(regime, 0.0)
value += random.Random(seed).gauss(0, law["shared"]) + random.Random(f"{regime}{seed}").gauss(0, law["own"])
value += abs(rate / law["best"].get(regime, rate) - 1)
layers = {"norm": [1.0, 2.0, value], "distance": [0.5, 0.25, value]}
splits = {"validation": value, "test": 0.5 + law["test"] * value}
record = {
    "experiment": experiment,
    "status": "finished",
    "steps": experiment["recipe"]["steps"],
    "history": [{"step": 10, "loss": value, "learning_rate": rate}],
    "validation": [{"step": step, "loss": value, "bits_per_byte": value + 1 / step} for step in (100, 200)],
    "measures": {split: {"loss": value, "bits_per_byte": measure} for split, measure in splits.items()},
    "layers": {"full": layers, "bare": {name: [each / 2 for each in values] for name, values in layers.items()}},
    "notes": [],
    "seconds": 1.0,
    "manifest": {},
}
if act == "not finite":
    record |= {"status": act, "measures": {}, "layers": {}, "notes": ["the planted blow-up"]}
made = folder / "record.partial"
made.write_text(json.dumps(record))
made.replace(folder / "record.json")
sys.exit(record["status"] != "finished")
"""

Planted = Callable[..., tuple[str, ...]]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """What has runs end as a law says, and returns the program that does it.

    Its arguments: ``means`` and ``best`` learning rates by regime, deviations ``shared`` by the arms of a seed and
    ``own``, ``test``, what the test split has times the validation split's (beside 0.5), and ``acts`` by "REGIME SEED"
    or "REGIME SEED RATE".
    """

    def plant(**law: Any) -> tuple[str, ...]:
        script, file = tmp_path / "law" / "stand_in.py", tmp_path / "law" / "law.json"
        file.parent.mkdir(exist_ok=True)
        script.write_text(_STAND_IN)
        plain = {"means": {}, "best": {}, "acts": {}, "shared": 1.0, "own": 0.01, "test": 1.0}
        file.write_text(json.dumps(plain | law))
        program = (str(script), str(file))
        monkeypatch.setattr("tokendynamics.sweeps.study._running.PROGRAM", program)
        return program

    return plant


def starts(store: Path) -> dict[str, int]:
    """How often the process of each run was started, by the run's place."""
    return {
        str(path.parent.relative_to(store)): len(path.read_text().splitlines())
        for path in sorted(store.rglob("starts"))
    }
