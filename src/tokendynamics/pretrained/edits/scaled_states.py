"""States by layer of a network without norms and feed-forward parts, which grow beyond what a number can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._raw_projections import raw_projections
from tokendynamics.pretrained._torch_attention import apart, projections_apart
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery._maps import as_read, bias_of, by_token
from tokendynamics.pretrained.discovery.interface import multiplied_logits
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.edits._fresh_weights import is_linear_map
from tokendynamics.pretrained.edits._pass import by_prompt
from tokendynamics.pretrained.edits.states import run
from tokendynamics.pretrained.edits.variant import Variant
from tokendynamics.pretrained.network import evaluating, submodule
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.pretrained.packs import Pack

_LARGEST = 2.0**20
"""States are divided where they are larger than this, or smaller than its inverse."""

_AS_THEY_ARE = 30 * math.log(2)
"""A final norm reads states of a scale up to this as they are: its epsilon counts beside small ones, and the squares of
2^50, the largest that it is given, are within float32."""


def why_not_scaled(layout: Layout, variant: Variant) -> str:
    """Return why a variant's blocks are not homogeneous, in words; empty if they are."""
    if variant.norms or variant.feed_forward != 0 or any(part == "feed_forward" for _, part in variant.gates):
        return "norms or feed-forward parts are there"
    for number, layer in enumerate(layout.layers, start=1):
        attention, residual = layer.attention, layer.residual
        if layer.joins:
            return f"layer {number} reads other states than the layer before it gives"
        if residual is not None and residual.by_token:
            return f"the factors of the sum in layer {number} may depend on its states"
        if not layer.attends:
            return f"layer {number} has no attention"
        if attention is None:
            return f"the attention of layer {number} is not read"
        unlike = attention.normed or attention.soft_cap is not None or attention.sinks is not None
        if unlike or attention.token_bias:
            return f"the logits of layer {number} are not a form of its states"
        if attention.changed:
            return f"the attention of layer {number} reads neither the state nor a recognized norm of it"
        if attention.further_senders:
            return f"keys and values of layer {number} come from no token"
        if attention.after_heads:
            return f"{attention.after_heads[0]} acts on the outputs of the heads of layer {number}"
        if attention.after_output == "a function":
            return f"a function acts on the output of the attention of layer {number}"
        if attention.constant_after:
            return f"a constant is added to the output of the attention of layer {number}"
    return ""


class ScaledBlocks(Hooks):
    """Hooks that keep the states of a network's blocks near 1 and remember what they were divided by.

    Attributes:
        log_scale: Logarithm of that, for each prompt that goes through them next.

    Args:
        network: Under a variant for which `why_not_scaled` says nothing.
        layout: Of it.
        prompts: How many go through it at once; to be set with `log_scale` where they change.
    """

    def __init__(self, network: nn.Module, layout: Layout, prompts: int = 1) -> None:
        super().__init__()
        self.log_scale: Float64[Tensor, " prompt"] = torch.zeros(prompts, dtype=torch.float64)
        self._network, self._layout = network, layout

    def _prepare(self) -> None:
        self.enter_all(apart(self._network), multiplied_logits(self._network, lambda: 2 * self.log_scale))
        for name, layer in dict(zip(self._layout.blocks, self._layout.layers, strict=True)).items():
            block = submodule(self._network, name)
            probed = {} if layer.attention is None else layer.attention.probed
            for inner, width in probed.items():
                module = submodule(block, inner)
                self._divide(module, module, bias_of(module, width))
            of_others = [*probed, *(() if layer.residual is None else layer.residual.feed_forward_modules)]
            within = {part for inner in of_others for part in submodule(block, inner).modules()}
            for module in (part for part in block.modules() if part not in within):
                if is_linear_map(module) and getattr(module, "bias", None) is not None:
                    self._divide(module, module)
                for projection in projections_apart(module):  # inputs first, whatever the module reads
                    self._divide(projection, projection)
                for projection in raw_projections(module):
                    self._divide(projection, module)
            self.after_block(block, layer.sites, self._rescaled)
        if self._layout.final_norm is not None:
            self.before(submodule(self._network, self._layout.end), self._before_norm)

    def _divide(self, module: nn.Module, reader: nn.Module, bias: Tensor | None = None) -> None:
        """Divide the bias of what a module gives, in the order of axes of what reads for it.

        Args:
            module: It.
            reader: The module itself, or that which computes it with parameters of its own.
            bias: For one that is read by what it does.
        """

        def divided(module: Any, given: Any, output: Tensor) -> Tensor | None:
            del given
            added = module.bias if bias is None else bias
            if added is None:
                return None
            states = by_token(reader, output)
            states = states + added.to(states) * (_by_prompt(torch.exp(-self.log_scale), states) - 1)
            return as_read(reader, states, output)

        # Before the gates, which may stand on the same module.
        self.callback(module.register_forward_hook(divided, prepend=True).remove)

    def _rescaled(self, states: Tensor) -> Tensor:
        largest = states.abs().amax(dim=tuple(range(1, states.ndim))).double().cpu()
        beyond = (largest > _LARGEST) | (largest < 1 / _LARGEST)
        known = beyond & torch.isfinite(largest) & (largest > 0)
        exponent = torch.where(known, torch.log2(largest.clamp_min(1e-300)).round(), 0.0)
        self.log_scale = self.log_scale + exponent * math.log(2)
        return states * _by_prompt(torch.exp2(-exponent), states)

    def _before_norm(self, states: Tensor) -> Tensor:
        return states * _by_prompt(torch.exp(self.log_scale.clamp(-_AS_THEY_ARE, _AS_THEY_ARE)), states)


def _by_prompt(factors: Float64[Tensor, " prompt"], states: Tensor) -> Tensor:
    """Return a factor of each prompt beside states (prompt, …)."""
    return factors.to(states).reshape(-1, *(1,) * (states.ndim - 1))


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
        return CheckpointError(ckpt.name, "a network that runs", words)

    network, scaling = ckpt.model, not why_not_scaled(ckpt.layout, ckpt.variant)
    with evaluating(network), ckpt.as_varied():
        for pack in ckpt.packs(list(prompts)):
            scaled = ScaledBlocks(network, ckpt.layout, len(pack.places)) if scaling else None
            # The scale is taken out by a hook on each block, and must be before the watch's own sees the states.
            with refusing(refusal), scaled or nullcontext(), _Watch(ckpt, pack, scaled) as watch:
                states = watch.run(network)
            yield states


class _Watch(Hooks):
    """Hooks that keep what each block hands on, and by what it is divided then."""

    def __init__(self, ckpt: Checkpoint, pack: Pack, scaled: ScaledBlocks | None) -> None:
        super().__init__()
        self._ckpt, self._pack, self._scaled = ckpt, pack, scaled
        self._states: list[Tensor] = []
        self._scales: list[Tensor] = []
        self._final: list[Tensor] = []

    def _prepare(self) -> None:
        layout = self._ckpt.layout
        first = submodule(self._ckpt.model, layout.blocks[0])
        self.before_block(first, layout.layers[0].sites, lambda states: None if self._states else self._keep(states))
        for name, layer in dict(zip(layout.blocks, layout.layers, strict=True)).items():
            self.after_block(submodule(self._ckpt.model, name), layer.sites, self._keep)
        if layout.final_norm is not None:
            self.after(submodule(self._ckpt.model, layout.end), self._finish)

    def run(self, network: nn.Module) -> ScaledStates:
        """Run the network once."""
        run(network, self._pack.arguments)
        final = by_prompt(self._final[0], len(self._pack.places)) if self._final else None
        return ScaledStates(self._pack.places, torch.stack(self._states), torch.stack(self._scales), final)

    def _finish(self, states: Tensor) -> None:
        if not self._final:  # BLIP normalizes its pooled token by the same module after all tokens
            self._final.append(states)

    def _keep(self, states: Tensor) -> None:
        self._final.clear()
        prompts = len(self._pack.places)
        self._states.append(states.reshape(prompts, -1, states.shape[-1]))
        none = torch.zeros(prompts, dtype=torch.float64)
        self._scales.append(none if self._scaled is None else self._scaled.log_scale)
