"""A result whose replacement was broken off by a kill opens as one result, or says why it cannot."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.conftest import write_config
from provenance.test_whole_folder import Killed, steps_until_killed, tree, without, write
from tokendynamics.circuits import PairTask
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.diagnosis import Comparison, Diagnosis
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.provenance import swap as swap
from tokendynamics.provenance.whole import settle_results
from tokendynamics.training import Monitor
from training.monitored import language_model, of_one_topic_each

TASK = PairTask([[0.3, -1.0], [0.5, 0.2]], positions=3)


def diagnoses(folder: Path) -> tuple[Any, Any]:
    config = write_config(folder / "llama", "llama")
    few: dict[str, Any] = {"levers": False, "heads": False, "directions": False, "baseline": None}
    texts = ["a cat sat", "it rains", "no more"]
    return tuple(td.diagnose(f"random:{config}:{seed}", texts, **few) for seed in (0, 1))


def comparisons(folder: Path) -> tuple[Any, Any]:
    config = write_config(folder / "llama", "llama")
    names = [f"random:{config}:{seed}" for seed in (0, 1, 2)]
    texts = ["a cat sat", "it rains", "no more"]
    return tuple(td.compare(names[0], other, texts=texts, weights=False) for other in names[1:])


def trajectories(folder: Path) -> tuple[Any, Any]:
    flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    starts = [[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.8, 0.6]]
    return tuple(td.simulate(flow, start, [0.0, 1.0]) for start in starts)


def records(folder: Path) -> tuple[Any, Any]:
    return tuple(learn(TASK, "solution-1", batch=5, steps=2, inner=2, seed=seed) for seed in (0, 1))


def series(folder: Path) -> tuple[Any, Any]:
    monitors = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        monitor = Monitor(of_one_topic_each(), every=10)
        monitor.measure(language_model(dropout=0.0, norms="none"), 10 + seed)
        monitors.append(monitor)
    return monitors[0], monitors[1]


def numbers(result: Any) -> Any:
    """What tells an older result from a newer one."""
    if isinstance(result, Diagnosis):
        return float(result.trace.norm_median.sum())
    if isinstance(result, Comparison):
        return float(result.table.consensus_relative.sum())
    if isinstance(result, LearningRecord):
        return {name: value.tolist() for name, value in result.parameters.items()}
    return (
        result.dataset.step.values.tolist() if "step" in result.dataset.coords else np.asarray(result.states).tolist()
    )


KINDS: dict[str, tuple[Callable[[Path], tuple[Any, Any]], Callable[[Path], Any]]] = {
    "diagnosis": (diagnoses, Diagnosis.open),
    "comparison": (comparisons, Comparison.open),
    "trajectory.zarr": (trajectories, td.Trajectory.open),
    "record": (records, LearningRecord.open),
    "series": (series, Monitor.open),
}

_MANY_FILES = ("comparison", "diagnosis")
"""Results of hundreds of files, which take more than 20 seconds to be stopped behind each."""


def break_off(save: Callable[[], Any], steps: int) -> None:
    """Replace a result entry by entry, and be killed after some steps."""
    done = 0

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def step(source: Any, place: Any, **options: Any) -> None:
            nonlocal done
            if any((parent / swap.JOURNAL).exists() for path in (source, place) for parent in Path(path).parents[:2]):
                if done == steps:
                    raise Killed
                done += 1
            real(source, place, **options)

        return step

    def no_exchange(one: Path, other: Path) -> None:
        raise OSError(errno.ENOSYS, "no exchange here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "exchange", no_exchange)
        patch.setattr(os, "rename", counted(os.rename))
        patch.setattr(os, "replace", counted(os.replace))
        with pytest.raises(Killed):
            save()


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in _MANY_FILES else kind for kind in KINDS]
)
def test_a_result_half_replaced_opens_as_the_newer_one(kind: str, tmp_path: Path) -> None:
    results, read = KINDS[kind]
    old, new = results(tmp_path)
    for steps in (0, 1, 2, 3) if kind != "record" else (0, 1):
        place = tmp_path / str(steps) / kind
        place.parent.mkdir()
        old.save(place)
        assert numbers(read(place)) == numbers(old) != numbers(new)
        break_off(partial(new.save, place), steps)
        assert len(list(place.parent.iterdir())) == 2, "nothing was left to complete"
        assert numbers(read(place)) == numbers(new)
        assert [path.name for path in place.parent.iterdir()] == [kind]
        new.save(place)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["diagnosis", "trajectory.zarr"])
def test_a_result_that_cannot_be_completed_here_is_refused_with_what_to_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, read = KINDS[kind]
    old, new = results(tmp_path)
    place = tmp_path / kind
    old.save(place)
    break_off(partial(new.save, place), 1)

    def read_only(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(os, name, read_only)
        with pytest.raises(ArgumentValueError, match=r"the results of one run, got .* make the folder writable"):
            read(place)
    with monkeypatch.context() as patch:
        patch.setattr(swap, "fcntl", None)  # without locks a run that is alive looks the same
        with pytest.raises(ArgumentValueError, match="repeat the run with another folder"):
            read(place)
    assert numbers(read(place)) == numbers(new)


@pytest.mark.parametrize("way", ["exchanged", "beside a folder of others", "shared"])
def test_after_a_kill_at_any_step_what_is_read_is_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    outcomes, number, killed = set(), 0, True
    while killed:
        out = tmp_path / str(number) / "out"
        write(out, "old")
        if way == "beside a folder of others":
            (out / "others").mkdir()
            (out / "others" / "thesis.txt").write_text("mine")
        old, killed = without(tree(out), "manifest.json"), False
        with monkeypatch.context() as patch:
            steps_until_killed(patch, number)
            try:
                write(out, "new", shared=way == "shared")
            except Killed:
                killed = True
        new = {name.replace("old", "new"): text.replace("old", "new") for name, text in old.items()}
        settle_results(out)
        files = without(tree(out), "manifest.json")
        assert files in (old, new)
        outcomes.add("old" if files == old else "new")
        number += 1
    assert outcomes == {"old", "new"}


def test_a_folder_that_replaces_a_file_is_completed_too(tmp_path: Path) -> None:
    place = tmp_path / "t.zarr"
    place.write_text("a file")
    _, new = trajectories(tmp_path)
    real = Path.rename

    def rename(source: Path, target: Path) -> Path:
        if source.name == swap.NEW:
            raise Killed
        return real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        # A kill clears nothing up.
        patch.setattr(swap, "_remove", lambda root: None)
        with pytest.raises(Killed):
            new.save(place, overwrite=True)
    assert not place.exists()
    assert numbers(td.Trajectory.open(place)) == numbers(new)


def test_a_reader_waits_for_a_replacement_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write(out, "old")
    under_way, go, real = threading.Event(), threading.Event(), swap._complete

    def slow(root: Path, target: Path) -> None:
        under_way.set()
        assert go.wait(30)
        real(root, target)

    monkeypatch.setattr(swap, "_complete", slow)
    writer = threading.Thread(target=lambda: write(out, "new", shared=True))
    writer.start()
    assert under_way.wait(30)
    reader = threading.Thread(target=lambda: settle_results(out))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    go.set()
    writer.join(30)
    reader.join(30)
    assert (out / "only-new.txt").exists()
    assert not (out / "only-old.txt").exists()


def test_remains_of_a_run_that_replaced_nothing_are_left_and_do_not_matter(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "old")
    staged = tmp_path / ".out.partial-0123456789ab"
    (staged / "new").mkdir(parents=True)
    settle_results(out)
    settle_results(tmp_path / "nothing here")
    settle_results("a\0b")
    assert staged.is_dir()
    assert (out / "only-old.txt").exists()
