"""What is declared of the package and its distributions is so."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_a_typed_package_says_so_to_type_checkers() -> None:
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert files("tokendynamics").joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    "name", ["Makefile", "bench", "reproductions", ".ci", "src", "tests", "docs", "constraints.txt"]
)
def test_the_source_distribution_has_what_its_own_commands_need(name: str) -> None:
    assert name in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert (ROOT / name).exists()


def test_the_lowest_versions_are_those_of_the_project_alone() -> None:
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]()
    versions = dict(line.split("==") for line in lowest)
    declared = {
        match[1]: match[2]
        for entry in PROJECT["project"]["dependencies"]
        if (match := re.fullmatch(r"([\w.-]+)>=([\w.]+)", entry))
    }
    assert len(declared) == len(PROJECT["project"]["dependencies"])
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert {name: versions[name] for name in declared} == declared | {"torch": torch.split("==")[1]}
    assert {"h5netcdf", "distributed"} <= set(versions)


def test_ci_runs_the_stage_of_the_lowest_versions() -> None:
    assert "make test-lowest" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
