"""Every model type of transformers: what `docs/census.json` says is read of it is what is read of it now."""

from __future__ import annotations

import re

import pytest
import torch
import transformers

from pretrained.census import KEPT, Reading, kept, model_types, readings, readings_apart, reason, table

VERSION, KNOWN = kept()

SAMPLE = (
    "llama", "qwen3_next", "llama4_text", "gpt_oss", "deepseek_v3", "gpt2", "bert", "mpnet", "t5", "vit", "clip",
    "qwen2_vl", "hubert", "whisper", "mamba", "fnet", "deberta", "dinov3_convnext", "xlm", "canine", "reformer",
    "pegasus_x", "longt5", "prophetnet", "rwkv",
)  # fmt: skip
"""Types that are quickly built, with every outcome and most reasons among them; test_families reads many more."""

by_type: dict[str, list[Reading]] = {}
for reading in KNOWN:
    by_type.setdefault(reading.model_type, []).append(reading)

IN_TIME = [
    name for name, several in by_type.items() if not re.match("no outcome|its process was killed", several[0].words)
]
"""Those that a process of its own did not end for."""

SECONDS = 300
"""Time for one of the others, which have a process of their own here as well: no type takes the memory of the tests."""

same_version = pytest.mark.skipif(
    transformers.__version__ != VERSION, reason=f"the census is of transformers {VERSION}, this is another version"
)


@pytest.mark.long
@pytest.mark.few(9)
@same_version
@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in IN_TIME]
)
def test_a_type_is_read_as_the_census_says(model_type: str) -> None:
    torch.manual_seed(0)
    now = sorted(readings(model_type) if model_type in SAMPLE else readings_apart(model_type, SECONDS))
    assert [reading._replace(words="") for reading in now] == [
        reading._replace(words="") for reading in by_type[model_type]
    ]
    assert [reason(reading) for reading in now] == [reason(reading) for reading in by_type[model_type]]


@pytest.mark.slow
@same_version
def test_the_census_has_every_type() -> None:
    assert sorted(by_type) == sorted(model_types())


def test_nothing_but_a_reading_or_a_refusal_comes_of_a_type() -> None:
    assert not [reading for reading in KNOWN if reading.outcome == "failed"]
    assert all(reading.words for reading in KNOWN if reading.outcome in ("traced", "refused", "not built"))
    assert all(reading.read == reading.attending > 0 for reading in KNOWN if reading.outcome == "audited")


def test_no_reason_says_a_clause_twice() -> None:
    for reading in KNOWN:
        clauses = reading.words.split("; ")
        assert len(clauses) == len(set(clauses)), reading.name


def test_the_page_has_the_table_of_the_census() -> None:
    assert table(KNOWN, VERSION) in (KEPT.parent / "checkpoints.md").read_text()
