"""A network with changes: by hooks, which leave its weights as they are, or by gates in its weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained._raw_projections import RawProjection
from tokendynamics.pretrained._remedied_network import (
    attach,
    check_implementation,
    detach,
    fitting_columns,
    remedies_in,
)
from tokendynamics.pretrained.discovery._calls import Hooks, state_of
from tokendynamics.pretrained.discovery._maps import Probed, norm_of
from tokendynamics.pretrained.discovery._positional import PositionalPart, zeroed
from tokendynamics.pretrained.discovery.interface import multiplied_logits
from tokendynamics.pretrained.discovery.layout import BlockLayout, Layout
from tokendynamics.pretrained.edits._pass import check_one_stream
from tokendynamics.pretrained.edits.variant import OF_ATTENTION, PARTS, Variant
from tokendynamics.pretrained.feed_forward import feed_forward_problem, feed_forward_weights
from tokendynamics.pretrained.network import evaluating, submodule

_NOT_APART = {"none": "none", "in the blocks": "something inside the blocks that no module or table gives alone"}
"""What a network has instead of positions that can be taken away."""


class VariedNetwork(Hooks):
    """Hooks that change what a network does; its weights and its code stay as they are.

    Attributes:
        network: The network.
        variant: What is changed.

    Args:
        network: Ready to run.
        layout: Of it.
        variant: What to change.
        name: What a message calls the network.
        dim: Features of a state.

    Raises:
        ArgumentValueError: A part that there is not.
        CheckpointError: The layout does not say how the variant is made.
    """

    def __init__(self, network: nn.Module, layout: Layout, variant: Variant, name: str, dim: int) -> None:
        super().__init__()
        self.network, self.variant = network, variant
        self._layout, self._name, self._dim = layout, name, dim
        self._calls: dict[Hashable, int] = {}

    def _prepare(self) -> None:
        self.enter_context(evaluating(self.network))
        self.callback(self.network.register_forward_pre_hook(lambda module, inputs: self._calls.clear()).remove)
        if not self.variant.norms:
            self._take_out(self._norms())  # before the gates: a part may end in a norm, and is weighted after it
        if self.variant.gates or not self.variant.attention == self.variant.feed_forward == 1:
            self._weight_parts()
        if self.variant.heads:
            self._weight_heads()
        if not self.variant.final_norm:
            if self._layout.final_norm is None:
                raise CheckpointError(self._name, "a norm after the last block", "none")
            self._take_out([self._layout.final_norm[0]])
        if not self.variant.positions:
            for part in self._positional():
                self._forget(part)
        if self.variant.removed:
            self._project_out()
        if self.variant.remedy:
            self._add_remedy()
        if self.variant.logits != 1:  # after the remedy, whose columns its implementation of attention reads
            self._multiply_logits()

    def _add_remedy(self) -> None:
        if remedies_in(self.network):
            raise CheckpointError(self._name, "a network without a remedy", "one that has it")
        check_implementation(self.network)
        chosen = ("lambda-identity", self.variant.remedy)
        columns = fitting_columns(self.network, self._layout, self._dim, self._name, *chosen)
        attach(self.network, columns, self._name)
        self.callback(detach, self.network)

    def _multiply_logits(self) -> None:
        for number in self._layout.attending:
            attention = self._layout.layers[number - 1].attention
            came = self._layout.layers[number - 1].problem if attention is None else ""
            if attention is not None:
                further = (
                    ("a soft cap", attention.soft_cap is not None),
                    ("a logit of a sink", attention.sinks is not None),
                    ("further terms of tokens and positions", attention.token_bias),
                )
                came = next((what for what, there in further if there), "")
            if came:
                wanted = "logits that are products of queries and keys alone"
                raise CheckpointError(f"{self._name}: layer {number}", wanted, came)
        factor = torch.tensor([self.variant.logits], dtype=torch.float64).log()

        def log_factors() -> Tensor:
            self._call_of("logits")
            return factor

        self.enter_context(multiplied_logits(self.network, log_factors))

        def check(*_: object) -> None:
            wanted, came = len(self._layout.attending), self._calls.get("logits", 0)
            if came < wanted:
                words = "attentions whose logits are seen"
                raise CheckpointError(self._name, words, f"{wanted - came} that do not")

        self.callback(self.network.register_forward_hook(check).remove)

    def _project_out(self) -> None:
        check_one_stream(self._layout, self._name)
        blocks, removed = self._layout.blocks, self.variant.removed
        bases = {layer: torch.tensor(rows, dtype=torch.float64) for layer, rows in removed.items()}
        for layer in bases:
            if not 0 <= layer <= len(blocks):
                raise ArgumentValueError("variant", f"layers from 0 to {len(blocks)}", f"layer {layer}")
        of_block: dict[str, list[Tensor | None]] = {}
        for layer, block in enumerate(blocks, start=1):
            of_block.setdefault(block, []).append(bases.get(layer))
        for block, of_calls in of_block.items():
            if any(basis is not None for basis in of_calls):
                act = partial(self._projected, (block, "output"), of_calls)
                self.after_block(submodule(self.network, block), self._layout.layers[blocks.index(block)].sites, act)
        if 0 in bases:
            of_calls = [bases[0], *[None] * (blocks.count(blocks[0]) - 1)]
            act = partial(self._projected, (blocks[0], "input"), of_calls)
            self.before_block(submodule(self.network, blocks[0]), self._layout.layers[0].sites, act)

    def _projected(self, key: Hashable, bases: list[Tensor | None], states: Tensor) -> Tensor | None:
        """Project directions out of states: others at each call, where a block is several layers."""
        basis = bases[self._call_of(key) % len(bases)]
        if basis is None:
            return None
        rows = basis.to(states)
        return states - (states @ rows.mT) @ rows

    def _weight_heads(self) -> None:
        gates = self.variant.head_gates_of(existing_heads(self._layout), self._name)
        of_module: dict[nn.Module, list[Tensor]] = {}
        without_projection = set[nn.Module]()
        for block, layer, of_layer in zip(self._layout.blocks, self._layout.layers, gates, strict=True):
            if layer.attention is not None:
                module = submodule(self.network, f"{block}.{layer.attention.output[0]}")
                columns = of_layer[: layer.attention.heads].repeat_interleave(layer.attention.d_value)
                of_module.setdefault(module, []).append(columns)
                without_projection |= {module} if layer.attention.output[1] == "heads" else set()
        weighted = {m: cs for m, cs in of_module.items() if any(bool((columns != 1).any()) for columns in cs)}
        for module, of_calls in weighted.items():
            hook = self.after if module in without_projection else self.before
            hook(module, partial(self._weighted_columns, module, of_calls))

        def check(*_: object) -> None:
            if any((module, "columns") not in self._calls for module in weighted):
                wanted = "an attention that calls its output projection as a module"
                raise CheckpointError(self._name, wanted, "one that does not")

        self.callback(self.network.register_forward_hook(check).remove)

    def _weighted_columns(self, module: nn.Module, columns: list[Tensor], states: Tensor) -> Tensor:
        """Weight what an output projection reads: by other gates at each call, where its block is several layers."""
        factors = columns[self._call_of((module, "columns")) % len(columns)].to(states)
        return torch.where(factors == 0, torch.zeros_like(states), states * factors)

    def _call_of(self, key: Hashable) -> int:
        """Return which call of a hook in this pass it is, from 0."""
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        return call

    def _weight_parts(self) -> None:
        gates = self.variant.gates_of(existing_parts(self._layout, self._name), self._name)
        layers = zip(self._layout.blocks, self._layout.layers, gates.tolist(), strict=True)
        of_module: dict[nn.Module, list[float]] = {}
        for block, layer, of_layer in layers:
            for names, gate in zip(layer.modules_of_parts, of_layer, strict=True):
                for module in names:
                    of_module.setdefault(submodule(self.network, f"{block}.{module}"), []).append(gate)
        for module, of_calls in of_module.items():
            if any(gate != 1 for gate in of_calls):
                self.after(module, partial(self._weighted, module, of_calls))

    def _weighted(self, module: nn.Module, gates: list[float], states: Tensor) -> Tensor | None:
        """Weight a module's output: by another gate at each call, where its block is several layers."""
        gate = gates[self._call_of(module) % len(gates)]
        if gate == 1:
            return None
        return torch.zeros_like(states) if gate == 0 else states * gate  # what is left out may be infinite

    def _take_out(self, names: list[str]) -> None:
        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
            del module, output
            return state_of(positional, named)

        for name in dict.fromkeys(names):
            module = submodule(self.network, name)
            self.callback(module.register_forward_hook(hook, with_kwargs=True).remove)

    def _norms(self) -> list[str]:
        pairs = zip(self._layout.blocks, self._layout.layers, strict=True)
        names = [f"{block}.{norm}" for block, layer in pairs for norm in layer.norms]
        if not names:
            raise CheckpointError(self._name, "norms in its blocks", "none that was found")
        return names

    def _positional(self) -> tuple[PositionalPart, ...]:
        layers = enumerate(self._layout.layers, 1)
        unread = next((number for number, layer in layers if layer.attends and layer.attention is None), None)
        came = "" if self._layout.positional else f"{self._layout.positions} ones, found nowhere"
        if unread is not None:
            came = f"layer {unread}, whose attention is not read: {self._layout.layers[unread - 1].problem}"
        elif came and self._layout.positions in _NOT_APART:
            came = _NOT_APART[self._layout.positions]
        if came:
            raise CheckpointError(self._name, "positions that can be taken away", came)
        return self._layout.positional

    def _forget(self, part: PositionalPart) -> None:
        if part.does == "table":
            tensors = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
            self.enter_context(zeroed([tensors[part.name]]))
            return

        def hook(module: nn.Module, positional: Any, output: Any) -> Any:
            del module, positional
            if part.does == "bias":
                return torch.zeros_like(output)
            # Rotate by nothing; what angles are multiplied by besides (YaRN's scale) stays.
            cosine, sine = output
            scale = float((cosine.double().square() + sine.double().square()).mean().sqrt())
            return torch.full_like(cosine, round(scale, 3) if abs(scale - 1) < 1e-3 else scale), torch.zeros_like(sine)

        names = dict.fromkeys(part.name.replace("*", block, 1) for block in dict.fromkeys(self._layout.blocks))
        modules = dict(self.network.named_modules())
        for name in names:
            if name in modules:
                self.callback(modules[name].register_forward_hook(hook).remove)


def existing_parts(layout: Layout, name: str) -> Bool[Tensor, "layer part"]:
    """Return which parts the layers have: one that is an attention alone has no feed-forward part.

    Raises:
        CheckpointError: Of some block the parts were not found.
    """
    for number, layer in enumerate(layout.layers, start=1):
        if layer.residual is None:
            where, wanted = f"{name}: layer {number}", "a block whose attention and feed-forward parts are found"
            raise CheckpointError(where, wanted, layer.problem, "the gates stand on these parts")
    return torch.tensor([[module is not None for module in layer.parts] for layer in layout.layers])


def existing_heads(layout: Layout) -> Bool[Tensor, "layer head"]:
    """Return which heads the layers have; a layer whose attention was not read has none."""
    counts = [0 if layer.attention is None else layer.attention.heads for layer in layout.layers]
    return torch.arange(max(counts, default=0)) < torch.tensor(counts)[:, None]


@contextmanager
def gates_in_weights(network: nn.Module, layout: Layout, variant: Variant, dim: int, name: str) -> Iterator[None]:
    """Let weights have a variant's gates in them inside the block; they come back to the last bit.

    Args:
        network: In memory.
        layout: Of it.
        variant: Of gates alone.
        dim: Features of a state.
        name: What a message calls the network.

    Raises:
        ArgumentValueError: Norms or positions taken out, which no weight says; a part that there is not.
        CheckpointError: What writes a part was not found, or does so in several layers that have different gates.
    """
    of_attention = any(getattr(variant, name) != value for name, value in OF_ATTENTION.items())
    if variant.removed or of_attention or not (variant.norms and variant.final_norm and variant.positions):
        came = variant.words
        advice = "removed norms, positions and directions are not weights, nor are a factor on logits and λ"
        raise ArgumentValueError("variant", "gates on parts and heads", came, advice)
    gates = variant.gates_of(existing_parts(layout, name), name)
    head_gates = variant.head_gates_of(existing_heads(layout), name)
    factors: dict[str, float | list[float]] = {}
    former = {id(parameter): parameter.data_ptr() for parameter in network.parameters()}
    with ExitStack() as stack:
        for number, (block, layer) in enumerate(zip(layout.blocks, layout.layers, strict=True)):
            of_parts, of_heads = gates[number].tolist(), head_gates[number].tolist()
            for part, gate in (*zip(PARTS, of_parts, strict=True), ("heads", of_heads)):
                if factors.setdefault(f"{block} {part}", gate) != gate:
                    came = f"{block}, which is several layers of different gates"
                    raise CheckpointError(name, "a block for each layer", came)
            if layout.blocks.index(block) != number:
                continue
            module = submodule(network, block)
            for part, gate in zip(PARTS, of_parts, strict=True):
                if gate != 1:
                    _scale(module, layer, part, gate, dim, f"{name}: {part} of layer {number + 1}", stack)
            if any(gate != 1 for gate in of_heads):
                _scale_columns(module, layer, head_gates[number], f"{name}: heads of layer {number + 1}", stack)
        places: dict[int, list[str]] = {}
        for label, parameter in network.named_parameters(remove_duplicate=False):
            if parameter.data_ptr() != former[id(parameter)]:
                places.setdefault(id(parameter), []).append(label)
        for labels in places.values():
            if labels[1:]:
                came = f"one that is {' and '.join(labels)}"
                raise CheckpointError(name, "a parameter of its own for each gate", came)
        yield


def _scale(
    block: nn.Module, layout: BlockLayout, part: str, gate: float, dim: int, where: str, stack: ExitStack
) -> None:
    """Scale what writes a part, until the stack is closed."""
    residual = layout.residual
    if residual is None:
        raise CheckpointError(where, "a block whose parts are found", layout.problem)
    if part == "feed_forward" and residual.further:
        came = f"{len(residual.feed_forward_modules)} ({', '.join(residual.feed_forward_modules)})"
        raise CheckpointError(where, "one module that writes to the residual stream", came)
    norm = residual.attention_norm if part == "attention" else residual.feed_forward_norm
    ending, above, leaves = residual.kind == "added" and norm is not None, 0.0, ("weight", "bias")
    module = submodule(block, norm if ending and norm is not None else _writer(block, layout, part, dim, where))
    if ending:
        x = torch.randn(3, 5, dim, generator=torch.Generator().manual_seed(0)).to(next(module.parameters()))
        with torch.no_grad():
            kind = norm_of(module, x, module(x))  # from what it does to random features
        if kind is None:
            raise CheckpointError(type(module).__name__, "an RMS norm or a LayerNorm", "another one")
        above, leaves = gate - 1 if kind.gain == "1 + weight" else 0.0, (kind.parameter, kind.bias_parameter)
    if isinstance(module, RawProjection):
        module.scale(gate, stack, where)
        return
    for leaf, added in zip(leaves, (above, 0.0), strict=True):
        parameter = getattr(module, leaf, None)
        if isinstance(parameter, Tensor):
            stack.callback(setattr, parameter, "data", parameter.data)
            parameter.data = gate * parameter.data + added if added else gate * parameter.data


def _scale_columns(
    block: nn.Module, layout: BlockLayout, gates: Float64[Tensor, " head"], where: str, stack: ExitStack
) -> None:
    """Scale what an output projection reads of each head, until the stack is closed."""
    attention = layout.attention
    if attention is None or isinstance(attention.output[1], Probed) or attention.output[1] == "heads":
        raise CheckpointError(where, "an output projection that is a matrix", layout.problem or "another map")
    projection = submodule(block, attention.output[0])
    if isinstance(projection, RawProjection):
        by_feature = gates[: attention.heads].repeat_interleave(attention.d_value)
        projection.scale(by_feature, stack, where, bias=False)
        return
    weight = projection.get_parameter("weight")
    columns = gates[: attention.heads].repeat_interleave(attention.d_value).to(weight)
    stack.callback(setattr, weight, "data", weight.data)
    weight.data = weight.data * (columns if attention.output[1] == "out x in" else columns[:, None])


def _writer(block: nn.Module, layout: BlockLayout, part: str, dim: int, where: str) -> str:
    """Return the module that writes a part to the residual stream."""
    if part == "attention":
        if layout.attention is None or layout.attention.output[1] == "heads":
            came = layout.problem or "one without an output projection"
            raise CheckpointError(where, "an attention whose output projection is found", came)
        return layout.attention.output[0]
    why = feed_forward_problem(layout)
    weights = None if why else feed_forward_weights(block, layout, dim)
    writers = [name for name, role in weights.roles.items() if role == "writes"] if weights is not None else []
    if len(writers) != 1:
        came = why or f"{len(writers)} ({', '.join(writers) or 'experts, or another form'})"
        raise CheckpointError(where, "one matrix that writes to the residual stream", came)
    return writers[0].removesuffix(".weight")
