"""GGUF files, converted to a folder of safetensors once and read from a cache ever after."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained.adapters import adapter_for
from tokendynamics.pretrained.gguf_cache import WRITER, cache_root, entry_of, intact
from tokendynamics.pretrained.gguf_header import read_header
from tokendynamics.pretrained.messages import in_short, refusing
from tokendynamics.pretrained.quiet import quiet, without_panics
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole_folder import whole_folder


def converted(path: Path, cache: Path | str | None, report: Progress) -> Path:
    """Return the folder of safetensors that holds the weights and the tokenizer of a GGUF file.

    Args:
        path: The file.
        cache: Folder for conversions; None for the environment variable TOKENDYNAMICS_CACHE or else the user's
            cache folder.
        report: Told when a conversion starts and ends.

    Raises:
        CheckpointError: The file is broken or of an unknown architecture, the extra `gguf` is not installed, or
            the cache cannot be written.
    """
    root = cache_root(cache)
    target = entry_of(path, root)
    recover(target)
    if intact(target, root):
        return target
    _check_readers(path)
    what = f"converting {path.name} to safetensors, once (about 20 s for 135 million parameters)"
    report(0.0, 1.0, what)
    network, tokenizer = _read(path)
    try:
        # A damaged conversion is nobody's work: it is replaced.
        with whole_folder(target, {"source": path.name}, WRITER, overwrite=True) as folder, quiet():
            network.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except OSError as error:
        came = in_short(error)
        advice = "set TOKENDYNAMICS_CACHE to a folder with enough space"
        raise CheckpointError(expected(str(target), "a cache folder to write to", came, advice)) from error
    report(1.0, 1.0, what)
    return target


def _check_readers(path: Path) -> None:
    require("gguf", str(path), "reading GGUF files", error=CheckpointError)


def _read(path: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer in a GGUF file, as transformers reads them."""
    from transformers import AutoTokenizer

    def refusal(words: str) -> CheckpointError:
        came = f"one that cannot be converted ({words})"
        return CheckpointError(expected(str(path), "a complete GGUF file", came, "download it again"))

    source = {"gguf_file": path.name, "trust_remote_code": False}
    # The GGUF reader fails on broken files with whatever its parsing led to.
    with refusing(refusal), quiet(), without_panics(), _without_conversion_bar():
        read_header(path)
        network = _dequantised(path, source)
        return network, AutoTokenizer.from_pretrained(path.parent, **source)


def _dequantised(path: Path, source: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = path.parent
    config = AutoConfig.from_pretrained(folder, **source)
    adapter_for(config.model_type)
    _check_layers(path, config.num_hidden_layers)
    # Its declared result is the model alone.
    read: Any = AutoModelForCausalLM.from_pretrained
    loaded, found = read(folder, dtype=torch.float32, output_loading_info=True, **source)
    _check_complete(path, list(loaded.state_dict()), found["missing_keys"])
    # A model that came from GGUF counts as quantised and refuses to be saved: rebuild it around the same tensors.
    config = copy.deepcopy(loaded.config)
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    return plain


def _check_layers(path: Path, layers: int) -> None:
    """Refuse a file whose metadata names fewer layers than it holds: transformers drops the others silently."""
    from gguf import GGUFReader

    numbers = [re.match(r"blk\.(\d+)\.", tensor.name) for tensor in GGUFReader(path).tensors]
    held = 1 + max((int(found[1]) for found in numbers if found), default=-1)
    if held > layers:
        came = f"tensors of {held}"
        raise CheckpointError(
            expected(str(path), f"{layers} layers, as its block_count says", came, "download it again")
        )


def _check_complete(path: Path, names: list[str], missing: Collection[str]) -> None:
    """Refuse a file without some of the tensors: transformers fills them with random numbers."""
    absent = [name for name in names if name in missing]
    if absent:
        of_all = "it has none" if len(absent) == len(names) else f"{len(absent)} of {len(names)} are missing"
        came = f"none for {absent[0]}, the first of those that are missing ({of_all})"
        raise CheckpointError(expected(str(path), "every tensor of the model in the file", came, "download it again"))


@contextmanager
def _without_conversion_bar() -> Iterator[None]:
    # This bar bypasses the switch of transformers' other bars.
    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    bar = reader.tqdm
    reader.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        reader.tqdm = bar
