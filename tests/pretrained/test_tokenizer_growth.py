"""A tokenizer.json that multiplies a text is refused before a text goes through it; those in use are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained import load
from tokendynamics.pretrained._checkpoint import Origin
from tokendynamics.pretrained.encoding import MOST_GROWTH, check_growth


def _replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def _written(folder: Path, part: str, *steps: dict[str, Any]) -> Path:
    many = {"normalizer": "normalizers", "decoder": "decoders"}[part]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({part: {"type": "Sequence", many: list(steps)}}))
    return path


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize(
    "steps",
    [
        [_replace("a", "aa")] * 32,
        [_replace("a", "bb"), _replace("b", "cccc"), _replace("c", "d" * 200)],
        [_replace("a", "a" * 5000)],
        [_replace(".", "ab" * 20, "Regex"), _replace("[ab]", "cd" * 20, "Regex")],
        [{"type": "Sequence", "normalizers": [_replace("x", "xxx")] * 8}, _replace("x", "xxx")],
        [{"type": "Prepend", "prepend": "_" * 10**6}],
    ],
)
def test_replacements_that_multiply_a_text_are_refused(part: str, steps: list[Any], tmp_path: Path) -> None:
    path = _written(tmp_path, part, *steps)
    with pytest.raises(CheckpointError, match=f"a {part} that makes a text at most 1,000 times as long"):
        check_growth(path)
    with pytest.raises(CheckpointError, match=f"a {part} that makes a text"):
        _ = Origin("a", folder=tmp_path).tokenizer


@pytest.mark.parametrize(
    "steps",
    [
        [{"type": "Prepend", "prepend": "▁"}, _replace(" ", "▁")],
        # Twelve signs that are written out, none of which is part of another's name: four times the length at most.
        [_replace(letter, f"<{number:02}>") for number, letter in enumerate("()[]{}+-*/=!")],
        [_replace("``", '"'), _replace(" {2,}", " ", "Regex"), {"type": "NFKC"}, {"type": "Lowercase"}],
        [],
    ],
)
def test_replacements_in_use_are_read(steps: list[Any], tmp_path: Path) -> None:
    check_growth(_written(tmp_path, "normalizer", *steps))
    assert MOST_GROWTH == 1000


@pytest.mark.long
@pytest.mark.pretrained
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_the_tokenizers_of_the_wheels_are_read(name: str) -> None:
    assert load(name).tokenizer is not None
