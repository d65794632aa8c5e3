"""The numbers of a configuration that would make every state NaN, refused by their names before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isfinite, isnan, nan
from typing import Any

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected

_LARGEST = 3.4e38
"""The largest number of single precision, in which settings enter the computation."""

_POSITIVE = frozenset(
    {
        *("rope_theta", "rope_local_base_freq", "local_rope_theta", "global_rope_theta", "rotary_emb_base"),
        *("rotary_base", "compress_rope_theta", "query_pre_attn_scalar"),
        *("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"),
    }
)
"""Settings that are divided by, or of which a root or a power is taken; None switches them off."""

_POSITIVE_OF_ROTATIONS = frozenset(
    {
        *("factor", "long_factor", "short_factor", "original_max_position_embeddings"),
        *("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"),
    }
)
_ROTATIONS = ("rope_parameters", "rope_scaling")


def check_settings(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings of a configuration that make states NaN or infinite.

    These are numbers that are not finite (a bound such as `time_step_limit` may be infinite), a base or a factor of
    rotations that is not positive, an epsilon below zero, and a cap of logits that is not positive.

    Args:
        settings: Of a network or an adapter, by name, with mappings and lists inside.
        where: The file, or the network, in a message.

    Raises:
        CheckpointError: There is one; it is named.

    >>> check_settings({"rope_parameters": {"rope_theta": 0.0}}, "config.json")
    Traceback (most recent call last):
    ...
    tokendynamics.numerics.errors.CheckpointError: config.json: expected rope_parameters.rope_theta above 0, got 0.0
    """
    for name, value in _numbers_in(settings):
        if (wanted := _expected(name, value)) is not None:
            raise CheckpointError(expected(where, wanted, value))
    for name in _ROTATIONS:
        for kind, rotation in _rotations_in(settings.get(name)):
            _check_rotation(rotation, f"{name}{kind}", where)


def _expected(name: str, value: float) -> str | None:
    """Return what a setting must be, None where it is that."""
    parts = name.split(".")
    leaf = parts[-1]
    bounded = "limit" in leaf and not isnan(value)
    if not bounded and not abs(value) <= _LARGEST:
        return f"{name} as a finite number" if not isfinite(value) else f"{name} of at most {_LARGEST}"
    of_rotations = leaf in _POSITIVE_OF_ROTATIONS and any(part in _ROTATIONS for part in parts)
    if (leaf in _POSITIVE or of_rotations) and value <= 0:
        return f"{name} above 0"
    epsilon = leaf in ("eps", "epsilon") or leaf.endswith(("_eps", "_epsilon"))
    return f"{name} of 0 or more" if epsilon and value < 0 else None


def _check_rotation(rotation: Mapping[str, Any], name: str, where: str) -> None:
    """Refuse two settings of a rotation of which neither is wrong alone."""
    kind = rotation.get("rope_type", rotation.get("type"))
    low, high = rotation.get("low_freq_factor"), rotation.get("high_freq_factor")
    if kind == "llama3" and low is not None and low == high:
        raise CheckpointError(expected(where, f"{name}.high_freq_factor above low_freq_factor", f"{high} for both"))
    if kind == "yarn" and rotation.get("rope_theta") == 1:
        raise CheckpointError(expected(where, f"{name}.rope_theta other than 1 for YaRN", 1))


def _rotations_in(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rotation of a configuration, or the one of each kind of layer, with what to add to its name."""
    if not isinstance(value, Mapping):
        return
    inner = [(f".{key}", each) for key, each in value.items() if isinstance(each, Mapping)]
    yield from inner or [("", value)]


def _numbers_in(settings: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number inside mappings and lists, with the name of the entry that it is in."""
    if isinstance(settings, Mapping) and set(settings) == {"__float__"}:
        # transformers writes so what JSON has no number for.
        yield name, {"NaN": nan, "Infinity": inf, "-Infinity": -inf}.get(str(settings["__float__"]), nan)
    elif isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _numbers_in(value, f"{name}.{key}" if name else str(key))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _numbers_in(value, name)
    elif isinstance(settings, int | float) and not isinstance(settings, bool):
        yield name, settings
