"""Blocks that are attention alone, on states divided by their scale, so that nothing overflows with depth.

Without norms and feed-forward parts a block is y = x + W_O Σ_j w_ij (W_V x_j + b_V) + b_O. With x = s x̂ it is

    ŷ = x̂ + W_O Σ_j w_ij (W_V x̂_j + b_V/s) + b_O/s,    logits s² ⟨q̂_i, k̂_j⟩,    q̂ = W_Q x̂ + b_Q/s,

exactly: biases are divided by s and logits multiplied by s². s is a power of two, so that states are the same numbers.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from tokendynamics.pretrained._fresh_weights import is_linear_map
from tokendynamics.pretrained.discovery._calls import state_of, with_state
from tokendynamics.pretrained.discovery._outputs import states_given, with_states_given
from tokendynamics.pretrained.discovery.interface import multiplied_logits
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.variant import Variant

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
        attention = layer.attention
        if not layer.attends:
            return f"layer {number} has no attention"
        if attention is None:
            return f"the attention of layer {number} is not read"
        if attention.normed or attention.soft_cap is not None or attention.sinks is not None:
            return f"the logits of layer {number} are not a form of its states"
    return ""


class ScaledBlocks(ExitStack):
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

    def __enter__(self) -> ScaledBlocks:
        super().__enter__()
        try:
            self.enter_context(multiplied_logits(self._network, lambda: 2 * self.log_scale))
            for name in dict.fromkeys(self._layout.blocks):
                block = self._network.get_submodule(name)
                for module in block.modules():
                    if is_linear_map(module) and getattr(module, "bias", None) is not None:
                        # Before the gates, which may stand on the same module.
                        self.callback(module.register_forward_hook(self._divide_bias, prepend=True).remove)
                self.callback(block.register_forward_hook(self._rescale).remove)
            if self._layout.final_norm is not None:
                norm = self._network.get_submodule(self._layout.final_norm[0])
                self.callback(norm.register_forward_pre_hook(self._before_norm, with_kwargs=True).remove)
        except BaseException:
            self.close()
            raise
        return self

    def _divide_bias(self, module: nn.Module, given: Any, output: Tensor) -> Tensor:
        del given
        return output + module.bias * (self._inverse(output) - 1)  # pyright: ignore[reportOperatorIssue]

    def _inverse(self, like: Tensor) -> Tensor:
        """Return 1/s for each prompt, beside states (prompt, token, dim)."""
        return torch.exp(-self.log_scale).to(like).reshape(-1, *(1,) * (like.ndim - 1))

    def _rescale(self, module: nn.Module, given: Any, output: Any) -> Any:
        del module, given
        states = states_given(output)
        if states is None:
            return None
        largest = states.abs().amax(dim=tuple(range(1, states.ndim))).double().cpu()
        beyond = (largest > _LARGEST) | (largest < 1 / _LARGEST)
        known = beyond & torch.isfinite(largest) & (largest > 0)
        exponent = torch.where(known, torch.log2(largest.clamp_min(1e-300)).round(), 0.0)
        self.log_scale = self.log_scale + exponent * math.log(2)
        scaled = states * torch.exp2(-exponent).to(states).reshape(-1, *(1,) * (states.ndim - 1))
        return with_states_given(output, scaled)

    def _before_norm(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        del module
        state = state_of(positional, named)
        if state is None:
            return None
        factor = torch.exp(self.log_scale.clamp(-_AS_THEY_ARE, _AS_THEY_ARE)).to(state)
        return with_state(state * factor.reshape(-1, *(1,) * (state.ndim - 1)), state, positional, named)
