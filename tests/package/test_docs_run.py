"""The Python of the documents runs as it is printed, one block after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from command_line import call
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig, byte_tokenizer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "built" not in path.parts)]
BLOCKS = {
    path.relative_to(ROOT).as_posix().removeprefix("docs/"): blocks
    for path in PAGES
    if (blocks := re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
}


def test_there_are_blocks_to_run() -> None:
    assert {"README.md", "checkpoints.md", "depth.md", "diagnose.md", "simulate.md"} <= BLOCKS.keys()


def save_a_model(folder: Path, seed: int = 0) -> None:
    """Save a small network and its tokenizer as a user of transformers would."""
    torch.manual_seed(seed)
    config = LanguageModelConfig(
        vocab_size=256, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64
    )
    LanguageModel(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


MARKS = {name: [pytest.mark.slow] for name in ("diagnose.md", "simulate.md", "sweep.md", "depth.md", "train.md")}
MARKS["remedy.md"] = [pytest.mark.slow, pytest.mark.pretrained]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in BLOCKS])
def test_the_python_of_a_document_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, folder in enumerate(sorted(set(re.findall(r'"(path/to/[\w-]+)"', "".join(BLOCKS[name]))))):
        save_a_model(tmp_path / folder, seed)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCKS[name]:
        exec(compile(block, name, "exec"), names)  # noqa: S102
        printed = capsys.readouterr().out
        for said in re.findall(r"print\(.*\)  # (.+?)(?: …)?$", block, re.MULTILINE):
            assert said in printed


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_first_command_of_readme_writes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_a_model(tmp_path / "path/to/model")
    (command,) = re.findall(r"^\$ tokendynamics (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert call(shlex.split(command)) == 0
    assert "<h1>" in (tmp_path / "diagnosis/report.html").read_text(encoding="utf-8")


def test_readme_is_short() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 120
