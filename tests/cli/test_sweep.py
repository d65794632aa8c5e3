"""`tokendynamics sweep` as a user meets it: the store, what is beside it, examples, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from command_line import call
from report.reading import plain_spaces
from sweeps.conftest import SMALL
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.sweeps import fractions, open_store, parse_plan


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("task = 2", "task = 12"))
    return path


def test_a_sweep_leaves_its_store_a_page_a_diagram_and_its_shares(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["sweep", "small.toml", "--workers", "1", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.toml", "sweep-small-report", "sweep-small.zarr"]
    folder = tmp_path / text["folder"]
    names = ["manifest.json", "phase-diagram.png", "phase-diagram.svg", "report.html", "shares.csv"]
    assert sorted(path.name for path in folder.iterdir()) == names
    result = open_store(tmp_path / text["store"])
    assert sum(row["count"] for row in text["outcome"]) == result.outcome.size == 24
    table = np.genfromtxt(folder / "shares.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert table["count"].tolist() == fractions(result)["count"].values.ravel().tolist()
    page = plain_spaces((folder / "report.html").read_text(encoding="utf-8"))
    assert "24 systems: tokens (2) × scale (3) × draw (4)" in page

    (folder / "report.html").write_text("somebody's own")
    assert call(["sweep", "small.toml", "--resume"]) == 2
    assert "an earlier run did not write or that was changed since" in capsys.readouterr().err
    assert call(["sweep", "small.toml", "--resume", "--overwrite"]) == 0
    assert "somebody" not in (folder / "report.html").read_text(encoding="utf-8")


def test_what_is_beside_the_store_is_refused_before_anything_runs(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep-small-report").mkdir()
    (tmp_path / "sweep-small-report" / "shares.csv").write_text("mine")
    assert call(["sweep", "small.toml"]) == 2
    assert "shares.csv" in capsys.readouterr().err
    assert not (tmp_path / "sweep-small.zarr").exists()


def test_examples_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["sweep", "--example", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == example_names("sweep")
    assert call(["sweep", "--example", "temperature"]) == 0
    assert capsys.readouterr().out == example_text("temperature", "sweep")
    assert call(["sweep", "--example", "temprature"]) == 2
    assert "did you mean 'temperature'" in capsys.readouterr().err
    assert call(["sweep"]) == 2


@pytest.mark.parametrize("name", example_names("sweep"))
def test_every_example_is_a_sweep_whose_points_can_be_built(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokendynamics.sweeps.systems._plan._SAMPLES", 20)
    plan = parse_plan(example_text(name, "sweep"), f"{name}.toml")
    plan.check()
    assert plan.systems >= 500


def drawn(**sizes: int) -> tuple[object, ...]:
    from tokendynamics.sweeps.systems.results import _drawn

    codes = np.zeros(tuple(sizes.values()), dtype=np.int8)
    return _drawn(xr.Dataset({"outcome": (tuple(sizes), codes)})).total.dims


def test_the_diagram_has_two_parameters_or_a_third_of_few_values() -> None:
    assert drawn(a=2, b=3, draw=4) == ("a", "b")
    assert drawn(a=2, b=1, draw=4) == ("a",)
    assert drawn(a=2, b=3, c=4, draw=4) == ("a", "b", "c")
    assert drawn(a=2, b=3, c=5, draw=4) == ("a", "b")
    assert drawn(a=2, b=3, c=4, d=2, draw=4) == ("a", "b")
