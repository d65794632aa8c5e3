"""The configuration of a checkpoint folder, checked before any library builds something from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.pretrained.adapters import adapter_for
from tokendynamics.pretrained.messages import in_short
from tokendynamics.pretrained.quiet import quiet


def read_config(folder: Path) -> Any:
    """Return the transformers configuration in `folder`.

    Raises:
        CheckpointError: No config.json, an unreadable one, an unknown architecture, or quantised weights.
    """
    path = folder / "config.json"
    facts = _facts(path)
    adapter_for(str(facts.get("model_type")))
    if facts.get("quantization_config"):
        advice = "use the unquantised checkpoint or a .gguf file"
        raise CheckpointError(expected(str(path), "plain weights", "a quantization_config", advice))
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a strict configuration class refuses values in its own words
        raise CheckpointError(expected(str(path), "a valid configuration", in_short(error))) from error


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        advice = "pass the folder that holds config.json and the weights"
        raise CheckpointError(expected(str(path.parent), "a checkpoint folder", "no config.json in it", advice))
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(expected(str(path), "a JSON file", f"an unreadable one ({in_short(error)})")) from error
    if not isinstance(facts, dict):
        raise CheckpointError(expected(str(path), "a JSON object", type(facts).__name__))
    return facts
