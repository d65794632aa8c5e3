"""What every change of a forward pass needs: its arguments, and which states are those of the tokens that went in.

Networks may add tokens of their own inside: Longformer and Reformer fill a prompt up to whole windows behind its end,
CPM-Ant puts a learned prompt in front, and both cut off again what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import checkpoint as checkpointing

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery._maps import by_token
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.network import copied, submodule
from tokendynamics.pretrained.packs import Pack, ids_in
from tokendynamics.words import plural

_ONE_STREAM = "blocks that pass on one state for each token"


@contextmanager
def activations_kept() -> Iterator[None]:
    """Let blocks under activation checkpointing keep their activations, in passes of this thread inside the block.

    They would otherwise run again in the backward pass, when the gates of the pass are gone.
    """
    module: Any = checkpointing
    names = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
    if not all(hasattr(module, name) for name in names):  # of another version of PyTorch: its own errors are passed on
        yield
        return
    thread, (former, former_steps) = get_ident(), [getattr(module, name) for name in names]

    class Kept:
        """Takes the place of the function that drops activations."""

        @staticmethod
        def apply(function: Any, preserve: bool, *arguments: Any) -> Any:
            """Run the function of the checkpoint as it stands."""
            kept = get_ident() == thread
            return function(*arguments) if kept else former.apply(function, preserve, *arguments)

    def steps(*arguments: Any, **named: Any) -> Iterator[None]:
        if get_ident() == thread:
            yield
        else:
            yield from former_steps(*arguments, **named)

    try:
        vars(module).update(zip(names, (Kept, steps), strict=True))
        yield
    finally:
        vars(module).update(zip(names, (former, former_steps), strict=True))


class OwnTokens(ExitStack):
    """Compares what a network gives with its last states, for a ``with`` block around one pass in this thread.

    Args:
        network: The one that the layout is of.
        layout: Of it.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__()
        self._thread = get_ident()
        self._kept: dict[str, Tensor] = {}
        self._first = layout.first_token
        # A model with a head gives logits, which cannot be compared with states; its base model gives states.
        base = getattr(network, "base_model", network)
        self._keep("output", base if isinstance(base, nn.Module) else network)
        self._keep("last", submodule(network, layout.end if self._first is None else layout.last))

    def _keep(self, name: str, module: nn.Module) -> None:
        def hook(module: nn.Module, positional: Any, output: Any) -> None:
            del positional
            if get_ident() != self._thread:
                return
            # A tensor, or the first of a tuple or of transformers' outputs.
            first = output
            if not isinstance(output, Tensor):
                several = output if isinstance(output, tuple) else getattr(output, "values", tuple)()
                first = next(iter(several), None)
            self._kept.pop(name, None)
            if isinstance(first, Tensor):
                self._kept[name] = by_token(module, first)

        self.callback(module.register_forward_hook(hook).remove)

    @property
    def output(self) -> Tensor | None:
        """What the network gave, after the pass; None where that is no tensor."""
        return self._kept.get("output")

    def places(self, arguments: Mapping[str, Any]) -> slice:
        """Return which places of the states are the tokens that went in, after the pass.

        Args:
            arguments: Of the pass.

        Returns:
            All places where the network gives as many as it has inside, or reads no token ids.
        """
        ids, given, last = ids_in(arguments), self._kept.get("output"), self._kept.get("last")
        if ids is None or last is None or last.ndim != 3 or last.shape[1] <= ids.shape[1]:
            return slice(None)
        tokens, places = ids.shape[1], last.shape[1]
        if self._first is not None:
            return slice(self._first, self._first + tokens)
        if given is None or given.ndim < 3 or given.shape[1] != tokens:
            return slice(None)
        if given.shape == (len(last), tokens, last.shape[-1]):
            for start in (0, places - tokens):
                if torch.equal(given.to(last), last[:, start : start + tokens]):
                    return slice(start, start + tokens)
        return slice(0, tokens)


_OF_MASKS = ("mask", "pad", "valid", "len")
"""Words in the names of arguments that say which tokens are there."""

_KINDS = 2
"""Different entries of a mask."""


@dataclass(frozen=True, eq=False)
class Marked:
    """Tokens of a pass that one of its arguments tells from the others: padding, if none of these sees them.

    Attributes:
        name: What an error calls the argument.
        tokens: Which they are.
        alike: Whether those of each prompt hold the same numbers.
        arguments: Of a pass in which one more token of each prompt is marked.
        further: Its place in each prompt; −1 where a prompt has none to spare.
        between: Whether it stands between two tokens that are not marked, or directly before those that are.
    """

    name: str
    tokens: Bool[Tensor, "prompt token"]
    alike: bool
    arguments: dict[str, Any]
    further: Int[Tensor, " prompt"]
    between: bool

    @property
    def named(self) -> bool:
        """Whether the argument has the name of a mask."""
        return any(word in self.name for word in _OF_MASKS)

    def within(self, tokens: int) -> list[Marked]:
        """Return the same in a pass of more tokens, those of the network's own standing before these or behind them."""
        added = tokens - self.tokens.shape[1]
        sides = ((added, 0), (0, added))[: 1 + (added > 0)] if added >= 0 else ()
        return [
            replace(
                self,
                tokens=functional.pad(self.tokens, side),
                further=torch.where(self.further < 0, -1, self.further + side[0]),
            )
            for side in sides
        ]

    def extended(self) -> Marked:
        """Return what is marked in the pass with one more token."""
        return replace(self, tokens=self.tokens | (torch.arange(self.tokens.shape[1]) == self.further[:, None]))


def marked_tokens(pack: Pack, *, by_ids: bool) -> list[Marked]:
    """Return the tokens that each argument of a pass tells from the others: by two numbers, a length or a token id.

    Args:
        pack: What goes through the network.
        by_ids: Whether the network's own mask depends on token ids, one of which may stand for padding.
    """
    prompts = len(pack.places)
    tensors = {name: value.detach().cpu() for name, value in pack.arguments.items() if isinstance(value, Tensor)}
    by_token = {name: value for name, value in tensors.items() if value.ndim > 1 and len(value) == prompts}
    tokens = max((value.shape[1] for value in by_token.values()), default=0)
    lengths = torch.tensor(pack.lengths or (tokens,) * prompts)
    several = []
    for name, value in tensors.items():
        of_ids = pack.arguments[name] is pack.ids
        if (of_ids and not by_ids) or (pack.lengths is not None and not of_ids):
            continue
        for marks, mark, between in _ways_to_mark(value, prompts, tokens, of_ids=of_ids):
            there = torch.arange(marks.shape[1]) < (lengths[:, None] if of_ids else marks.shape[1])
            marks = marks & there
            if not bool(marks.any()) or bool((marks | ~there).all(dim=1).any()):
                continue
            last = ((there & ~marks) * torch.arange(marks.shape[1])).amax(dim=1)
            further = torch.where(last < 1 + between, -1, last - int(between))
            changed = value.clone(memory_format=torch.contiguous_format)
            for number, place in enumerate(further.tolist()):
                if place >= 0:
                    mark(changed, number, place)
            others = [other for key, other in by_token.items() if key != name and "position" not in key]
            alike = of_ids or all(_alike(other, marks) for other in others)
            arguments = {**pack.arguments, name: changed.to(pack.arguments[name].device)}
            called = f"the network's mask by {name}" if of_ids else name
            several.append(Marked(called, marks, alike, arguments, further, between))
    return several


_Ways: TypeAlias = Iterator[tuple[Tensor, Callable[[Tensor, int, int], None], bool]]


def _ways_to_mark(value: Tensor, prompts: int, tokens: int, *, of_ids: bool) -> _Ways:
    """Yield which tokens an argument may mark, how it marks one more of a prompt, and whether that may stand anywhere.

    Args:
        value: The argument.
        prompts: Of the pass.
        tokens: Of the longest prompt.
        of_ids: Whether the argument holds token ids.
    """

    def put(shape: tuple[int, ...], number: float | None = None) -> Callable[[Tensor, int, int], None]:
        def mark(changed: Tensor, prompt: int, place: int) -> None:
            changed.view(shape)[prompt, ..., place] = place if number is None else number

        return mark

    count = value.numel() // prompts
    if of_ids:
        yield from ((value == kind, put((prompts, -1), kind), True) for kind in value.unique().tolist())
    elif count == 1 and value.dtype != torch.bool and bool(((value > 0) & (value <= tokens) & (value % 1 == 0)).all()):

        def shorten(changed: Tensor, prompt: int, place: int) -> None:
            changed.view(-1)[prompt] = place

        yield torch.arange(tokens) >= value.reshape(-1, 1), shorten, False
    elif value.ndim > 1 and len(value) == prompts and len(kinds := value.unique()) == _KINDS:
        width = value.shape[-1]
        if count == max(value.shape[1:]):  # one entry for each token
            yield from ((value.reshape(prompts, -1) == kind, put((prompts, -1), kind), True) for kind in kinds.tolist())
        elif width == value.shape[-2] > 1:  # or for each pair: a token that is hidden from all others
            pairs, itself = value.reshape(prompts, -1, width, width), torch.eye(width, dtype=torch.bool)
            for kind in kinds.tolist():
                marks = ((pairs == kind) | itself).flatten(1, 2).all(dim=1)
                causal = (pairs == kind).flatten(0, 1)[:, torch.ones_like(itself).triu(1)].all()
                # No other token sees the last one under a causal mask.
                yield marks & ((marks.sum(dim=1, keepdim=True) > 1) | ~causal), put(pairs.shape, kind), True


def _alike(value: Tensor, marks: Bool[Tensor, "prompt token"]) -> bool:
    """Return whether the marked tokens of each prompt hold the same numbers; true of what has no entry for each."""
    if value.shape[:2] != marks.shape or len(value.unique()) <= _KINDS:
        return True
    rows = [entries[of_prompt] for entries, of_prompt in zip(value, marks, strict=True)]
    return all(bool((several == several[:1]).all()) for several in rows)


def check_one_stream(layout: Layout, name: str) -> None:
    """Refuse to put states into a network whose blocks read several tensors of them.

    Args:
        layout: Of it.
        name: What a message calls it.

    Raises:
        CheckpointError: They do.
    """
    if layout.streams > 1:
        advice = "td.trace follows those that the network calls its hidden states"
        raise CheckpointError(name, _ONE_STREAM, f"{layout.streams} streams of states", advice)


class InsideBlocks(Hooks):
    """Tells during a pass whether a block runs; always, where all attentions of the network stand in blocks.

    Attributes:
        now: Whether one does.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__()
        self._network, self._layout = network, layout
        self.now = not layout.outside

    def _prepare(self) -> None:
        if self._layout.outside:
            for name, layer in dict(zip(self._layout.blocks, self._layout.layers, strict=True)).items():
                block = submodule(self._network, name)
                self.before_block(block, layer.sites, partial(self._set, True))
                self.after_block(block, layer.sites, partial(self._set, False))

    def _set(self, now: bool, states: Tensor) -> None:
        del states
        self.now = now


def blocks_beside(network: nn.Module, layout: Layout) -> dict[str, nn.Module]:
    """Return the modules of a block's class that stand in the same list and are no blocks: they did not run.

    A network may run them all the same for another input, where it ends a pass early for some.

    Args:
        network: The one that the layout is of.
        layout: Of it.
    """
    known = {submodule(network, name) for name in layout.blocks}
    beside: dict[str, nn.Module] = {}
    for name in dict.fromkeys(layout.blocks):
        around, _, _ = name.rpartition(".")
        if around.endswith("}"):  # of lists beside each other all members ran
            continue
        kind = type(network.get_submodule(name))
        for other, module in network.get_submodule(around).named_children():
            if type(module) is kind and module not in known and any(True for _ in module.children()):
                beside[f"{around}.{other}" if around else other] = module
    return beside


def check_ran(ran: Sequence[str], layout: Layout, name: str, *, ended: bool = True) -> None:
    """Refuse a pass through other blocks than those that ran where the layout was found.

    Args:
        ran: Names of the blocks that ran, in their order.
        layout: Of the network.
        name: What a message calls it.
        ended: Whether the pass has ended, so that no more blocks run.

    Raises:
        CheckpointError: They are others.
    """
    if tuple(ran) != layout.blocks:
        several = ", ".join(ran[:4]) + (", …" if ran[4:] else "")
        wanted = f"a pass through {plural(len(layout.blocks), 'block')}, as where its layout was found"
        count = len(ran) if ended else f"at least {len(ran)}"
        advice = "switch off what ends a pass early, skips blocks or runs them again for some inputs"
        raise CheckpointError(name, wanted, f"one through {count} ({several})", advice)


def check_by_token(states: Tensor) -> None:
    """Refuse states that are not (input, token, feature): of several streams in one tensor, or of a grid of places.

    Raises:
        CheckpointError: They are none.
    """
    if states.ndim != 3:
        advice = "td.audit reads its weights, where they are found"
        raise CheckpointError("states", _ONE_STREAM, f"states of shape {tuple(states.shape)}", advice)


def arguments_for(network: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the arguments of a forward pass where the network is; real numbers in its dtype."""
    first = next(parameter for parameter in network.parameters() if not parameter.is_meta)
    return copied({name: on_device_of(value, first) for name, value in arguments.items()})


def on_device_of(value: Any, like: Tensor) -> Any:
    """Return an argument of a forward pass where a tensor is; real numbers in its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device=like.device, dtype=like.dtype) if value.is_floating_point() else value.to(like.device)


def by_prompt(states: Tensor, prompts: int) -> Tensor:
    """Return states as (prompt, token, dim); some blocks work on the tokens of all prompts in one row."""
    return states if states.ndim > 2 else states.reshape(prompts, -1, states.shape[-1])
