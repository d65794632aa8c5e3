"""The facts about a network in its configuration, checked before anything is built or allocated for them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from tokendynamics.numerics.errors import CheckpointError, expected, shown
from tokendynamics.pretrained.adapters.adapter import Adapter
from tokendynamics.pretrained.messages import refusing

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

    Args:
        adapter: The one of its model type.
        config: The transformers configuration.
        layers: How many it says.
        stored: Names of the tensors in the files.
        origin: The checkpoint in a message.

    Raises:
        CheckpointError: The last layer with a tensor is not the last of the configuration.
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
