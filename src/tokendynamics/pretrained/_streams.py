"""Networks whose blocks hand on more than one state for each token: what cannot be said of them, and why."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery.layout import Layout

_ONE = "blocks that pass on one state for each token"


def check_one_stream(layout: Layout, name: str) -> None:
    """Refuse to put states into a network whose blocks read several tensors of them.

    Args:
        layout: Of it.
        name: What a message calls it.

    Raises:
        CheckpointError: They do.
    """
    if layout.streams > 1:
        advice = "td.trace follows those that the network calls its hidden states"
        raise CheckpointError(expected(name, _ONE, f"{layout.streams} streams of states", advice))


def check_by_token(states: Sequence[Tensor]) -> None:
    """Refuse states that are not (input, token, feature): of several streams in one tensor, or of a grid of places.

    Args:
        states: What the blocks were given and gave.

    Raises:
        CheckpointError: They are none.
    """
    for each in states[:1]:
        if each.ndim != 3:
            advice = "td.audit reads its weights, where they are found"
            raise CheckpointError(expected("states", _ONE, f"states of shape {tuple(each.shape)}", advice))
