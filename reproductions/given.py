"""What a user hands to figures of real networks, a model and a text, and what of it a record says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tokendynamics.pretrained.sources._published import WHEELS

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
