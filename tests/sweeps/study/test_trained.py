"""Studies that train: real networks, as small as they can be, stopped in the midst of a run."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
from distributed import Client

from sweeps.study.test_processes import until
from tokendynamics.sweeps.study import parse_plan, study
from tokendynamics.training import train

TINY = """
[study]
preset = "bytes-small"
seeds = [1, 2]
reference = "baseline"

[study.recipe]
steps = 60
batch = 2
warmup = 2
evaluate_every = 30
save_every = 4
log_every = 4

[study.model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 16

[study.options]
context = 16

[arms.baseline]
regime = "baseline"

[arms.divergence]
regime = "divergence"
"""


@pytest.mark.slow
def test_a_run_that_was_killed_in_a_study_is_resumed_to_the_numbers_of_one_that_was_not(
    client: Client, tmp_path: Path
) -> None:
    plan, store, killed = parse_plan(TINY, "tiny.toml"), tmp_path / "store", []

    def kill(done: float, total: float, what: str) -> None:
        """Kill the process of a run in its midst, once the study has begun."""
        if done >= 1 and not killed:
            until(lambda: in_the_midst(store))
            pid, folder = in_the_midst(store)[0]
            os.kill(pid, signal.SIGKILL)
            killed.append(folder)

    first = study(plan, store, client, progress=kill).dataset
    assert sorted(first["status"].values.ravel()) == ["failed", "finished", "finished", "finished"]
    assert "ended by SIGKILL" in first["reason"].values

    computed = study(plan, store, client, resume=True).dataset
    assert set(computed["status"].values.ravel()) == {"finished"}
    assert computed["step"].values.tolist() == [30, 60]
    assert 0 < computed["measure"].min() < computed["measure"].max() < 8.5  # bits per byte, of bytes that are foretold
    assert bool((computed["token_norm"] > 0).all())
    assert computed.sizes["layer"] == 3
    arm, seed = killed[0].parts[-2:]
    one = computed.sel(arm=arm, seed=int(seed))
    (run,) = [run for run in plan.runs(arm, None) if run.experiment.seed == int(seed)]
    whole = train(run.experiment, tmp_path / "whole", threads=1)
    assert one["measure"].item() == whole.measures["test"]["bits_per_byte"]
    assert one["validation"].values.tolist() == [entry["bits_per_byte"] for entry in whole.validation]
    assert one["token_norm"].sel(state="bare").values.tolist() == whole.layers["bare"]["norm"]


def in_the_midst(store: Path) -> list[tuple[int, Path]]:
    """Processes that train in a store and have written a checkpoint and no record, with their folders."""
    values: list[tuple[int, Path]] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            folder = Path(process.cmdline()[-1])
            half = folder.is_relative_to(store) and list(folder.glob("checkpoints/checkpoint-*"))
            if half and not (folder / "record.json").exists():
                values.append((process.pid, folder))
    return values
