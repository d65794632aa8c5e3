"""GGUF files, converted to a folder of safetensors once and read from a cache ever after."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import platformdirs
import torch

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.pretrained.adapters import adapter_for
from tokendynamics.pretrained.messages import in_short
from tokendynamics.pretrained.quiet import quiet

_MEBIBYTE = 1 << 20
# Part of the key: raise it when what is written changes.
_LAYOUT = b"1"


def converted(path: Path, cache: Path | str | None, report: Callable[[str], None] | None) -> Path:
    """Return the folder of safetensors that holds the weights and the tokenizer of a GGUF file.

    Args:
        path: The file.
        cache: Folder for conversions; None for the environment variable TOKENDYNAMICS_CACHE or else the user's
            cache folder.
        report: Called with a sentence when a conversion starts.

    Raises:
        CheckpointError: The file is broken or of an unknown architecture, the extra `gguf` is not installed, or
            the cache cannot be written.
    """
    root = Path(cache or os.environ.get("TOKENDYNAMICS_CACHE") or platformdirs.user_cache_dir("tokendynamics"))
    target = root / "gguf" / f"{path.stem}-{_key(path)}"
    if (target / "config.json").is_file():
        return target
    _check_readers(path)
    if report is not None:
        report(f"converting {path.name} to safetensors, once (about 20 s for 135 million parameters)")
    network, tokenizer = _read(path)
    try:
        with _published(target) as folder, quiet():
            network.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except OSError as error:
        came = in_short(error)
        advice = "set TOKENDYNAMICS_CACHE to a folder with enough space"
        raise CheckpointError(expected(str(target), "a cache folder to write to", came, advice)) from error
    return target


def _key(path: Path) -> str:
    """A hash of size, beginning and end: it survives a reinstallation, and reads 2 MiB instead of gigabytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_MEBIBYTE)
        file.seek(max(0, size - _MEBIBYTE))
        tail = file.read(_MEBIBYTE)
    if not head.startswith(b"GGUF"):
        raise CheckpointError(
            expected(str(path), "a GGUF file", "one that does not begin with GGUF", "download it again")
        )
    return hashlib.sha256(b"|".join((_LAYOUT, str(size).encode(), head, tail))).hexdigest()[:16]


def _check_readers(path: Path) -> None:
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        advice = "pip install 'tokendynamics[gguf]'"
        raise CheckpointError(
            expected(str(path), "the readers of GGUF files", f"no {' and no '.join(missing)}", advice)
        )


@contextmanager
def _published(target: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `target` at the end, or disappears if the block fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".writing-", dir=target.parent))
    try:
        yield folder
        try:
            folder.rename(target)
        except OSError:
            # Another process may have finished first; its result is the same.
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer in a GGUF file, as transformers reads them."""
    from transformers import AutoTokenizer

    source = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        with quiet(), _without_conversion_bar():
            network = _dequantised(path.parent, source)
            return network, AutoTokenizer.from_pretrained(path.parent, **source)
    except CheckpointError:
        raise
    except Exception as error:  # the GGUF reader fails on broken files with whatever its parsing led to
        came = f"one that cannot be converted ({in_short(error)})"
        raise CheckpointError(expected(str(path), "a complete GGUF file", came, "download it again")) from error


def _dequantised(folder: Path, source: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    adapter_for(AutoConfig.from_pretrained(folder, **source).model_type)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **source)
    # A model that came from GGUF counts as quantised and refuses to be saved: rebuild it around the same tensors.
    config = copy.deepcopy(loaded.config)
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    return plain


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
