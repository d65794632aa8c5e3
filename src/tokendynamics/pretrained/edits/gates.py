"""A factor on what each part of each block adds to the residual stream: 1 leaves the network alone, 0 removes a part.

With a block y = x + c(x) + m(·) and gates α, β it is y = x + α c + β m; where a norm follows the sum (post-norm
blocks), the gate stands before it: y = norm(x + α c). A gate on a head multiplies the columns that the output
projection reads of it, as scaling these columns of its weight does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.edits._pass import (
    OwnTokens,
    activations_kept,
    arguments_for,
    blocks_beside,
    by_prompt,
    check_ran,
)
from tokendynamics.pretrained.edits._varied_network import existing_heads, existing_parts
from tokendynamics.pretrained.edits.language_head import logits_of
from tokendynamics.pretrained.forward_arguments import other_rows
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import ids_checked, quietly, submodule
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.pretrained.packs import Pack


@dataclass(frozen=True)
class GatedPass:
    """What one pass leaves, in the network's dtype.

    Attributes:
        states: Index 0: the input of the first block; index l: the output of block l, before the final norm.
        logits: None without a language head, or where no logits were asked for.
        outputs: Copies of what each block returned, for passes that begin behind blocks without gates, see
            `GatedNetwork.run`; empty where gradients are on, or where a block returns what cannot be copied.
    """

    states: tuple[Float[Tensor, "prompt token dim"], ...]
    logits: Float[Tensor, "prompt token vocabulary"] | None
    outputs: tuple[Any, ...]

    def equals(self, other: GatedPass) -> bool:
        """Return whether another pass left the same numbers, to the last bit."""
        if len(self.states) != len(other.states) or (self.logits is None) != (other.logits is None):
            return False
        pairs = [*zip(self.states, other.states, strict=True), (self.logits, other.logits)]
        return all(torch.equal(one, another) for one, another in pairs if one is not None and another is not None)


class GatedNetwork(Hooks):
    """A network with gates while the block lasts; its hooks, modes and `requires_grad` flags are as before after it.

    Attributes:
        exists: Which gates there are; a block that is an attention alone has no feed-forward part.
        heads: Which gates on heads there are: none in a block whose attention was not read.

    Args:
        network: Ready to run.
        layout: Of it.
        name: What a message calls it.
        vocabulary: Token ids that its head scores; None for no logits.
        whole: The network with its language head on, which runs instead; None without.
        varied: Entered before the gates: a variant that they weight.

    Raises:
        CheckpointError: Of some block the parts were not found.
    """

    def __init__(
        self,
        network: nn.Module,
        layout: Layout,
        name: str,
        vocabulary: int | None,
        whole: nn.Module | None = None,
        varied: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__()
        self._varied = nullcontext() if varied is None else varied
        self.exists = existing_parts(layout, name)
        self.heads = existing_heads(layout)
        self.network, self.layout, self.name, self.vocabulary = network, layout, name, vocabulary
        self.running = network if whole is None else whole
        self.config: Any = getattr(network, "config", None)
        self._layer = -1
        self._gates: Tensor | None = None
        self._head_gates: Tensor | None = None
        self._gated_heads: set[int] = set()
        self._followed: Tensor | None = None
        self._states: list[Tensor] = []
        self._ran: list[str] = []
        self._outputs: list[Any] = []
        self._known: Sequence[Any] = ()
        self._calls: dict[nn.Module, int] = {}

    def _prepare(self) -> None:
        self.enter_all(quietly(self.running), self._varied)
        for parameter in self.running.parameters():
            if parameter.requires_grad:
                # Only the gates are asked for: without this, backward would keep what gradients of weights need.
                parameter.requires_grad_(False)
                self.callback(parameter.requires_grad_, True)
        for name, layer in dict(zip(self.layout.blocks, self.layout.layers, strict=True)).items():
            block = submodule(self.network, name)
            self._intercept(block)
            self.before_block(block, layer.sites, partial(self._enter, name))
            of_module: dict[nn.Module, list[int]] = {}  # BEiT gives both parts by one module, one after the other
            for part, names_of_part in enumerate(layer.modules_of_parts):
                for module in names_of_part:
                    of_module.setdefault(submodule(block, module), []).append(part)
            for module, parts in of_module.items():
                self.after(module, partial(self._gated, module, parts))
            if layer.attention is not None:
                projection, heads = submodule(block, layer.attention.output[0]), layer.attention.heads
                hook = self.after if layer.attention.output[1] == "heads" else self.before
                hook(projection, partial(self._heads_gated, heads, layer.attention.d_value))
            self.after_block(block, layer.sites, self._leave)
        for name, module in blocks_beside(self.network, self.layout).items():
            self.before(module, partial(self._note, name))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights of what runs."""
        return self.running.parameters()

    @property
    def dtype(self) -> torch.dtype:
        """Number format of its forward pass."""
        return next(parameter.dtype for parameter in self.running.parameters() if parameter.is_floating_point())

    def run(
        self,
        pack: Pack,
        gates: Float[Tensor, "layer part"],
        heads: Float[Tensor, "layer head"] | None = None,
        known: Sequence[Any] = (),
    ) -> GatedPass:
        """Run the network once; states and logits are differentiable by the gates where gradients are on.

        Args:
            pack: What goes through it.
            gates: One for each part of each layer; those that do not exist change nothing.
            heads: One for each head of each layer; None for no gates on heads. Likewise.
            known: What the first blocks return for this pack, from a pass without gates: they are not run again. The
                result is the same where blocks pass on nothing but what they return, which the caller checks.

        Raises:
            CheckpointError: It does not run, or an attention does not call its output projection.
        """
        self._layer, self._gates, self._states, self._ran = -1, gates, [], []
        self._head_gates, self._gated_heads = heads, set(range(len(known)))
        self._outputs, self._known = [], known
        self._followed = self._gates_followed(gates, heads)
        arguments, prompts = arguments_for(self.running, pack.arguments), len(pack.places)
        try:
            with (
                refusing(lambda words: CheckpointError(self.name, "a network that runs with gates", words)),
                OwnTokens(self.network, self.layout) as tokens,
                as_before(self.running),
                ids_checked(self.running, arguments),
                activations_kept() if torch.is_grad_enabled() else nullcontext(),
            ):
                output = self.running(**arguments)
            check_ran(self._ran, self.layout, self.name)
            for layer in torch.nonzero(self.heads.any(dim=-1))[:, 0].tolist() if heads is not None else ():
                if layer not in self._gated_heads:
                    wanted = "an attention that calls its output projection as a module"
                    raise CheckpointError(f"{self.name}: layer {layer + 1}", wanted, "one that does not")
            ids, vocabulary = pack.ids, self.vocabulary
            logits = None if ids is None or vocabulary is None else logits_of(output, ids, vocabulary)
            states = [by_prompt(states_of_layer, prompts) for states_of_layer in self._states]
            if len(states[0]) != prompts:
                raise ArgumentValueError(other_rows(arguments, prompts, len(states[0])))
            prompt_places = tokens.places(arguments)
            outputs = () if any(output is _UNKNOWN for output in self._outputs) else tuple(self._outputs)
            return GatedPass(tuple(state[:, prompt_places] for state in states), logits, outputs)
        finally:
            self._gates, self._head_gates, self._states, self._outputs, self._known = None, None, [], [], ()

    def _gates_followed(self, gates: Tensor, heads: Tensor | None) -> Tensor | None:
        """Return for each layer whether it has gates by which the pass is differentiated; None where it is not."""
        if not torch.is_grad_enabled():
            return None
        followed = torch.zeros(len(self.exists), dtype=torch.bool)
        for given, there in ((gates, self.exists), (heads, self.heads)):
            if given is not None and given.requires_grad:
                followed |= there.any(dim=-1)
        return followed

    def _intercept(self, block: nn.Module) -> None:
        """Let a block return what is known of it, and record what it returns."""
        forward, of_instance = block.forward, vars(block).get("forward")

        @wraps(forward)
        def recorded(*positional: Any, **named: Any) -> Any:
            if self._gates is None:  # a pass of somebody else's
                return forward(*positional, **named)
            if self._layer < len(self._known):
                output = _copied(self._known[self._layer])
            else:
                output = forward(*positional, **named)
            if not torch.is_grad_enabled():
                self._outputs.append(_copied(output))
            return output

        block.forward = recorded
        self.callback(_restore_forward, block, of_instance)

    def _note(self, name: str, states: Tensor) -> None:
        del states
        self._ran.append(name)

    def _enter(self, name: str, states: Tensor) -> None:
        if self._gates is None:  # a pass of somebody else's
            return
        self._calls.clear()
        self._note(name, states)
        if len(self._ran) > len(self.layout.blocks):
            check_ran(self._ran, self.layout, self.name, ended=False)
        self._layer += 1  # a block that runs again is a layer of its own, and has gates of its own
        if self._followed is not None and not states.requires_grad and bool(self._followed[: self._layer].any()):
            came = (
                f"one that cuts them off before layer {self._layer + 1} (torch.no_grad, torch.inference_mode, detach)"
            )
            raise CheckpointError(self.name, "a network that has derivatives", came)
        if not self._states:
            self._states.append(states.clone())  # a block may write into its input

    def _leave(self, states: Tensor) -> None:
        if self._gates is not None:
            self._states.append(states.clone())

    def _gated(self, module: nn.Module, parts: list[int], states: Tensor) -> Tensor | None:
        if self._gates is None:
            return None
        call = self._calls.get(module, 0)
        self._calls[module] = call + 1
        return states * self._gates[self._layer, parts[call % len(parts)]].to(states)

    def _heads_gated(self, heads: int, width: int, state: Tensor) -> Tensor | None:
        if self._gates is None or self._head_gates is None:
            return None
        self._gated_heads.add(self._layer)
        return state * self._head_gates[self._layer, :heads].to(state).repeat_interleave(width)


def _restore_forward(block: nn.Module, of_instance: Any) -> None:
    if of_instance is None:
        del block.forward
    else:
        block.forward = of_instance


_UNKNOWN = object()
"""In the place of an output that holds more than tensors."""


def _copied(output: Any) -> Any:
    """Return a copy of what a block returned, since later blocks may write into it; `_UNKNOWN` for other things."""
    if isinstance(output, Tensor):
        return output.clone()
    if type(output) is tuple:
        copies = tuple(map(_copied, output))
        return _UNKNOWN if any(copy is _UNKNOWN for copy in copies) else copies
    return None if output is None else _UNKNOWN


class HeadGates:
    """The gates on heads of a network, in the place of those on its parts: a `GatedNetwork` to what runs one.

    Attributes:
        exists: Which gates there are, (layer, head).

    Args:
        gated: The network, within its block.
    """

    def __init__(self, gated: GatedNetwork) -> None:
        self._gated, self.exists = gated, gated.heads
        self.name, self.dtype, self.config, self.parameters = gated.name, gated.dtype, gated.config, gated.parameters
        self._parts = torch.ones(gated.exists.shape, dtype=torch.float64)

    def run(self, pack: Pack, gates: Float[Tensor, "layer head"], known: Sequence[Any] = ()) -> GatedPass:
        """Run the network once with a gate on every head; see `GatedNetwork.run`."""
        return self._gated.run(pack, self._parts, gates, known=known)


class PartAndHeadGates:
    """The gates on parts and those on heads of a network side by side: a `GatedNetwork` to what runs one.

    Attributes:
        exists: Which gates there are, (layer, gate): first those of the parts, then those of the heads.

    Args:
        gated: The network, within its block.
    """

    def __init__(self, gated: GatedNetwork) -> None:
        self._gated, self.exists = gated, torch.cat((gated.exists, gated.heads), dim=-1)
        self.name, self.dtype, self.config, self.parameters = gated.name, gated.dtype, gated.config, gated.parameters

    def run(self, pack: Pack, gates: Float[Tensor, "layer gate"], known: Sequence[Any] = ()) -> GatedPass:
        """Run the network once with a gate on every part and every head; see `GatedNetwork.run`."""
        parts = self._gated.exists.shape[1]
        of_heads = gates[:, parts:] if self._gated.heads.any() else None
        return self._gated.run(pack, gates[:, :parts], of_heads, known=known)


Gates: TypeAlias = GatedNetwork | HeadGates | PartAndHeadGates
"""A network with gates; each says which there are and runs with values for them."""
