"""States with their scale apart are the states, and the final norm of what has none reads as that of what has."""

from __future__ import annotations

import pytest
import torch

import tokendynamics as td
from pretrained.families import half_of_network, network_of
from tokendynamics.pretrained.edits.scaled_states import scaled_states

PROMPTS = [torch.tensor([[5, 9, 2, 7], [3, 3, 8, 1]][place]) for place in range(2)]


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_scale_times_scaled_states_are_the_states(family: str) -> None:
    checkpoint = td.load(half_of_network(*network_of(family)))
    seen = 0
    for scaled in scaled_states(checkpoint, PROMPTS):
        for number, place in enumerate(scaled.places):
            plain = checkpoint.states(PROMPTS[place])
            whole = scaled.states[:, number] * scaled.log_scale[:, number].exp().float()[:, None, None]
            torch.testing.assert_close(whole, plain.feed_forward, rtol=2e-5, atol=2e-5)
            assert (scaled.final_norm is None) == (plain.final_norm is None)
            if scaled.final_norm is not None:
                torch.testing.assert_close(scaled.final_norm[number], plain.final_norm, rtol=1e-4, atol=1e-4)
            seen += 1
    assert seen == len(PROMPTS)
