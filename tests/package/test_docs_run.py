"""The Python of the documents runs as it is printed, one block after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from command_line import call
from tokendynamics.diagnosis.texts import default_texts
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


def save_a_model_of_subwords(folder: Path, seed: int) -> None:
    """Save a GPT-2 whose tokens are longer than a byte, so that texts have few tokens and different numbers of them."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(default_texts().values(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<end>")  # noqa: S106
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_PROMISED = re.compile(r"^( *)print\((?:.*|\n(?:\1 .*\n)+\1)\)  # (.+?)(?: …)?$", re.MULTILINE)
"""A call of print, on one line or on several, and the comment behind it."""


def promised(block: str) -> list[str]:
    """Return the words that a block of code says it prints."""
    return [words for _, words in _PROMISED.findall(block)]


def test_what_a_block_prints_is_read_behind_calls_of_several_lines() -> None:
    block = "print(1)  # 1\nif True:\n    print(\n        f(2),\n    )  # 2 of 3 …\nf(\n    3\n)  # three\nprint(4)\n"
    assert promised(block) == ["1", "2 of 3"]


QUICK = ("README.md", "start.md", "checkpoints.md", "circuits.md", "explorer.md")
"""The others run with the slow tests, and always where all is checked: `.ci/run` runs all of this file."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    slow = [] if name in QUICK else [pytest.mark.slow]
    return [*slow, pytest.mark.pretrained] if name == "remedy.md" else slow


SHORTENED = {
    "remedy.md": {
        "for _ in range(40)": "for _ in range(2)",
        "for name in distinct": "for name in distinct[:4]",
        "texts=texts, names": "texts=texts, weights=False, names",
    },
}
"""What is replaced in the code of documents: 40 steps of SmolLM2 on 29 pages, and a comparison of all its weights, take
minutes; less runs the same code."""


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in BLOCKS])
def test_the_python_of_a_document_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, folder in enumerate(_models(name)):
        save_a_model(tmp_path / folder, seed)
    names: dict[str, object] = {"__name__": "__main__"}
    shortened = SHORTENED.get(name, {})
    assert all(whole in "".join(BLOCKS[name]) for whole in shortened)
    for block in BLOCKS[name]:
        code = block
        for whole, part in shortened.items():
            code = code.replace(whole, part)
        exec(compile(code, name, "exec"), names)  # noqa: S102
        printed = capsys.readouterr().out
        for words in promised(block):
            assert words in printed


def _models(name: str) -> list[str]:
    """Return the folders that stand for models of the reader in a document."""
    return sorted(set(re.findall(r'"(path/to/[\w-]+)"', "".join(BLOCKS[name]))))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [name for name in BLOCKS if _models(name)])
def test_the_python_of_a_document_runs_with_a_model_of_subwords(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, folder in enumerate(_models(name)):
        save_a_model_of_subwords(tmp_path / folder, seed)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCKS[name]:
        exec(compile(block, name, "exec"), names)  # noqa: S102


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
