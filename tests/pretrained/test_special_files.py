"""A file of a checkpoint that is a pipe, a device, a broken link, too large or empty is refused by name, at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.hostile_models import WHOLE
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.loading import load
from tokendynamics.provenance.reading import kind_of

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 * 2**30)


ENTRIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "folder": (Path.mkdir, "a folder"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "a link to a file that is not there"),
    "loop": (lambda path: path.symlink_to(path), "symbolic links"),
    "3 GB": (_sparse, "at most 268435456 bytes, got 3221225472"),
    "empty": (Path.touch, "an empty one"),
}
DESCRIPTIONS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja", "vocab.json", "vocab.txt", "merges.txt", "spiece.model"),
    *("model.safetensors.index.json", "preprocessor_config.json", "modules.json", "adapter_config.json"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A whole checkpoint; a test that waits for a pipe fails after 20 s."""
    for name, content in WHOLE.items():
        (tmp_path / name).write_bytes(content)

    def end(*_: object) -> None:
        pytest.fail("no answer within 20 seconds")

    former = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_description_that_is_no_readable_file_is_refused(folder: Path, name: str, entry: str) -> None:
    make, came = ENTRIES[entry]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    for spec in (str(folder), f"random:{folder}"):
        with pytest.raises(CheckpointError) as refused:
            load(spec)
        assert str(refused.value).startswith(f"{folder / name}: expected ")
        assert came in str(refused.value)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry not in ("3 GB", "empty")])
@pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors", "model-00001-of-00001.safetensors"])
def test_weights_that_are_no_file_are_not_called_missing(folder: Path, name: str, entry: str) -> None:
    make, came = ENTRIES[entry]
    adapter: dict[str, Any] = {"adapter": folder / "adapter"} if name.startswith("adapter") else {}
    place = folder / "adapter" if adapter else folder
    place.mkdir(exist_ok=True)
    if adapter:
        (place / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "target_modules": ["c_attn"]}')
    elif name != "model.safetensors":
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"wte.weight": "{name}"}}}}')
    (place / name).unlink(missing_ok=True)
    make(place / name)
    with pytest.raises(CheckpointError) as refused:
        load(str(folder), **adapter)
    assert came in str(refused.value)


@pytest.mark.parametrize("entry", ["pipe", "device", "dangling link", "loop"])
@pytest.mark.parametrize("name", ["model", "model.gguf", "model.safetensors"])
def test_a_model_that_is_no_file_is_named_by_what_it_is(tmp_path: Path, name: str, entry: str) -> None:
    make, came = ENTRIES[entry]
    make(tmp_path / name)
    with pytest.raises(CheckpointError, match=came):
        load(str(tmp_path / name))


def test_other_files_of_a_folder_do_not_matter(folder: Path) -> None:
    os.mkfifo(folder / "log.txt")
    _sparse(folder / "corpus.json")
    (folder / "pytorch_model.bin").symlink_to("nowhere")
    assert load(str(folder)).architecture.layers == 2


@pytest.mark.parametrize(("name", "came"), [("nothing", "got no such file"), ("config.json", "got a file")])
def test_an_adapter_that_is_no_folder_is_named_by_what_it_is(folder: Path, name: str, came: str) -> None:
    with pytest.raises(
        CheckpointError, match=rf"adapter: expected a folder with adapter_config\.json, {came} \(.*{name}"
    ):
        load(str(folder), adapter=folder / name)


def test_a_path_below_a_file_is_not_there(folder: Path) -> None:
    assert kind_of(folder / "config.json" / "x") == "no such file"
