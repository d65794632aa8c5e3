"""GGUF files, converted once to a folder of safetensors that is found by content, verified, and written whole."""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import platformdirs
import torch

from tokendynamics.numerics import CheckpointError, TokenDynamicsError
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained._stored_tensors import natural
from tokendynamics.pretrained.other_libraries import in_short, refusing, silenced, without_panics
from tokendynamics.pretrained.sources._gguf_file import GgufHeader, joined, name_of, read_header, shards_of
from tokendynamics.pretrained.sources._gguf_settings import FACTORS, configured
from tokendynamics.provenance.owned import digest, entries_in, files_below, written_in
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.swap import recover
from tokendynamics.provenance.whole import whole_file, whole_folder

WRITER = "tokendynamics conversion of GGUF"
# Part of the key: raise it when what is written changes.
_LAYOUT = "3"
# A file that was changed within the clock's last ticks can change again without a new time.
_SETTLED_SECONDS = 2.0
_OF_BLOCK = re.compile(r"blk\.(\d+)\.")


def cache_root(cache: Path | str | None) -> Path:
    """Return the folder of the caller's choice, of TOKENDYNAMICS_CACHE, or else the user's cache folder."""
    return Path(cache or os.environ.get("TOKENDYNAMICS_CACHE") or platformdirs.user_cache_dir("tokendynamics"))


def entry_of(path: Path, root: Path) -> Path:
    """Return the folder of the conversion of `path`, by the whole content of its files: it survives a reinstallation.

    Raises:
        CheckpointError: Not a GGUF file.
    """
    shards = shards_of(path)
    for shard in shards:
        with shard.open("rb") as file:
            if file.read(4) != b"GGUF":
                came = "one that does not begin with GGUF"
                raise CheckpointError(str(shard), "a GGUF file", came, "download it again")
    digests = "|".join(remembered_digest(shard, root) for shard in shards)
    key = sha256(f"{_LAYOUT}|{digests}".encode()).hexdigest()[:16]
    return root / "gguf" / f"{name_of(path)}-{key}"


def intact(entry: Path, root: Path) -> bool:
    """Tell whether a conversion is there with every file as it was written."""
    written = written_in(entry)
    if written is None or written.by != WRITER or "config.json" not in written.files:
        return False
    there = {name for top in entries_in(entry) for name in files_below(entry, top)}
    return set(written.files) <= there and all(
        remembered_digest(entry / name, root) == wanted for name, wanted in written.files.items()
    )


def remembered_digest(path: Path, root: Path) -> str:
    """Return the SHA-256 of a file, read again only where its size, times or place on the disk have changed."""
    stamp = _stamp(path)
    note = root / "digests" / f"{sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"
    recover(note)
    try:
        former = json.loads(note.read_text(encoding="utf-8"))
        if former["stamp"] == stamp and isinstance(former["sha256"], str):
            return former["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # nothing known of this file, or a damaged note
    checksum = digest(path)
    if time.time() - max(stamp[1:3]) / 1e9 > _SETTLED_SECONDS and _stamp(path) == stamp:
        # A cache that cannot be written to costs time and nothing else.
        with suppress(OSError, TokenDynamicsError), whole_file(note) as made:
            made.write_text(json.dumps({"stamp": stamp, "sha256": checksum}), encoding="utf-8")
    return checksum


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


_CACHE_ADVICE = "set TOKENDYNAMICS_CACHE to a folder with enough space"


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
    require("gguf", str(path), "reading GGUF files", error=CheckpointError)
    what = f"converting {path.name} to safetensors, once (about 20 s for 135 million parameters)"
    report(0.0, 1.0, what)
    try:
        with joined(shards_of(path), root / "gguf") as whole:
            network, tokenizer = _read(whole)
        # A damaged conversion is nobody's work: it is replaced.
        with whole_folder(target, {"source": path.name}, WRITER, overwrite=True) as folder, silenced():
            network.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except OSError as error:  # reading errors are typed already, and a full disk is an OSError in every case
        came = in_short(error)
        limited = os.strerror(errno.EFBIG).lower() in str(error).lower()
        advice = "raise the limit of a file's size (ulimit -f)" if limited else _CACHE_ADVICE
        raise CheckpointError(str(target), "a cache folder to write to", came, advice) from error
    report(1.0, 1.0, what)
    return target


def _read(path: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer in a GGUF file, as transformers reads them."""
    from transformers import AutoTokenizer

    def refusal(words: str) -> CheckpointError:
        came = f"one that cannot be converted ({words})"
        return CheckpointError(str(path), "a complete GGUF file", came, "download it again")

    source = {"gguf_file": path.name, "trust_remote_code": False}
    # The GGUF reader fails on broken files with whatever its parsing led to.
    with refusing(refusal), silenced(), without_panics(), _without_conversion_bar():
        network = _dequantised(path, source, read_header(path))
        return network, AutoTokenizer.from_pretrained(path.parent, **source)


def _dequantised(path: Path, source: dict[str, Any], header: GgufHeader) -> Any:
    from gguf import GGUFReader, dequantize
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = path.parent
    config: Any = AutoConfig.from_pretrained(folder, **source)
    layers = config.num_hidden_layers
    held = 1 + max((int(match[1]) for name in header.shapes if (match := _OF_BLOCK.match(name))), default=-1)
    if held > layers:  # transformers drops the others silently
        wanted = f"{layers} layers, as its block_count says"
        raise CheckpointError(str(path), wanted, f"tensors of {held}", "download it again")
    stored = [tensor for tensor in GGUFReader(path).tensors if tensor.name in FACTORS]
    factors = {tensor.name: dequantize(tensor.data, tensor.tensor_type).tolist() for tensor in stored}
    config = configured(config, path, header.metadata, header.shapes, factors)
    _check_tensors(path, header, config)
    # Its declared result is the model alone.
    read: Any = AutoModelForCausalLM.from_pretrained
    loaded, info = read(folder, config=config, dtype=torch.float32, output_loading_info=True, **source)
    names = list(loaded.state_dict())
    absent = [name for name in names if name in info["missing_keys"]]
    if absent:  # transformers fills them with random numbers
        of_all = "it has none" if len(absent) == len(names) else f"{len(absent)} of {len(names)} are missing"
        came = f"none for {absent[0]}, the first of those that are missing ({of_all})"
        raise CheckpointError(str(path), "every tensor of the model in the file", came, "download it again")
    # A model that came from GGUF counts as quantised and refuses to be saved: rebuild it around the same tensors.
    config = copy.deepcopy(loaded.config)
    vars(config).pop("quantization_config", None)
    if config.tie_word_embeddings and not loaded.all_tied_weights_keys:
        # The file holds an output matrix of its own, and the reader has kept it.
        config.tie_word_embeddings = False
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    return plain


def _check_tensors(path: Path, header: GgufHeader, config: Any) -> None:
    """Refuse a tensor that transformers has no place for: it drops them silently."""
    from transformers import AutoModelForCausalLM

    reader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    processor = reader.TENSOR_PROCESSORS.get(header.metadata["general.architecture"], reader.TensorProcessor)
    placed = reader.get_gguf_hf_weights_map(empty, processor(config=config.to_dict()))
    left = sorted(set(header.shapes) - {*placed, *FACTORS, "output.weight"}, key=natural)
    if left:
        came = f"{left[0]}, the first of {len(left)} without one"
        advice = "read the original checkpoint, in safetensors"
        raise CheckpointError(str(path), "tensors that the architecture has a place for", came, advice)


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
