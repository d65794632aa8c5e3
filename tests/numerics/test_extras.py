"""What is not installed is named with the extra that brings it, wherever it is needed."""

from __future__ import annotations

import ast
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

import tokendynamics
from tokendynamics.attention import Attention
from tokendynamics.diagnosis import result as saving
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.figures import _animate as video
from tokendynamics.numerics import extras as extras
from tokendynamics.numerics.errors import ArgumentValueError, CheckpointError
from tokendynamics.pretrained.sources import finding as wheels
from tokendynamics.pretrained.sources import gguf as gguf_conversion
from tokendynamics.provenance.progress import silent
from tokendynamics.spaces import Sphere

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_the_extras_are_those_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in extras.EXTRAS.items():
        packages = " ".join(declared[extra]).replace("-", "_").replace("scikit_learn", "sklearn")  # its module
        assert all(module in packages for module in modules), extra


@pytest.mark.usefixtures("nothing_installed")
def test_every_use_of_a_missing_package_names_its_extra(tmp_path):
    run = simulate(Flow(Attention(np.eye(2), np.eye(2)), Sphere()), np.eye(2), [0.0, 1.0])
    (tmp_path / "a.nc").write_bytes(b"\x89HDF")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    uses = {
        "netcdf": (lambda: run.save(tmp_path / "b.nc"), ArgumentValueError),
        "netcdf ": (lambda: Trajectory.open(tmp_path / "a.nc"), ArgumentValueError),
        "netcdf  ": (lambda: saving.data_file_names("netcdf"), ArgumentValueError),
        "gguf": (lambda: gguf_conversion.converted(tmp_path / "a.gguf", tmp_path, silent), CheckpointError),
        "animations": (video.find_ffmpeg, ArgumentValueError),
        "demo": (lambda: wheels.wheel_path("smollm2"), CheckpointError),
    }
    for name, (use, error) in uses.items():
        with pytest.raises(error) as caught:
            use()
        assert f'pip install "tokendynamics[{name.strip()}]"' in str(caught.value), name
    assert not (tmp_path / "b.nc").exists()


def test_what_is_installed_is_not_refused():
    extras.require("netcdf", "path", "a file") if not extras.missing("netcdf") else None
    with pytest.raises(KeyError):
        extras.missing("nothing")


@pytest.mark.slow
def test_no_folder_imports_an_optional_package_without_asking_for_its_extra():
    optional = {module for modules in extras.EXTRAS.values() for module in modules}
    source = Path(tokendynamics.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    asking = {path.parent for path, text in texts.items() if "numerics.extras import" in text}
    asking |= {folder.parent for folder in asking if folder.parent != source}  # plugins ask for what they share
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            asked = asking & {path.parent, path.parent.parent}
            assert asked or not optional & {name.split(".")[0] for name in names}, path
