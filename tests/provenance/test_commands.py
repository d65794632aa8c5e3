"""Commands that write a folder refuse foreign files in the way before they compute anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokendynamics.cli.main import main

SPEC = """\
[attention]
qk = { identity = 0.0 }
ov = { identity = -1.0 }
[space]
kind = "free"
[start]
tokens = [[3.0, 4.0], [1.0, 0.0]]
[time]
times = [0.0, 0.5]
[output]
figures = ["tokens"]
"""
TINY = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 16, "vocab_size": 30}


def call(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return int(done.value.code or 0)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    return {
        "simulate": ["simulate", "spec.toml", "--out", "o"],
        "diagnose": ["diagnose", "random:./tiny", "--prompt", "a", "--out", "o"],
    }


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("simulate", ["trajectory.zarr/thesis.txt", "tokens.png", "manifest.json/x", "specification.toml"]),
        ("diagnose", ["audit.zarr/x", "report.html", "manifest.json", "diagnosis.json/deep/x"]),
    ],
)
def test_foreign_files_in_the_way_are_named_before_anything_is_computed(
    commands: dict[str, list[str]], command: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        out = Path(name.replace("/", "-"))
        arguments = [*commands[command][:-1], str(out)]
        put(out / name)
        assert call(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: --out: expected no file in the way")
        assert str(out / name) in said
        assert len(said.splitlines()) == 1
        assert tree(out) == {name: b"mine"}
    assert call([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize(("command", "store"), [("simulate", "trajectory.zarr"), ("diagnose", "audit.zarr")])
def test_a_second_run_replaces_the_first_and_spares_what_others_added(
    commands: dict[str, list[str]], command: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(Path("o/notes.txt"))
    put(Path("o/folder/deep.txt"))
    for _ in range(2):
        assert call(commands[command]) == 0
        assert (Path("o/notes.txt").read_text(), Path("o/folder/deep.txt").read_text()) == ("mine", "mine")
    put(Path("o") / store / "thesis.txt")
    before = tree(Path("o"))
    capsys.readouterr()
    assert call(commands[command]) == 2
    assert f"{store}/thesis.txt" in capsys.readouterr().err
    assert tree(Path("o")) == before
    assert call([*commands[command], "--overwrite"]) == 0
    assert not (Path("o") / store / "thesis.txt").exists()
    assert Path("o/notes.txt").read_text() == "mine"


def test_results_of_another_command_are_not_replaced(
    commands: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(commands["simulate"]) == 0
    before = tree(Path("o"))
    assert call(commands["diagnose"]) == 2
    assert "with those of tokendynamics simulate" in capsys.readouterr().err
    assert tree(Path("o")) == before


@pytest.mark.parametrize("command", ["simulate", "diagnose"])
def test_a_full_disk_is_one_line_and_the_older_results_stay(
    commands: dict[str, list[str]],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(commands[command]) == 0
    before, real = tree(Path("o")), Path.write_text

    def full(self: Path, text: str, **options: str) -> int:
        if self.suffix == ".json":
            raise OSError(28, "No space left on device", str(self))
        return real(self, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    capsys.readouterr()
    assert call(commands[command]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(said) == 1
    assert "expected room for the results, got no space left on device" in said[0]
    assert tree(Path("o")) == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]
