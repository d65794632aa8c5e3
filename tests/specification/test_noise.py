"""Noise in files: what is run, what its pages say, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tokendynamics as td
from tokendynamics.report.explorer._page import systems_of
from tokendynamics.specification import SpecificationError, check, parse, run
from tokendynamics.specification.file import SpecificationFile

TEXT = """
[attention]
qk = "identity"
ov = "identity"
[space]
kind = "sphere"
[start]
law = "hemisphere"
direction = [1.0, 0.0, 0.0]
tokens = 4
dim = 3
seed = 2
[time]
end = 2.0
points = 5
[solver]
step = 0.1
noise = { strength = 0.3, seed = 5 }
"""
QUIET = TEXT.replace("strength = 0.3", "strength = 0.0")


def file(text: str = TEXT) -> SpecificationFile:
    """Return a checked file."""
    return parse(text, "noise.toml")


def test_a_file_with_noise_is_run_with_it() -> None:
    simulation = run(file())
    flow, start = simulation.setup.flow, simulation.setup.start
    same = td.simulate(flow, start, simulation.setup.times, noise=td.Noise(0.3, seed=5), step=0.1)
    assert torch.equal(simulation.trajectory.tensor, same.tensor)
    assert simulation.trajectory.engine == "sde"
    assert simulation.certificates == ()
    assert simulation.manifest["parameters"]["solver"]["noise"] == {"strength": 0.3, "seed": 5}


def test_no_statement_on_flows_applies_to_a_file_with_noise() -> None:
    checks = {one.statement: one for one in check(file())}
    assert checks["asymptotic-4.1"].reasons == ("no noise: noise has the strength 0.3",)
    assert "asymptotic-4.1" in {one.statement for one in check(file(QUIET)) if one.applies}
    assert "asymptotic-4.1" in {one.statement for one in run(file(QUIET)).certificates or ()}


@pytest.mark.long
def test_the_page_and_the_folder_say_that_there_was_noise(tmp_path: Path) -> None:
    simulation = run(file())
    simulation.save(tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "with noise of strength 0.3" in page
    assert "asymptotic-4.1" not in page
    kept = json.loads((tmp_path / "out" / "certificates.json").read_text(encoding="utf-8"))
    assert kept["certificates"] == []
    assert td.Trajectory.open(tmp_path / "out" / "trajectory.zarr").noise == td.Noise(0.3, seed=5)
    quiet = run(file(TEXT.replace("noise = { strength = 0.3, seed = 5 }", "")))
    assert "with noise" not in quiet.report(tmp_path / "quiet.html").read_text(encoding="utf-8")


def test_the_explorer_plays_a_run_with_noise_and_no_statement_on_flows_applies() -> None:
    for subject in (file(), run(file()).trajectory):
        (system,) = systems_of(subject)
        assert system["why_not_live"].startswith("A browser computes no noise.")
        assert not any(row["applies"] for row in system["statements"]["rows"])
        (row,) = (row for row in system["statements"]["rows"] if "(asymptotic 4.1)" in row["title"])
        violated = [system["statements"]["hypotheses"][place] for place in row["hypotheses"]]
        assert "no noise" in {one["name"] for one in violated if one["holds"] is False}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step = 0.1\n", "", "line 17: .*noise needs 'step'"),
        ("noise = { strength = 0.3, seed = 5 }", "engine = 'sde'", "engine 'sde' needs 'noise'"),
        (", seed = 5 }", " }", "line 18: solver.noise: missing key 'seed'"),
        ("strength = 0.3", "strength = -0.3", "line 18"),
        (", seed = 5", "", "line 18"),
        ("step = 0.1", "step = 0.1\nengine = 'fixed'", "engine 'fixed' has no 'noise'; take engine 'sde'"),
        ("step = 0.1", "step = 0.1\nmethod = 'rk4'", "where method is given"),
        ("step = 0.1", "step = 0.00001", "expected at most 30000 steps"),
    ],
)
def test_what_noise_does_not_go_with_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        run(file(TEXT.replace(old, new)))
