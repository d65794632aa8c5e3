"""The configuration of a checkpoint and the facts in it, checked before anything is built or allocated for them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokendynamics.numerics._errors import ArgumentValueError, CheckpointError, expected, shown
from tokendynamics.pretrained._other_libraries import refusing, silenced
from tokendynamics.pretrained.adapters import adapter_for
from tokendynamics.pretrained.adapters._adapter import Adapter
from tokendynamics.provenance._reading import parse_json


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
    with refusing(lambda words: CheckpointError(expected(str(path), "a valid configuration", words))), silenced():
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


MOST_LAYERS = 2048
"""Twice the deepest network there is; building one layer takes milliseconds even without its weights."""

_COUNTS = ("layers", "heads", "kv_heads", "dim", "d_head", "context", "vocabulary", "feed_forward_dim")
_LARGEST = 2**40


def facts_of(adapter: Adapter, config: Any, origin: str) -> dict[str, Any]:
    """Return what the adapter says of a configuration.

    Args:
        adapter: The one of its model type.
        config: The transformers configuration.
        origin: The checkpoint in a message.

    Raises:
        CheckpointError: A count that no network has; heads that do not share their keys evenly; a rotation of an odd
            number of features.
    """
    where = f"{origin}: config.json"
    with refusing(lambda words: CheckpointError(expected(where, "the sizes of a network", words))):
        facts = adapter.describe(config)
    for name in _COUNTS:
        _check_count(where, name, facts[name], MOST_LAYERS if name == "layers" else _LARGEST)
    if facts["heads"] % facts["kv_heads"]:
        came = f"{facts['kv_heads']} for {facts['heads']} heads"
        raise CheckpointError(expected(where, "key-value heads that divide the heads", came))
    if facts["positions"] == "rotary" and facts["d_head"] % 2:
        raise CheckpointError(expected(where, "an even head width, since pairs rotate", facts["d_head"]))
    return facts


def check_depth(adapter: Adapter, config: Any, layers: int, stored: Collection[str], origin: str) -> None:
    """Refuse a configuration of another depth than its files, before its layers are built.

    Fewer would be left out in silence, and the rest be called the network.

    Raises:
        CheckpointError: The last layer with a tensor in `stored` is not the last of the configuration.
    """
    names = adapter.tensors(config).values()
    pattern = re.compile("|".join(re.escape(name).replace(r"\{layer\}", r"(\d{1,9})") for name in names))
    found = {int(number) for name in stored if (match := pattern.search(name)) for number in match.groups() if number}
    if found and max(found) != layers - 1:
        advice = "the files are incomplete or config.json belongs to another model"
        came = f"{layers} in config.json"
        wanted = f"the {max(found) + 1} layers that the files hold"
        raise CheckpointError(expected(origin, wanted, came, advice))


def _check_count(where: str, name: str, value: Any, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        wanted = f"a whole number of {name.replace('_', ' ')} from 1 to {largest:,}"
        raise CheckpointError(expected(where, wanted, shown(value)))
