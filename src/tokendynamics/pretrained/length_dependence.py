"""Networks that compute otherwise for a longer input, and what must not pass from one input to the next in them.

Buffers into which a network writes while it runs (observers of quantisation, counters of experts) are put back as well.

LongRoPE has one set of frequencies up to the original length and another beyond it; dynamic NTK scaling derives them
from the longest input since the last short one; Reformer and BigBird attend in chunks of a longer input. The length is
that of the whole pass, so that prompts of different kinds cannot share one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

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
        written = {module: _written[module] for module in network.modules() if module in _written} if _written else {}
        with _with_copies(written):
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


_written: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()
"""Modules that write into buffers of their own while they run, and the names of these."""

_LARGEST = 2**22
"""Entries of a buffer that is taken for a packed weight, into which nothing writes."""

_PLAIN = (bool, int, float, str, Tensor, type(None))


@contextmanager
def noting_written_buffers(network: nn.Module, alike: nn.Module) -> Iterator[None]:
    """Note which buffers the passes of a network inside the block write into, and put them back at its end.

    Args:
        network: What runs.
        alike: The network whose later passes leave them as they are (`as_before`); itself, or the one it is a copy of.
    """
    small: dict[nn.Module, tuple[str, ...]] = {}
    for module in network.modules():
        buffers = module._buffers if type(module._buffers) is dict else {}  # one of TorchScript has no such
        names = tuple(name for name, buffer in buffers.items() if buffer is None or buffer.numel() <= _LARGEST)
        small |= {module: names} if names else {}
    places = {module: name for name, module in network.named_modules()}
    former = {module: dict(module._buffers) for module in small}
    with _with_copies(small):
        try:
            yield
        finally:
            for module, name in ((module, name) for module, names in small.items() for name in names):
                if not _are_equal(module._buffers.get(name), former[module][name]):
                    owner = alike.get_submodule(places[module])
                    _written[owner] = tuple(dict.fromkeys((*_written.get(owner, ()), name)))


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.is_meta or other.is_meta:
        return one is other or (one is not None and other is not None)
    return one.shape == other.shape and torch.equal(one, other)


@contextmanager
def _with_copies(names: Mapping[nn.Module, tuple[str, ...]]) -> Iterator[None]:
    """Let modules hold copies of some of their buffers inside the block; their own are there again after it.

    What else a module remembers with a buffer, such as how long it is, is put back with it.
    """
    former = []
    for module, several in names.items():
        remembered = {
            name: value for name, value in vars(module).items() if name != "training" and isinstance(value, _PLAIN)
        }
        buffers = {name: module._buffers.get(name) for name in several}
        former.append((module, remembered, buffers))
        module._buffers.update({name: None if one is None else one.clone() for name, one in buffers.items()})
    try:
        yield
    finally:
        for module, remembered, buffers in former:
            vars(module).update(remembered)
            module._buffers.update(buffers)


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
