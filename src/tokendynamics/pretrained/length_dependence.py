"""Networks that compute otherwise for a longer input, and what must not pass from one input to the next in them.

LongRoPE has one set of frequencies up to the original length and another beyond it; dynamic NTK scaling derives them
from the longest input since the last short one; Reformer and BigBird attend in chunks of a longer input. The length is
that of the whole pass, so that prompts of different kinds cannot share one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

_CHUNKED = ("local_attn_chunk_length", "lsh_attn_chunk_length")


def length_class(config: Any, tokens: int) -> Hashable:
    """Return what prompts of a length have in common with all that may share a pass with them.

    Args:
        config: The transformers configuration of the network; None for a network without one.
        tokens: Of a prompt.

    >>> from transformers import LlamaConfig
    >>> scaled = LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    >>> [length_class(scaled, tokens) == length_class(scaled, 100) for tokens in (5, 4000)]
    [True, False]
    """
    if _in_chunks(config):
        return tokens
    classes: list[Hashable] = []
    for settings in _rope_settings(config):
        if settings["rope_type"] == "longrope":
            classes.append(tokens > settings["original_max_position_embeddings"])
        elif settings["rope_type"] == "dynamic":
            # Beyond this each length has frequencies of its own.
            classes.append(max(tokens, _text_settings(config).max_position_embeddings))
    return tuple(classes)


def depends_on_length(config: Any) -> bool:
    """Tell whether what a network computes for a token depends on how long the whole input is."""
    kinds = {settings["rope_type"] for settings in _rope_settings(config)}
    return _in_chunks(config) or bool(kinds & {"longrope", "dynamic"})


def longest_input(config: Any) -> int | None:
    """Return the largest number of tokens that a configuration names; None if it names none."""
    value = getattr(config, "max_position_embeddings", None)
    if not isinstance(value, int) or value <= 0:
        return None
    factors = [rope["factor"] for rope in _rope_settings(config) if rope["rope_type"] == "dynamic"]
    return int(value * max(1.0, *factors)) if factors else value


@contextmanager
def as_before(network: Any) -> Iterator[None]:
    """Leave what a network remembers of its last input as it is: for one pass, if the length of an input matters to it.

    Args:
        network: Of transformers, or any other, of which nothing is known to be remembered.
    """
    if not depends_on_length(getattr(network, "config", None)):
        yield
        return
    modules: list[nn.Module] = list(network.modules())
    former = [(dict(vars(module)), dict(module._buffers), dict(module._modules)) for module in modules]
    for module in modules:
        module._buffers.update(
            {name: None if buffer is None else buffer.clone() for name, buffer in module._buffers.items()}
        )
    try:
        yield
    finally:
        for module, (attributes, buffers, inner) in zip(modules, former, strict=True):
            _restore(vars(module), attributes)
            _restore(module._buffers, buffers)
            _restore(module._modules, inner)


def _restore(now: dict[str, Any], former: Mapping[str, Any]) -> None:
    for name in [key for key in now if key not in former]:
        del now[name]
    now.update(former)


def _in_chunks(config: Any) -> bool:
    return getattr(config, "attention_type", None) == "block_sparse" or any(hasattr(config, name) for name in _CHUNKED)


def _text_settings(config: Any) -> Any:
    return getattr(config, "text_config", config)


def _rope_settings(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions: one set, or one for each type of layer."""
    settings = getattr(_text_settings(config), "rope_parameters", None)
    if not isinstance(settings, Mapping):
        return
    for rope in (settings, *settings.values()):
        if isinstance(rope, Mapping) and "rope_type" in rope:
            yield rope
