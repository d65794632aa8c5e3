"""What figures of real networks read: a model and a text, handed by the user or not, and what a record says of them."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from jaxtyping import Int
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.inputs import ids_of_any_length
from tokendynamics.pretrained.sources.finding import WHEELS

_WEIGHTS = ("config.json", "*.safetensors", "*.bin", "*.gguf")
_RANDOM = "random:"


def name_of_model(model: str) -> str:
    """Return what to call a model that `tokendynamics.load` reads: as it was given, of a path the last part.

    >>> name_of_model("random:distilgpt2:7")
    'random:distilgpt2:7'
    """
    path, before, after = _place(model)
    return model if path is None else f"{before}{path.resolve().name}{after}"


def in_record(argument: str, value: str | None) -> str | Mapping[str, str] | None:
    """Return what a record says of a model or a text: of a path its name and the SHA-256 of what is there.

    Args:
        argument: "model" or "text", which is always a path.
        value: What was given.
    """
    path = None if value is None else Path(value).expanduser() if argument == "text" else _place(value)[0]
    if value is None or path is None:
        return value
    name = path.name if argument == "text" else name_of_model(value)
    return {"name": name, "sha256": _digest(path)}


def _place(model: str) -> tuple[Path | None, str, str]:
    """Return the path in the words for a model if there is one, and what stands before and behind it."""
    before = _RANDOM if model.startswith(_RANDOM) else ""
    words = model.removeprefix(before)
    if not before and words in WHEELS:
        return None, "", ""
    name, colon, seed = words.rpartition(":")
    for place, after in ((words, ""), (name, f"{colon}{seed}")):
        if place and Path(place).expanduser().exists() and (not before or Path(place).expanduser().is_dir()):
            return Path(place).expanduser(), before, after
    return None, "", ""


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's configuration and weights one after the other."""
    files = [path] if path.is_file() else sorted(file for kind in _WEIGHTS for file in path.glob(kind))
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class RealText:
    """A text that people wrote.

    Attributes:
        name: What to call it.
        text: The whole of it.
    """

    name: str
    text: str

    @property
    def words(self) -> str:
        """Its name, and the beginning of its SHA-256."""
        return f"{self.name} (SHA-256 {hashlib.sha256(self.text.encode()).hexdigest()[:12]}…)"


def real_text(path: str | Path | None = None) -> RealText:
    """Read a text, such as WikiText-103's test set; None for CPython's pages of help, which every machine has.

    Raises:
        ArgumentValueError: No such file, one that is not UTF-8, or one without any text.

    >>> real_text().text[:22]
    'The "assert" statement'
    """
    if path is None:
        pages = "\n\n".join(topics[name] for name in sorted(topics))
        return RealText(f"help pages of CPython {platform.python_version()}", pages)
    place = Path(path).expanduser()
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentValueError(expected("text", "a text file in UTF-8", f"{place}: {error}")) from error
    if not text.strip():
        raise ArgumentValueError(expected("text", "a file with some text", f"{place}, which has none"))
    return RealText(place.name, text)


def sequences_of(ckpt: Checkpoint, text: RealText, length: int, count: int, seed: int) -> Int[Tensor, "sequence token"]:
    """Cut a text into sequences of one length that do not overlap, and draw some of them.

    A tokenizer's special tokens are left out; an untrained network without one reads bytes.

    Args:
        ckpt: Whose tokens.
        text: Where from.
        length: Tokens of each.
        count: How many.
        seed: Of the draw.

    Raises:
        ArgumentTypeError, CheckpointError: The network reads no text, or has no tokenizer for it.
        ArgumentValueError: The text is too short for them, or `length` is longer than the network's context.
    """
    context = ckpt.architecture.context
    if context is not None and length > context:
        raise ArgumentValueError(expected("length", f"at most {context} tokens, the context of {ckpt.name}", length))
    ids = ids_of_any_length(ckpt, text.text, argument="text")
    whole = len(ids) // length
    if whole < count:
        came = f"{len(ids)} tokens in {text.name}, which make {whole}"
        raise ArgumentValueError(expected("text", f"{count} sequences of {length} tokens", came, "pass a longer one"))
    drawn = torch.randperm(whole, generator=generator(seed))[:count]
    return ids[: whole * length].reshape(whole, length)[drawn]
