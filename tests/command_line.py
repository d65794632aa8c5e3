"""The command line as tests call it, and the smallest inputs that its commands take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

FREE_FLOW = """\
[attention]
qk = { identity = 0.0 }
ov = { identity = -1.0 }
[space]
kind = "free"
[start]
tokens = [[3.0, 4.0], [1.0, 0.0]]
[time]
times = [0.0, 0.5, 1.0]
"""
"""Without logits every token moves with the mean: x + mean (e^(-t) - 1)."""

TINY_GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 16, "vocab_size": 30}
"""A config.json."""

LEARN_LITTLE = ("-N", "2", "-M", "3", "--batch", "10", "--inner", "2", "--samples", "50")
"""Options of `circuits learn`."""


def call(arguments: Sequence[str]) -> int:
    """Exit code of the command line run in this process."""
    from tokendynamics.cli import main

    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return int(done.value.code or 0)
