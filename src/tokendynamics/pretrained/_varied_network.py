"""A network under a variant, for as long as a block lasts; after it, the network is as it was to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._calls import state_of
from tokendynamics.pretrained.discovery._outputs import states_given, with_states_given
from tokendynamics.pretrained.discovery._positional import PositionalPart, zeroed
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.network import evaluating
from tokendynamics.pretrained.variant import Variant


class VariedNetwork(ExitStack):
    """Hooks that change what a network does; its weights and its code stay as they are.

    Attributes:
        network: The network.
        variant: What is changed.

    Args:
        network: Ready to run.
        layout: Of it.
        variant: What to change.
        name: What a message calls the network.

    Raises:
        ArgumentValueError: A part that there is not.
        CheckpointError: The layout does not say how the variant is made.
    """

    def __init__(self, network: nn.Module, layout: Layout, variant: Variant, name: str) -> None:
        super().__init__()
        self.network, self.variant = network, variant
        self._layout, self._name = layout, name
        self._calls: dict[nn.Module, int] = {}

    def __enter__(self) -> VariedNetwork:
        super().__enter__()
        try:
            self.enter_context(evaluating(self.network))
            if not self.variant.norms:
                self._take_out(self._norms())  # before the gates: a part may end in a norm, and is weighted after it
            self._change_parts()
            if not self.variant.final_norm:
                self._take_out([self._final_norm()])
            if not self.variant.positions:
                for part in self._positional():
                    self._forget(part)
        except BaseException:
            self.close()
            raise
        return self

    def _change_parts(self) -> None:
        if self.variant.attention == self.variant.feed_forward == 1 and not self.variant.gates:
            return
        gates = self.variant.gates_of(existing_parts(self._layout, self._name), self._name)
        self.callback(self.network.register_forward_pre_hook(lambda module, inputs: self._calls.clear()).remove)
        layers = zip(self._layout.blocks, self._layout.layers, gates.tolist(), strict=True)
        of_module: dict[nn.Module, list[float]] = {}
        for block, layer, own in layers:
            for module, gate in zip(layer.parts, own, strict=True):
                if module is not None:
                    of_module.setdefault(self.network.get_submodule(f"{block}.{module}"), []).append(gate)
        for module, own in of_module.items():
            if any(gate != 1 for gate in own):
                self.callback(module.register_forward_hook(self._gate(own)).remove)

    def _gate(self, gates: list[float]) -> Callable[[nn.Module, Any, Any], Any]:
        """Return what weights a module's output: by another gate at each call, where its block is several layers."""

        def weighted(output: Tensor, gate: float) -> Tensor:
            return torch.zeros_like(output) if gate == 0 else output * gate  # what is left out may be infinite

        def hook(module: nn.Module, positional: Any, output: Any) -> Any:
            del positional
            call = self._calls.get(module, 0)
            self._calls[module] = call + 1
            gate = gates[call % len(gates)]
            if gate == 1:
                return None
            states = states_given(output)
            return None if states is None else with_states_given(output, weighted(states, gate))

        return hook

    def _take_out(self, names: list[str]) -> None:
        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
            del module, output
            return state_of(positional, named)

        for name in dict.fromkeys(names):
            module = self.network.get_submodule(name)
            self.callback(module.register_forward_hook(hook, with_kwargs=True).remove)

    def _norms(self) -> list[str]:
        pairs = zip(self._layout.blocks, self._layout.layers, strict=True)
        found = [f"{block}.{norm}" for block, layer in pairs for norm in layer.norms]
        if not found:
            raise CheckpointError(expected(self._name, "norms in its blocks", "none that was found"))
        return found

    def _final_norm(self) -> str:
        if self._layout.final_norm is None:
            raise CheckpointError(expected(self._name, "a norm after the last block", "none"))
        return self._layout.final_norm[0]

    def _positional(self) -> tuple[PositionalPart, ...]:
        layers = enumerate(self._layout.layers, 1)
        unread = next((number for number, layer in layers if layer.attends and layer.attention is None), None)
        wanted = "positions that can be taken away"
        if unread is not None:
            problem = self._layout.layers[unread - 1].problem
            raise CheckpointError(
                expected(self._name, wanted, f"layer {unread}, whose attention is not read: {problem}")
            )
        if not self._layout.positional:
            came = "none" if self._layout.positions == "none" else f"{self._layout.positions} ones, found nowhere"
            raise CheckpointError(expected(self._name, wanted, came))
        return self._layout.positional

    def _forget(self, part: PositionalPart) -> None:
        if part.does == "table":
            tensors = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
            self.enter_context(zeroed([tensors[part.name]]))
            return
        hook = _unrotated if part.does == "rotation" else _no_bias
        for module in modules_of(self.network, self._layout, part):
            self.callback(module.register_forward_hook(hook).remove)


def existing_parts(layout: Layout, name: str) -> Bool[Tensor, "layer part"]:
    """Return which parts the layers have: one that is an attention alone has no feed-forward part.

    Raises:
        CheckpointError: Of some block the parts were not found.
    """
    for number, layer in enumerate(layout.layers, start=1):
        if layer.residual is None:
            where, wanted = f"{name}: layer {number}", "a block whose attention and feed-forward parts are found"
            raise CheckpointError(expected(where, wanted, layer.problem, "the gates stand on these parts"))
    return torch.tensor([[module is not None for module in layer.parts] for layer in layout.layers])


def modules_of(network: nn.Module, layout: Layout, part: PositionalPart) -> list[nn.Module]:
    """Return the modules that a part's name stands for."""
    names = [part.name.replace("*", block, 1) for block in dict.fromkeys(layout.blocks)]
    modules = dict(network.named_modules())
    return [modules[name] for name in dict.fromkeys(names) if name in modules]


def _unrotated(module: nn.Module, positional: Any, output: Any) -> Any:
    """Rotate by nothing; what angles are multiplied by besides (YaRN's scale) stays."""
    del module, positional
    cosine, sine = output
    scale = float((cosine.double().square() + sine.double().square()).mean().sqrt())
    return torch.full_like(cosine, round(scale, 3) if abs(scale - 1) < 1e-3 else scale), torch.zeros_like(sine)


def _no_bias(module: nn.Module, positional: Any, output: Any) -> Any:
    del module, positional
    return torch.zeros_like(output)
