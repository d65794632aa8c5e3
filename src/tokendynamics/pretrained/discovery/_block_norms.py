"""Finds every normalization of the residual stream inside a block: what is taken away where a network has no norms."""

from __future__ import annotations

from collections.abc import Sequence

from tokendynamics.pretrained.discovery._calls import ModuleCall, as_features
from tokendynamics.pretrained.discovery._norms import norm_of


def block_norms(
    block: ModuleCall, calls: Sequence[ModuleCall], attention: tuple[str, int] | None, shape: tuple[int, int]
) -> tuple[str, ...]:
    """Return the modules, within a block, that normalize all features of each token.

    Norms of queries and keys are none of them: they belong to the attention.

    Args:
        block: The block's call.
        calls: Of the whole pass.
        attention: The attention module within the block, and when its output projection ended: until then a norm is
            one of queries or keys. None where it was not found.
        shape: Batch and tokens.
    """
    prefix = f"{block.name}."
    state = as_features(block.y, *shape)
    found: list[str] = []
    for call in calls:
        name = call.name.removeprefix(prefix)
        if not (block.start < call.start and call.end < block.end) or next(call.module.children(), None) is not None:
            continue
        if attention is not None and name.startswith(f"{attention[0]}.") and call.start < attention[1]:
            continue
        x = as_features(call.x, *shape)
        if x is None or state is None or x.shape != state.shape or call.y.shape != getattr(call.x, "shape", None):
            continue
        if norm_of(call.module, call.x, call.y) is not None:
            found.append(name)
    return tuple(dict.fromkeys(found))
