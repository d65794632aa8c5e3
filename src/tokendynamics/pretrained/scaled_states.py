"""States by layer of a network without norms and feed-forward parts, which grow beyond what a number can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._scaled_blocks import ScaledBlocks, why_not_scaled
from tokendynamics.pretrained.discovery._calls import state_of
from tokendynamics.pretrained.discovery._outputs import states_given
from tokendynamics.pretrained.network import evaluating
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.pretrained.packs import Pack
from tokendynamics.pretrained.states import run


@dataclass(frozen=True)
class ScaledStates:
    """States of prompts of one length, depth 0 the input of the first block, l the output of block l.

    Attributes:
        places: Which of the prompts that were asked for these are.
        states: Divided by their scale.
        log_scale: Logarithm of that.
        final_norm: What the network's final norm makes of the last states; None without one.
    """

    places: tuple[int, ...]
    states: Float[Tensor, "depth prompt token dim"]
    log_scale: Float64[Tensor, "depth prompt"]
    final_norm: Float[Tensor, "prompt token dim"] | None


def scaled_states(ckpt: Checkpoint, prompts: Sequence[Tensor]) -> Iterator[ScaledStates]:
    """Yield the states of prompts of one length, pass by pass, under the checkpoint's own variant.

    Where `why_not_scaled` says nothing, states are divided by their scale after every block, which is exact (see
    `ScaledBlocks`); otherwise they are as they are, and may be infinite.

    Args:
        ckpt: From `load` or `Checkpoint.under`.
        prompts: Token ids, each (token,).

    Raises:
        ArgumentTypeError, ArgumentValueError, CheckpointError: See `Checkpoint.states`.
    """

    def refusal(words: str) -> CheckpointError:
        return CheckpointError(expected(ckpt.name, "a network that runs", words))

    network, scaling = ckpt.model, not why_not_scaled(ckpt.layout, ckpt.variant)
    with evaluating(network), ckpt.as_varied():
        for pack in ckpt.packs(list(prompts)):
            scaled = ScaledBlocks(network, ckpt.layout, len(pack.places)) if scaling else None
            # The scale is taken out by a hook on each block, and must be before the watch's own sees the states.
            with refusing(refusal), scaled or nullcontext(), _Watch(ckpt, pack, scaled) as watch:
                found = watch.run(network)
            yield found


class _Watch(ExitStack):
    """Hooks that keep what each block hands on, and by what it is divided then."""

    def __init__(self, ckpt: Checkpoint, pack: Pack, scaled: ScaledBlocks | None) -> None:
        super().__init__()
        self._pack, self._scaled = pack, scaled
        self._states: list[Tensor] = []
        self._scales: list[Tensor] = []
        self._final: Tensor | None = None
        layout = ckpt.layout
        blocks = [ckpt.model.get_submodule(name) for name in dict.fromkeys(layout.blocks)]
        self.callback(blocks[0].register_forward_pre_hook(self._enter, with_kwargs=True).remove)
        for block in blocks:
            self.callback(block.register_forward_hook(self._leave).remove)
        if layout.final_norm is not None:
            norm = ckpt.model.get_submodule(layout.final_norm[0])
            self.callback(norm.register_forward_hook(self._end).remove)

    def run(self, network: nn.Module) -> ScaledStates:
        """Run the network once."""
        run(network, self._pack.arguments)
        return ScaledStates(self._pack.places, torch.stack(self._states), torch.stack(self._scales), self._final)

    def _keep(self, states: Tensor) -> None:
        prompts = len(self._pack.places)
        self._states.append(states.reshape(prompts, -1, states.shape[-1]))
        none = torch.zeros(prompts, dtype=torch.float64)
        self._scales.append(none if self._scaled is None else self._scaled.log_scale)

    def _enter(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        del module
        states = state_of(positional, named)
        if states is not None and not self._states:
            self._keep(states)

    def _leave(self, module: nn.Module, positional: Any, output: Any) -> None:
        del module, positional
        states = states_given(output)
        if states is not None:
            self._keep(states)

    def _end(self, module: nn.Module, positional: Any, output: Tensor) -> None:
        del module, positional
        self._final = output.reshape(len(self._pack.places), -1, output.shape[-1])
