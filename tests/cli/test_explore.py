"""``tokendynamics explore``: from nothing, a file, a folder of a simulation, and what is none of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokendynamics as td
from command_line import call

SPECIFICATION = """
title = "Two tokens"
[attention]
qk = {identity = 2.0}
ov = "identity"
[space]
kind = "sphere"
[start]
tokens = [[1.0, 0.0], [0.6, 0.8]]
[time]
end = 1.0
points = 5
"""


TINY = {"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 300}


def systems_in(path: Path) -> list[dict[str, Any]]:
    """The systems that a page carries."""
    text = path.read_text(encoding="utf-8").partition('id="explorer-data">')[2].partition("</script>")[0]
    return json.loads(text)["systems"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.toml").write_text(SPECIFICATION, encoding="utf-8")
    Path("tiny").mkdir()
    Path("tiny/config.json").write_text(json.dumps(TINY))


@pytest.mark.long
def test_without_a_subject_there_are_five_presets(presets_page: Path) -> None:
    assert presets_page.with_name("printed.txt").read_text("utf-8") == "explorer.html: open it in a browser\n"
    assert presets_page.with_name("progress.txt").read_text("utf-8") == "computing the presets (5)\n"
    assert [len(system["flow"]["start"]) for system in systems_in(presets_page)] == [32, 32, 24, 4, 32]


@pytest.mark.slow
def test_a_file_and_a_folder_of_its_run_are_the_same_system(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert call(["explore", "two.toml", "--out", "pages/file.html", "--open"]) == 0
    assert opened == [Path("pages/file.html").resolve().as_uri()]
    run = td.specification.run(td.specification.read("two.toml"))
    run.trajectory.save("run/trajectory.zarr")
    assert call(["explore", "run", "--out", "folder.html"]) == 0
    assert call(["explore", "run/trajectory.zarr", "--out", "store.html"]) == 0
    (file,), (folder,), (store,) = (systems_in(Path(name)) for name in ("pages/file.html", "folder.html", "store.html"))
    assert file["title"] == "Two tokens"
    assert folder == store
    assert file["flow"] == folder["flow"]
    assert file["beta"] == 2.0
    assert file["times"] == folder["times"] == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.long
def test_a_model_and_a_folder_of_its_diagnosis_are_its_tokens() -> None:
    texts = [argument for text in ("one fish", "two red birds", "it rains") for argument in ("--prompt", text)]
    assert call(["explore", "random:./tiny:3", *texts, "--out", "network.html"]) == 0
    network = systems_in(Path("network.html"))
    assert [system["name"] for system in network] == ["text-1", "text-2", "text-3", "circuits"]
    nothing = ["--no-levers", "--no-heads", "--no-directions", "--no-baseline", "--layers", "1"]
    assert call(["diagnose", "random:./tiny:3", *texts[:4], *nothing, "--out", "folder"]) == 0
    assert call(["explore", "folder", "--out", "diagnosis.html"]) == 0
    (diagnosis,) = systems_in(Path("diagnosis.html"))
    spreads = [[one["spread"] for one in system["measures"]] for system in (network[0], diagnosis)]
    assert spreads[0] == pytest.approx(spreads[1], abs=1e-6)
    assert diagnosis["tokens"] == network[0]["tokens"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.toml"], "missing.toml"),
        (["missing.zarr"], "expected a saved trajectory"),
        (["two.toml", "--prompt", "one fish"], "texts: expected None where no network reads them"),
        (["two.toml", "--out", "."], "is a directory"),
        (["broken.toml"], "broken.toml"),
    ],
)
def test_what_cannot_be_explored_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.toml").write_text("[attention]", encoding="utf-8")
    assert call(["explore", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not Path("explorer.html").exists()


def test_a_file_that_is_no_page_is_replaced_on_request_alone(undrawn: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("numbers.csv").write_text("1,2\n", encoding="utf-8")
    assert call(["explore", "two.toml", "--out", "numbers.csv"]) == 2
    assert "--out: expected a new file or a page of tokendynamics, got numbers.csv; choose" in capsys.readouterr().err
    assert Path("numbers.csv").read_text(encoding="utf-8") == "1,2\n"
    assert call(["explore", "two.toml", "--out", "numbers.csv", "--overwrite"]) == 0
    assert call(["explore", "two.toml", "--out", "numbers.csv"]) == 0  # it is a page now


def test_a_folder_of_nothing_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explore", "."]) == 2
    assert "expected a checkpoint folder" in capsys.readouterr().err
