"""Commands that write a folder refuse foreign files in the way before they compute anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import FREE_FLOW, LEARN_LITTLE, TINY_GPT2, call
from reproductions.__main__ import main as papers
from tokendynamics import figures
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.report._page import write_page


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(FREE_FLOW + '[output]\nfigures = ["tokens"]\n')
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY_GPT2))
    return {
        "simulate": ["simulate", "spec.toml", "--out", "o"],
        "diagnose": ["diagnose", "random:./tiny", "--prompt", "a", "--out", "o"],
        "build": ["circuits", "build", "linear", "--out", "o"],
        "landscape": ["circuits", "landscape", "3.1", "--starts", "2", "--out", "o"],
        "evidence": ["circuits", "evidence", "solution-1", "--samples", "50", "--resamples", "20", "--out", "o"],
        "learn": ["circuits", "learn", "solution-1", *LEARN_LITTLE, "--steps", "2", "--seeds", "1", "--out", "o"],
    }


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("simulate", ["trajectory.zarr/thesis.txt", "tokens.png", "manifest.json/x", "specification.toml"]),
        ("build", ["circuits.npz", "report.html", "manifest.json", "circuits.json/x"]),
        ("landscape", ["landscape.json", "report.html/x"]),
        ("evidence", ["evidence.json", "manifest.json/x"]),
        ("learn", ["learning.json", "report.html", "manifest.json/x"]),
        ("diagnose", ["audit.zarr/x", "report.html", "manifest.json", "diagnosis.json/deep/x"]),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_foreign_files_in_the_way_are_named_before_anything_is_computed(
    commands: dict[str, list[str]], command: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        out = Path(name.replace("/", "-"))
        arguments = [*commands[command][:-1], str(out)]
        put(out / name)
        assert call(arguments) == 2
        printed = capsys.readouterr().err
        assert "--out: expected no file in the way" in printed
        assert str(out / name) in printed
        assert len(printed.splitlines()) == 1
        assert tree(out) == {name: b"mine"}
    assert call([*arguments, "--overwrite"]) == 0


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("command", "store"),
    [
        ("simulate", "trajectory.zarr"),
        pytest.param("diagnose", "audit.zarr", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("undrawn")
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


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_results_of_another_command_are_not_replaced(
    commands: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(commands["simulate"]) == 0
    before = tree(Path("o"))
    assert call(commands["diagnose"]) == 2
    assert "with those of tokendynamics simulate" in capsys.readouterr().err
    assert tree(Path("o")) == before


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["simulate", "diagnose"])
@pytest.mark.usefixtures("undrawn")
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
    sentences = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(sentences) == 1
    assert "expected room for the results, got no space left on device" in sentences[0]
    assert tree(Path("o")) == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_learned_models_stay_when_their_summary_is_written_again(commands: dict[str, list[str]]) -> None:
    assert call(commands["learn"]) == 0
    first = tree(Path("o"))
    assert {"seed-0/record.json", "seed-0/parameters.npz", "learning.json", "report.html"} <= set(first)
    assert call(commands["learn"]) == 0
    again = tree(Path("o"))
    assert set(again) == set(first)
    assert {name: again[name] for name in again if name.startswith("seed")} == {
        name: first[name] for name in first if name.startswith("seed")
    }
    put(Path("p/seed-0/parameters.npz"))
    assert call([*commands["learn"][:-1], "p"]) == 2
    assert tree(Path("p")) == {"seed-0/parameters.npz": b"mine"}


def test_a_learned_record_replaces_its_own_kind_only(tmp_path: Path) -> None:
    task = PairTask(random_functional(2, seed=0), positions=3)
    records = [learn(task, "solution-1", batch=10, steps=2, inner=2, seed=seed) for seed in (0, 1)]
    for record in records:
        record.save(tmp_path / "out")
        assert LearningRecord.open(tmp_path / "out").seed == record.seed
    put(tmp_path / "out" / "record.json")
    with pytest.raises(ArgumentValueError, match=r"record\.json"):
        records[0].save(tmp_path / "out")
    assert (tmp_path / "out" / "record.json").read_text() == "mine"
    records[0].save(tmp_path / "out", overwrite=True)
    assert LearningRecord.open(tmp_path / "out").seed == 0
    put(tmp_path / "out" / "parameters.npz")
    with pytest.raises(ArgumentValueError, match=r"parameters\.npz"):
        records[0].save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["parameters.npz", "record.json"]


@pytest.mark.slow
def test_figures_of_the_papers_add_up_and_spare_foreign_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    put(out / "asymptotic-fig2.png")
    assert papers(["asymptotic-fig2", "--out", str(out)]) == 2
    assert "asymptotic-fig2.png" in capsys.readouterr().err
    assert tree(out) == {"asymptotic-fig2.png": b"mine"}
    put(out / "notes.txt")
    assert papers(["asymptotic-fig2", "--out", str(out), "--overwrite"]) == 0
    first = tree(out)
    assert papers(["positional-fig9b", "--out", str(out)]) == 0
    both = tree(out)
    assert {name: both[name] for name in first if name.startswith("asym")} == {
        name: first[name] for name in first if name.startswith("asym")
    }
    assert both["notes.txt"] == b"mine"
    assert {"positional-fig9b.pdf", "papers.md", "manifest.json"} <= set(both)
    assert papers(["asymptotic-fig2", "--out", str(out)]) == 0


@pytest.mark.long
def test_remains_of_killed_writers_of_single_files_are_cleared(tmp_path: Path) -> None:
    for name, write in {
        "page.html": lambda path: write_page("<p>", path),
        "lines.svg": lambda path: figures.save(figures.over_time([0.0, 1.0], [1.0, 2.0], "V"), path),
    }.items():
        put(tmp_path / f".{name}.partial-0123456789ab" / name)
        write(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.svg", "page.html"]
