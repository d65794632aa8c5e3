"""How many items a step takes: what a preset counts with, and what is said where a run has another number."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from tokendynamics.training import preset
from tokendynamics.training.experiment import PRESETS, PROCESSES, counted_otherwise
from training.runs import run, small

IMAGES = 1_281_167
"""In ImageNet-1K's training split, by `positional` D.4.1."""


def items(name: str) -> int:
    recipe = preset(name).recipe
    return PROCESSES.get(name, 1) * recipe.batch * recipe.accumulation


def test_steps_of_the_presets_take_what_the_paper_prints() -> None:
    assert (items("enwik8"), items("wikitext103"), items("imagenet")) == (16, 60, 256)
    assert preset("imagenet").recipe.steps == 300 * math.ceil(IMAGES / items("imagenet"))
    assert set(PROCESSES) <= set(PRESETS)


@pytest.mark.parametrize("name", ["enwik8", "wikitext103", "imagenet"])
@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch", [None, 5, 16])
def test_another_size_of_a_step_is_told_and_the_advice_brings_the_preset_s(
    name: str, processes: int, batch: int | None
) -> None:
    chosen: dict[str, Any] = {} if batch is None else {"batch": batch}
    experiment = preset(name).changed(recipe=chosen)
    notes, recipe = counted_otherwise(experiment, processes), experiment.recipe
    taken = processes * recipe.batch * recipe.accumulation
    if processes == PROCESSES.get(name, 1) or taken == items(name):
        assert notes == []
        return
    (note,) = notes
    assert note.startswith(f"a step takes {taken} items")
    assert f"in the preset {name} {items(name)} (" in note
    advice = re.search(r": recipe.accumulation=(\d+) makes them the same$", note)
    assert (advice is not None) == (items(name) % (processes * recipe.batch) == 0)
    if advice is not None:
        assert counted_otherwise(experiment.changed(recipe={"accumulation": int(advice[1])}), processes) == []


def test_an_experiment_of_no_preset_is_compared_with_none(tmp_path: Path) -> None:
    values = {**small(tmp_path).as_json(), "name": "my own"}
    assert counted_otherwise(type(small(tmp_path)).from_json(values), 3) == []


def test_it_is_told_at_the_start_and_in_the_record_of_a_run_that_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(PROCESSES, "bytes-small", 4)
    experiment = small(tmp_path, recipe={"steps": 1})
    record = run(experiment, tmp_path / "run")
    assert record.notes == (
        "a step takes 2 items (processes × batch × accumulation = 1 × 2 × 1), in the preset bytes-small 64 (4 × 16 × "
        "1): recipe.accumulation=32 makes them the same",
    )
    assert record.finished
    assert [entry.message for entry in caplog.records if entry.name == "tokendynamics"] == list(record.notes)
