"""The blocks of a network run on given states: its own forward pass, what the first block reads replaced."""

from __future__ import annotations

import inspect
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._own_tokens import OwnTokens
from tokendynamics.pretrained._streams import check_by_token, check_one_stream
from tokendynamics.pretrained.discovery._calls import state_of, with_state
from tokendynamics.pretrained.discovery._outputs import states_given
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import evaluating, without_cache
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import Pack
from tokendynamics.pretrained.states import moved


@dataclass(frozen=True)
class Passed:
    """What one pass through the blocks leaves.

    Attributes:
        states: After the last block, before the final norm.
        normed: After the final norm; the same without one.
    """

    states: Float[Tensor, "prompt token dim"]
    normed: Float[Tensor, "prompt token dim"]


class _ReachedError(Exception):
    """The first block has been reached, and nothing beyond it is needed."""


class Stack(ExitStack):
    """The blocks and the final norm, for a ``with`` block; masks and rotations are those of the network's own pass.

    Args:
        network: In memory; its modes and hooks are put back after.
        layout: Of it.
        pack: Inputs of as many tokens as the states will have.
        name: What a message calls it.

    Raises:
        CheckpointError: Its blocks hand on several streams of states.
    """

    def __init__(self, network: nn.Module, layout: Layout, pack: Pack, name: str) -> None:
        super().__init__()
        check_one_stream(layout, name)
        self._network, self._layout, self._name = network, layout, name
        first = next(each for each in network.parameters() if not each.is_meta)
        self._arguments = {key: moved(value, first) for key, value in pack.arguments.items()}
        self._prompts = len(pack.places)
        self._given: Tensor | None = None
        self._seen: list[Tensor] = []
        self._embedding = False
        self._waiting = False

    def __enter__(self) -> Stack:
        super().__enter__()
        for manager in (evaluating(self._network), without_cache(self._network), silenced(), torch.no_grad()):
            self.enter_context(manager)
        blocks = self._layout.blocks
        first, last = (self._network.get_submodule(name) for name in (blocks[0], blocks[-1]))
        self.callback(first.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
        self.callback(last.register_forward_hook(self._leave).remove)
        if self._layout.final_norm is not None:
            norm = self._network.get_submodule(self._layout.final_norm[0])
            self.callback(norm.register_forward_hook(self._leave).remove)
        return self

    def embedded(self) -> Float[Tensor, "prompt token dim"]:
        """Return what the first block reads of the inputs, and run no further.

        Raises:
            CheckpointError: The network does not run.
        """
        self._seen, self._embedding = [], True
        try:
            self._run(self._arguments)
        finally:
            self._embedding = False
        return self._by_prompt(self._seen[-1]).clone()

    def own_places(self) -> slice:
        """Return which places of the states are tokens of the inputs; the network runs once, as it is.

        Raises:
            CheckpointError: The network does not run.
        """
        with OwnTokens(self._network, self._layout) as tokens:
            self._run(self._arguments)
        return tokens.places(self._arguments)

    def embedded_again(self, states: Float[Tensor, "prompt token dim"]) -> Float[Tensor, "prompt token dim"]:
        """Return what the first block reads where these states stand for what the network looks up for its tokens.

        Raises:
            CheckpointError: The network does not accept embeddings.
        """
        known = inspect.signature(self._network.forward).parameters
        if "inputs_embeds" not in known or "input_ids" not in self._arguments:
            wanted = "a network that takes inputs_embeds, since a norm stands behind its positions"
            raise CheckpointError(expected(self._name, wanted, "one that does not", "use positions='once'"))
        rest = {name: value for name, value in self._arguments.items() if name != "input_ids"}
        former, self._arguments = self._arguments, rest | {"inputs_embeds": states}
        try:
            return self.embedded()
        finally:
            self._arguments = former

    def run(self, states: Float[Tensor, "prompt token dim"]) -> Passed:
        """Run the blocks and the final norm on states.

        Raises:
            CheckpointError: The network does not run.
        """
        self._seen, self._given, self._waiting = [], states, True
        try:
            self._run(self._arguments)
        finally:
            self._given = None
        # A block that runs several times shows each time; the last time is the end, with the norm after it.
        ends = self._seen[-2:] if self._layout.final_norm is not None else self._seen[-1:] * 2
        before, after = (self._by_prompt(each) for each in ends)
        return Passed(before, after)

    def _run(self, arguments: dict[str, Any]) -> None:
        def refusal(words: str) -> CheckpointError:
            return CheckpointError(expected(self._name, "a network whose blocks run on their own output", words))

        with refusing(refusal), suppress(_ReachedError), as_before(self._network):
            self._network(**arguments)

    def _enter(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        del module
        state = state_of(positional, named)
        if self._embedding and state is not None:
            self._seen.append(state)
            raise _ReachedError
        if state is None or self._given is None or not self._waiting:
            return None
        self._waiting = False  # the first block may run again
        return with_state(self._given.reshape(state.shape).to(state), state, positional, named)

    def _leave(self, module: nn.Module, positional: Any, output: Any) -> None:
        del module, positional
        states = states_given(output)
        if self._given is not None and states is not None:
            self._seen.append(states)

    def _by_prompt(self, state: Tensor) -> Tensor:
        by_prompt = state if state.ndim > 2 else state.reshape(self._prompts, -1, state.shape[-1])
        check_by_token([by_prompt])
        return by_prompt
