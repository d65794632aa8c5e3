"""Reads states as the network's language head reads its last ones: what stands before the logits is part of it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._language_head import logits_of
from tokendynamics.pretrained._streams import check_one_stream
from tokendynamics.pretrained.discovery._outputs import states_given, with_states_given
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import evaluating, without_cache
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import Pack
from tokendynamics.pretrained.states import moved


class Decoder(ExitStack):
    """The head of a network, for a ``with`` block; the network runs once for each reading, its last states replaced.

    Args:
        whole: The network with its head on; it holds `network`'s modules.
        network: The one that the layout is of.
        layout: Of it.
        pack: Token ids of as many tokens as the states will have.
        vocabulary: Token ids of the network.
        name: What a message calls it.

    Raises:
        CheckpointError: Its blocks hand on several streams of states.
    """

    def __init__(
        self, whole: nn.Module, network: nn.Module, layout: Layout, pack: Pack, vocabulary: int, name: str
    ) -> None:
        super().__init__()
        check_one_stream(layout, name)
        self._whole, self._layout, self._name, self._vocabulary = whole, layout, name, vocabulary
        end = layout.blocks[-1] if layout.final_norm is None else layout.final_norm[0]
        self._end = network.get_submodule(end)
        first = next(whole.parameters())
        self._arguments = {key: moved(value, first) for key, value in pack.arguments.items()}
        self._states: Tensor | None = None

    def __enter__(self) -> Decoder:
        super().__enter__()
        for manager in (evaluating(self._whole), without_cache(self._whole), silenced(), torch.no_grad()):
            self.enter_context(manager)
        self.callback(self._end.register_forward_hook(self._replace).remove)
        return self

    def normed(self, states: Float[Tensor, "prompt token dim"]) -> Float[Tensor, "prompt token dim"]:
        """Return states after the final norm; unchanged without one."""
        return states if self._layout.final_norm is None else self._end(states)

    def logits(self, normed: Float[Tensor, "prompt token dim"]) -> Float[Tensor, "prompt token vocabulary"]:
        """Return the logits of states that have been through the final norm.

        Raises:
            CheckpointError: The network gives no logits.
        """
        self._states = normed
        try:
            with refusing(self._refusal), as_before(self._whole):
                output = self._whole(**self._arguments)
        finally:
            self._states = None
        found = logits_of(output, self._arguments["input_ids"], self._vocabulary)
        if found is None:
            raise CheckpointError(no_head(self._name))
        return found

    def _refusal(self, words: str) -> CheckpointError:
        return CheckpointError(expected(self._name, "a network whose head reads states", words))

    def _replace(self, module: nn.Module, given: Any, output: Any) -> Any:
        del module, given
        former = states_given(output)
        if self._states is None or former is None:
            return None
        return with_states_given(output, self._states.reshape(former.shape).to(former))


def no_head(name: str) -> str:
    """Return the message for a network that cannot be decoded."""
    return expected(name, "a network with a language head, to decode its states", "one without", "load the whole model")
