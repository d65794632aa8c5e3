"""Changes of a network, and the network under them: parts, heads and logits scaled, norms and positions removed."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import expected, shown
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
from tokendynamics.pretrained.feed_forward import (
    feed_forward_problem,
    feed_forward_weights,
)
from tokendynamics.pretrained.network import evaluating
from tokendynamics.words import plural

PARTS = ("attention", "feed_forward")
SWITCHES = ("norms", "final_norm", "positions")
_OF_ATTENTION = {"logits": 1.0, "remedy": 0.0}
"""Numbers that change every attention, and their values where nothing is changed."""
_BY_PLACE = ("gates", "heads", "removed")

_SAME_DIRECTION = 1e-6
"""Singular value of unit rows up to which a direction lies in the space of the others."""

_LAYERS = re.compile(r"layers? (\d+)(?:\s*-\s*(\d+))? (attention|feed_forward|head (\d+))")
_GRAMMAR = (
    "'attention', 'feed_forward', 'layer 12 attention', 'layers 3-9 feed_forward', 'layer 2 head 0', 'logits', "
    "'remedy', 'norms', 'final_norm' or 'positions'"
)
_MOST_LAYERS = 10_000
"""Of a range: more than any network has, and few enough to write down."""

NAMED: Mapping[str, Mapping[str, float]] = {
    "full": {},
    "no-ffn": {"feed_forward": 0.0},
    "no-norm": {"norms": 0.0},
    "attention-only": {"feed_forward": 0.0, "norms": 0.0},
}
"""Variants that have a name. The final norm has a switch of its own, and stays in all of them."""

VariantLike: TypeAlias = "Variant | str | Mapping[str, float] | None"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A network's parts and how much of each there is: 1 as it is, 0 without.

    With gates α and β a block y = x + c(x) + m(·) is y = x + α c + β m; where a norm follows the sum (post-norm
    blocks), the gate stands before it. A gate on a head multiplies what the output projection reads of it, besides the
    gate on its attention.

    Attributes:
        attention: Gate on the attention of every layer.
        feed_forward: Gate on the feed-forward part of every layer.
        gates: Gates of single parts by (layer, part), which take the place of those two.
        heads: Gates of single heads by (layer, head): layers from 1, heads from 0.
        logits: Factor on the products of queries and keys in the logits of every attention, an inverse temperature, at
            least 0. A bias by distance stays as it is.
        remedy: λ of λI beside the query-key matrices (`apply_remedy`), at most 0; 0 for none.
        norms: Whether the norms of the blocks are there.
        final_norm: Whether the norm after the last block is.
        positions: Whether tokens know where they stand.
        removed: Orthonormal directions that are projected out of the states after a layer, 0 for the embedding.

    >>> Variant.of({"feed_forward": 0, "layer 2 attention": 0.5}).words
    'feed_forward × 0, layer 2 attention × 0.5'
    >>> Variant.of({"layers 1-2 head 0": 0}).heads
    {(1, 0): 0.0, (2, 0): 0.0}
    """

    attention: float = 1.0
    feed_forward: float = 1.0
    gates: Mapping[tuple[int, str], float] = field(default_factory=dict)
    heads: Mapping[tuple[int, int], float] = field(default_factory=dict)
    logits: float = 1.0
    remedy: float = 0.0
    norms: bool = True
    final_norm: bool = True
    positions: bool = True
    removed: Mapping[int, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: VariantLike, argument: str = "variant") -> Variant:
        """Return a variant from what a user writes.

        Args:
            given: None or "full" for the network as it is; "no-ffn", "no-norm", "attention-only" (both at once); or
                changes by name: gates of parts and heads, a factor on the logits, λ of the remedy, and 0 or 1 for
                norms, final norm and positions. A single layer's gate takes the place of that of all layers, a later
                entry that of an earlier one.
            argument: What an error calls it.

        Raises:
            ArgumentTypeError: Nothing of these.
            ArgumentValueError: A name that there is not, or a value that is not a number, or out of range.
        """
        if isinstance(given, Variant):
            return given
        if given is None or isinstance(given, str):
            name = "full" if given is None else given
            if name not in NAMED:
                advice = f"or a mapping of {_GRAMMAR} to numbers"
                raise ArgumentValueError(expected(argument, " or ".join(map(repr, NAMED)), shown(name), advice))
            given = NAMED[name]
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(expected(argument, f"a name or a mapping of {_GRAMMAR} to numbers", shown(given)))
        gates: dict[tuple[int, str], float] = {}
        heads: dict[tuple[int, int], float] = {}
        whole: dict[str, float] = {}
        switched: dict[str, bool] = {}
        for name, value in given.items():
            where = f"{argument}[{shown(name)}]"
            if isinstance(value, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ArgumentValueError(expected(where, "a finite number", shown(value)))
            number = float(value)
            if name in PARTS:
                whole[name] = number
            elif name in _OF_ATTENTION:
                if number < 0 if name == "logits" else number > 0:
                    wanted = "a factor of at least 0" if name == "logits" else "a λ of at most 0"
                    raise ArgumentValueError(expected(where, wanted, shown(number)))
                whole[name] = number
            elif name in SWITCHES:
                if number not in (0.0, 1.0):
                    advice = "parts take other numbers"
                    raise ArgumentValueError(expected(where, "0 (without) or 1 (with)", shown(number), advice))
                switched[name] = bool(number)
            else:
                layers, part, head = _place(name, argument)
                if head is None:
                    gates |= {(layer, part): number for layer in layers}
                else:
                    heads |= {(layer, head): number for layer in layers}
        return cls(**whole, **switched, gates=gates, heads=heads, removed={})

    def after(self, first: Variant) -> Variant:
        """Return this change of a network that is already changed: gates and factors multiply, λ adds up.

        Args:
            first: What is already changed.

        >>> Variant.of({"attention": 0.5}).after(Variant.of({"layer 2 attention": 0.5, "logits": 2})).words
        'attention × 0.5, layer 2 attention × 0.25, logits × 2'
        """
        both = (first, self)
        gates, heads, removed = ({place: None for one in both for place in getattr(one, name)} for name in _BY_PLACE)
        return Variant(
            **{name: math.prod(getattr(one, name) for one in both) for name in (*PARTS, "logits")},
            **{name: all(getattr(one, name) for one in both) for name in SWITCHES},
            remedy=first.remedy + self.remedy,
            gates={place: math.prod(one.gates.get(place, getattr(one, place[1])) for one in both) for place in gates},
            heads={place: math.prod(one.heads.get(place, 1.0) for one in both) for place in heads},
            removed={layer: basis_of([row for one in both for row in one.removed.get(layer, ())]) for layer in removed},
        )

    @property
    def words(self) -> str:
        """What is changed, in words; "as it is" where nothing is."""
        parts = [f"{name} × {value:g}" for name in PARTS if (value := getattr(self, name)) != 1]
        parts += [f"{name} × {value:g}" for name, value in self._single.items()]
        parts += [f"logits × {self.logits:g}"] if self.logits != 1 else []
        parts += [f"λ = {self.remedy:g}"] if self.remedy else []
        parts += [f"without {name.replace('_', ' ')}" for name in SWITCHES if not getattr(self, name)]
        for layer, directions in self.removed.items():
            parts.append(f"without {plural(len(directions), 'direction')} after layer {layer}")
        return ", ".join(parts) or "as it is"

    @property
    def plain(self) -> dict[str, float]:
        """What `of` reads, of everything that is changed."""
        unchanged = dict.fromkeys((*PARTS, *SWITCHES), 1.0) | _OF_ATTENTION
        changed = {name: float(getattr(self, name)) for name in unchanged if getattr(self, name) != unchanged[name]}
        return changed | self._single

    @property
    def _single(self) -> dict[str, float]:
        """Gates of single parts and heads by their names."""
        parts = {f"layer {layer} {part}": value for (layer, part), value in self.gates.items()}
        return parts | {f"layer {layer} head {head}": value for (layer, head), value in self.heads.items()}

    def gates_of(self, exists: Bool[Tensor, "layer part"], name: str) -> Float64[Tensor, "layer part"]:
        """Return the gate on each part of each layer.

        Args:
            exists: Which parts there are.
            name: What an error calls the network.

        Raises:
            ArgumentValueError: A layer or a part that there is not.
        """
        gates = torch.tensor([self.attention, self.feed_forward], dtype=torch.float64).repeat(len(exists), 1)
        if self.feed_forward != 1 and not bool(exists[:, 1].any()):
            raise ArgumentValueError(expected("variant", f"parts of {name}", "feed_forward, which no layer has"))
        gates[~exists] = 1.0
        for (layer, part), value in self.gates.items():
            place = PARTS.index(part)
            if not 1 <= layer <= len(exists):
                raise ArgumentValueError(expected("variant", f"layers from 1 to {len(exists)}", f"layer {layer}"))
            if not exists[layer - 1, place]:
                raise ArgumentValueError(expected("variant", f"parts of {name}", f"{part} of layer {layer}: none"))
            gates[layer - 1, place] = value
        return gates

    def head_gates_of(self, exists: Bool[Tensor, "layer head"], name: str) -> Float64[Tensor, "layer head"]:
        """Return the gate on each head of each layer.

        Args:
            exists: Which heads there are.
            name: What an error calls the network.

        Raises:
            ArgumentValueError: A layer or a head that there is not.
        """
        gates = torch.ones(exists.shape, dtype=torch.float64)
        for (layer, head), value in self.heads.items():
            if not 1 <= layer <= len(exists):
                raise ArgumentValueError(expected("variant", f"layers from 1 to {len(exists)}", f"layer {layer}"))
            count = int(exists[layer - 1].sum())
            if head >= count:
                wanted = f"heads from 0 to {count - 1} of {name}" if count else f"heads of {name} that were found"
                came = f"head {head} of layer {layer}{'' if count else ', in which none was found'}"
                raise ArgumentValueError(expected("variant", wanted, came))
            gates[layer - 1, head] = value
        return gates


def basis_of(rows: Any) -> tuple[tuple[float, ...], ...]:
    """Return orthonormal rows of the space that directions span.

    Args:
        rows: Of shape (direction, dim), none of them zero.
    """
    directions = torch.as_tensor(rows, dtype=torch.float64)
    sizes = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
    _, singular, axes = torch.linalg.svd(directions / sizes, full_matrices=False)
    return tuple(map(tuple, axes[singular > _SAME_DIRECTION].tolist()))


def _place(name: object, argument: str) -> tuple[range, str, int | None]:
    """Return the layers, the part and the head that a name stands for."""
    match = _LAYERS.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ArgumentValueError(expected(argument, _GRAMMAR, shown(name)))
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if not 1 <= first <= last <= _MOST_LAYERS:
        raise ArgumentValueError(expected(argument, f"layers from 1 to {_MOST_LAYERS}, the lower first", shown(name)))
    return range(first, last + 1), match[3], None if match[4] is None else int(match[4])


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
                raise CheckpointError(expected(self._name, "a norm after the last block", "none"))
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
            raise CheckpointError(expected(self._name, "a network without a remedy", "one that has it"))
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
                raise CheckpointError(expected(f"{self._name}: layer {number}", wanted, came))
        factor = torch.tensor([self.variant.logits], dtype=torch.float64).log()

        def log_factors() -> Tensor:
            self._call_of("logits")
            return factor

        self.enter_context(multiplied_logits(self.network, log_factors))

        def check(*_: object) -> None:
            wanted, came = len(self._layout.attending), self._calls.get("logits", 0)
            if came < wanted:
                words = "attentions whose logits are seen"
                raise CheckpointError(expected(self._name, words, f"{wanted - came} that do not"))

        self.callback(self.network.register_forward_hook(check).remove)

    def _project_out(self) -> None:
        check_one_stream(self._layout, self._name)
        blocks, removed = self._layout.blocks, self.variant.removed
        bases = {layer: torch.tensor(rows, dtype=torch.float64) for layer, rows in removed.items()}
        for layer in bases:
            if not 0 <= layer <= len(blocks):
                raise ArgumentValueError(expected("variant", f"layers from 0 to {len(blocks)}", f"layer {layer}"))
        of_block: dict[str, list[Tensor | None]] = {}
        for layer, block in enumerate(blocks, start=1):
            of_block.setdefault(block, []).append(bases.get(layer))
        for block, of_calls in of_block.items():
            if any(basis is not None for basis in of_calls):
                act = partial(self._projected, (block, "output"), of_calls)
                self.after_block(self.network.get_submodule(block), self._layout.layers[blocks.index(block)].sites, act)
        if 0 in bases:
            of_calls = [bases[0], *[None] * (blocks.count(blocks[0]) - 1)]
            act = partial(self._projected, (blocks[0], "input"), of_calls)
            self.before_block(self.network.get_submodule(blocks[0]), self._layout.layers[0].sites, act)

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
        for block, layer, of_layer in zip(self._layout.blocks, self._layout.layers, gates, strict=True):
            if layer.attention is not None:
                module = self.network.get_submodule(f"{block}.{layer.attention.output[0]}")
                columns = of_layer[: layer.attention.heads].repeat_interleave(layer.attention.d_value)
                of_module.setdefault(module, []).append(columns)
        weighted = {m: cs for m, cs in of_module.items() if any(bool((columns != 1).any()) for columns in cs)}
        for module, of_calls in weighted.items():
            self.before(module, partial(self._weighted_columns, module, of_calls))

        def check(*_: object) -> None:
            if any((module, "columns") not in self._calls for module in weighted):
                wanted = "an attention that calls its output projection as a module"
                raise CheckpointError(expected(self._name, wanted, "one that does not"))

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
                    of_module.setdefault(self.network.get_submodule(f"{block}.{module}"), []).append(gate)
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
            module = self.network.get_submodule(name)
            self.callback(module.register_forward_hook(hook, with_kwargs=True).remove)

    def _norms(self) -> list[str]:
        pairs = zip(self._layout.blocks, self._layout.layers, strict=True)
        names = [f"{block}.{norm}" for block, layer in pairs for norm in layer.norms]
        if not names:
            raise CheckpointError(expected(self._name, "norms in its blocks", "none that was found"))
        return names

    def _positional(self) -> tuple[PositionalPart, ...]:
        layers = enumerate(self._layout.layers, 1)
        unread = next((number for number, layer in layers if layer.attends and layer.attention is None), None)
        came = "" if self._layout.positional else f"{self._layout.positions} ones, found nowhere"
        if unread is not None:
            came = f"layer {unread}, whose attention is not read: {self._layout.layers[unread - 1].problem}"
        elif came and self._layout.positions == "none":
            came = "none"
        if came:
            raise CheckpointError(expected(self._name, "positions that can be taken away", came))
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
            raise CheckpointError(expected(where, wanted, layer.problem, "the gates stand on these parts"))
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
    of_attention = any(getattr(variant, name) != value for name, value in _OF_ATTENTION.items())
    if variant.removed or of_attention or not (variant.norms and variant.final_norm and variant.positions):
        came = variant.words
        advice = "removed norms, positions and directions are not weights, nor are a factor on logits and λ"
        raise ArgumentValueError(expected("variant", "gates on parts and heads", came, advice))
    gates = variant.gates_of(existing_parts(layout, name), name)
    head_gates = variant.head_gates_of(existing_heads(layout), name)
    factors: dict[str, float | list[float]] = {}
    with ExitStack() as stack:
        for number, (block, layer) in enumerate(zip(layout.blocks, layout.layers, strict=True)):
            of_parts, of_heads = gates[number].tolist(), head_gates[number].tolist()
            for part, gate in (*zip(PARTS, of_parts, strict=True), ("heads", of_heads)):
                if factors.setdefault(f"{block} {part}", gate) != gate:
                    came = f"{block}, which is several layers of different gates"
                    raise CheckpointError(expected(name, "a block for each layer", came))
            if layout.blocks.index(block) != number:
                continue
            module = network.get_submodule(block)
            for part, gate in zip(PARTS, of_parts, strict=True):
                if gate != 1:
                    _scale(module, layer, part, gate, dim, f"{name}: {part} of layer {number + 1}", stack)
            if any(gate != 1 for gate in of_heads):
                _scale_columns(module, layer, head_gates[number], f"{name}: heads of layer {number + 1}", stack)
        yield


def _scale(
    block: nn.Module, layout: BlockLayout, part: str, gate: float, dim: int, where: str, stack: ExitStack
) -> None:
    """Scale what writes a part, until the stack is closed."""
    residual = layout.residual
    if residual is None:
        raise CheckpointError(expected(where, "a block whose parts are found", layout.problem))
    if part == "feed_forward" and residual.further:
        came = f"{len(residual.feed_forward_modules)} ({', '.join(residual.feed_forward_modules)})"
        raise CheckpointError(expected(where, "one module that writes to the residual stream", came))
    norm = residual.attention_norm if part == "attention" else residual.feed_forward_norm
    ending, above = residual.kind == "added" and norm is not None, 0.0
    module = block.get_submodule(norm if ending and norm is not None else _writer(block, layout, part, dim, where))
    if ending:
        weight = module.get_parameter("weight")
        x = torch.randn(3, 5, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
        with torch.no_grad():
            kind = norm_of(module, x, module(x))  # from what it does to random features
        if kind is None:
            raise CheckpointError(expected(type(module).__name__, "an RMS norm or a LayerNorm", "another one"))
        above = gate - 1 if kind.gain == "1 + weight" else 0.0
    for leaf, added in (("weight", above), ("bias", 0.0)):
        parameter = getattr(module, leaf, None)
        if isinstance(parameter, Tensor):
            stack.callback(setattr, parameter, "data", parameter.data)
            parameter.data = gate * parameter.data + added if added else gate * parameter.data


def _scale_columns(
    block: nn.Module, layout: BlockLayout, gates: Float64[Tensor, " head"], where: str, stack: ExitStack
) -> None:
    """Scale what an output projection reads of each head, until the stack is closed."""
    attention = layout.attention
    if attention is None or isinstance(attention.output[1], Probed):
        raise CheckpointError(expected(where, "an output projection that is a matrix", layout.problem or "another map"))
    weight = block.get_submodule(attention.output[0]).get_parameter("weight")
    columns = gates[: attention.heads].repeat_interleave(attention.d_value).to(weight)
    stack.callback(setattr, weight, "data", weight.data)
    weight.data = weight.data * (columns if attention.output[1] == "out x in" else columns[:, None])


def _writer(block: nn.Module, layout: BlockLayout, part: str, dim: int, where: str) -> str:
    """Return the module that writes a part to the residual stream."""
    if part == "attention":
        if layout.attention is None:
            raise CheckpointError(expected(where, "an attention whose output projection is found", layout.problem))
        return layout.attention.output[0]
    why = feed_forward_problem(layout)
    weights = None if why else feed_forward_weights(block, layout, dim)
    writers = [name for name, role in weights.roles.items() if role == "writes"] if weights is not None else []
    if len(writers) != 1:
        came = why or f"{len(writers)} ({', '.join(writers) or 'experts, or another form'})"
        raise CheckpointError(expected(where, "one matrix that writes to the residual stream", came))
    return writers[0].removesuffix(".weight")
