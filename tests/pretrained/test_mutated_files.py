"""Files with a few bytes changed, cut or doubled: read, or refused in one line; never anything else."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli import hostile_models
from cli.gguf_file import gguf
from cli.mutations import check_refusal, mutations
from tokendynamics.numerics.errors import TokenDynamicsError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.sources._gguf_file import read_header

GGUF = gguf()
FILES = {name: hostile_models.WHOLE[name] for name in ("config.json", "model.safetensors", "tokenizer.json")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mutated")
    hostile_models.stored()(root)
    return root / "model"


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "tokenizer.json" else ()) for name in FILES]
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(name: str, folder: Path, data: st.DataObject) -> None:
    (folder / name).write_bytes(data.draw(mutations(FILES[name])))
    try:
        checkpoint = load(folder)
        checkpoint.attention(1)
        checkpoint.states(checkpoint.encode("a b c").ids)
    except TokenDynamicsError as error:
        check_refusal(error)
    finally:
        (folder / name).write_bytes(FILES[name])


@pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated=mutations(GGUF))
def test_the_header_of_a_mutated_gguf_is_read_or_refused(mutated: bytes, folder: Path) -> None:
    path = folder / "mutated.gguf"
    path.write_bytes(mutated)
    try:
        header = read_header(path)
    except TokenDynamicsError as error:
        check_refusal(error)
    else:
        assert header.metadata["llama.block_count"] <= 2


@pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")
def test_the_header_of_a_whole_file_is_what_was_written(folder: Path) -> None:
    path = folder / "whole.gguf"
    path.write_bytes(GGUF)
    header = read_header(path)
    assert header.shapes["blk.1.ffn_down.weight"] == (16, 8)
    assert header.metadata["llama.embedding_length"] == 8
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 32
