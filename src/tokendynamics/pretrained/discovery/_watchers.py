"""Holds who is given the attentions that run in a thread, and what multiplies their logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from tokendynamics.pretrained.discovery.attention_call import AttentionCall

WATCHER: ContextVar[Callable[[AttentionCall], None] | None] = ContextVar("WATCHER", default=None)
"""What is given every attention that runs; None for nothing."""

LOG_FACTORS: ContextVar[Callable[[], Tensor] | None] = ContextVar("LOG_FACTORS", default=None)
"""Returns the logarithm of what multiplies all logits of each input; None for nothing."""

LOST: ContextVar[Callable[[str], None] | None] = ContextVar("LOST", default=None)
"""Receives, in words, how the logits of a softmax were changed in a way that is not followed; None for nothing."""

SEEN_ELSEWHERE: ContextVar[bool] = ContextVar("SEEN_ELSEWHERE", default=False)
"""Whether the functions that run compute an attention that is seen in another way."""


@contextmanager
def seen_elsewhere() -> Iterator[None]:
    """Leave out the functions inside the block, which compute an attention that is seen in another way."""
    token = SEEN_ELSEWHERE.set(True)
    try:
        yield
    finally:
        SEEN_ELSEWHERE.reset(token)


def watched() -> bool:
    """Whether attentions that run are given to anything, or have multiplied logits."""
    return WATCHER.get() is not None or LOG_FACTORS.get() is not None
