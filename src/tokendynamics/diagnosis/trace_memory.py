"""The memory that following prompts through a network needs at least, before any of it is taken."""

from __future__ import annotations

from collections.abc import Mapping

from tokendynamics.numerics.resources import check_fits
from tokendynamics.observables.many_tokens import are_many
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import WHOLE_BYTES
from tokendynamics.pretrained.discovery.interface import WITH_REMEDY

_ARRAYS_OF_PAIRS = 3
"""Arrays of (head, token, token) that an attention that is no part of transformers' interface has at the same time."""


def check_trace_fits(ckpt: Checkpoint, tokens: Mapping[str, int]) -> None:
    """Refuse prompts whose trace needs more memory than is free.

    Args:
        ckpt: What they go through.
        tokens: Of each prompt, by name.

    Raises:
        MemoryLimitError: One prompt, or the states of all, which are kept until all are compared, are too large.
    """
    states = {name: state_bytes(ckpt, count) for name, count in tokens.items()}
    needed = {name: states[name] + attention_bytes(ckpt, count) for name, count in tokens.items()}
    largest = max(needed, key=lambda name: needed[name])
    check_fits(needed[largest], largest, "shorten the prompt")
    together = sum(states.values()) + needed[largest] - states[largest]
    reason = "they pass each block together" if ckpt.streamed else "the states of all are kept"
    check_fits(together, "texts", f"{reason}: trace them in several calls")


def state_bytes(ckpt: Checkpoint, tokens: int) -> int:
    """Return the bytes of a prompt's states as passed on, and of the cosines that are kept, in float64."""
    facts = ckpt.architecture
    cosines = 0 if are_many(tokens, facts.dim) else 8 * tokens
    return (2 * facts.layers + 1) * tokens * (facts.dim * ckpt.dtype.itemsize + cosines)


def attention_bytes(ckpt: Checkpoint, tokens: int, *, watched: bool = False) -> int:
    """Return the bytes of the attention of one layer, at least.

    They are a block of weights where the attention is PyTorch's or uses transformers' interface, and with PyTorch's
    a mask or a bias that the network makes for all pairs of tokens; elsewhere weights of all pairs for every head.

    Args:
        ckpt: What runs.
        tokens: Of the prompt.
        watched: Whether the attention is computed by its plain implementation, as `Checkpoint.watch_attention` does.
    """
    implementation = getattr(ckpt.config, "_attn_implementation", None)
    fused = implementation in ("sdpa", WITH_REMEDY["sdpa"]) and not watched
    attending = ckpt.layout.layers
    weights = _heads(ckpt) * tokens**2 * max(4, ckpt.dtype.itemsize)
    if not fused and any(layer.attends and not layer.shows for layer in attending):
        return _ARRAYS_OF_PAIRS * weights
    read = [layer.attention for layer in attending if layer.attention is not None]
    if any(each.relative_bias for each in read):
        return 2 * weights
    windows = fused and any(each.window is not None and each.window < tokens for each in read)
    # PyTorch takes a boolean mask to the format of the weights.
    mask = tokens**2 * (1 + ckpt.dtype.itemsize) if windows else 0
    return min(weights, WHOLE_BYTES) + mask


def _heads(ckpt: Checkpoint) -> int:
    """Return how many heads an attention has; 0 where neither the layout nor the configuration says it."""
    in_configuration = getattr(ckpt.config, "num_attention_heads", 0)
    return ckpt.architecture.heads or (in_configuration if isinstance(in_configuration, int) else 0)
