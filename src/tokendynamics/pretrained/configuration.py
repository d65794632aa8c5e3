"""The configuration of a checkpoint folder, checked before any library builds something from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokendynamics.numerics.errors import ArgumentValueError, CheckpointError, expected
from tokendynamics.pretrained.adapters import adapter_for
from tokendynamics.pretrained.messages import refusing
from tokendynamics.pretrained.quiet import quiet
from tokendynamics.provenance.reading import parse_json


def read_config(folder: Path) -> Any:
    """Return the transformers configuration in `folder`.

    Raises:
        CheckpointError: No config.json, an unreadable one, an unknown architecture, or quantised weights.
    """
    path = folder / "config.json"
    facts = _facts(path)
    adapter_for(facts.get("model_type"))
    if facts.get("quantization_config"):
        advice = "use the unquantised checkpoint or a .gguf file"
        raise CheckpointError(expected(str(path), "plain weights", "a quantization_config", advice))
    from transformers import AutoConfig

    # A strict configuration class refuses values in its own words.
    with refusing(lambda words: CheckpointError(expected(str(path), "a valid configuration", words))), quiet():
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def read_json_object(path: Path, wanted: str = "a JSON object") -> dict[str, Any]:
    """Return the object in a JSON file of a checkpoint; NaN and Infinity, which some hold, are numbers.

    Args:
        path: A regular file.
        wanted: What it should hold, for the message.

    Raises:
        CheckpointError: It is no regular file, too large, unreadable, no JSON, nested too deeply, or no object.
    """
    try:
        content = parse_json(path, str(path), wanted, float)
    except ArgumentValueError as error:
        raise CheckpointError(f"{error}; copy or download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(expected(str(path), wanted, type(content).__name__))
    return content


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        advice = "pass the folder that holds config.json and the weights"
        raise CheckpointError(expected(str(path.parent), "a checkpoint folder", "no config.json in it", advice))
    return read_json_object(path)
