"""Refuses networks whose states are no (input, token, feature), or whose blocks read several sequences.

Lengths of axes may agree by chance, so the network is run with changed states. What an attention compares are the
tokens: one changed place along their axis changes one query of each input, one changed feature all of them. Without an
attention, a block takes fewer tokens, and never fewer features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._blocks import BlockCall, joining
from tokendynamics.pretrained.discovery._calls import EndedError, Hooks, ModuleCall, Pass
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._trials import CHANGED, differ
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import watching
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, submodule, without_cache

_WANTED = "states of shape (input, token, feature)"

_INPUTS_FIRST = (
    "build it with batch_first=True if its class has that; blocks with tokens first are read in a network in memory "
    "(no folder) whose own arguments have the inputs first"
)

_SEED = 17


class TokensFirstError(LayoutNotFoundError):
    """States of a network stand (token, input, feature)."""


def check_axes(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], blocks: Sequence[BlockCall], recorded: Pass
) -> None:
    """Refuse states whose axes are others than (input, token, feature).

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        blocks: Of the recorded pass.
        recorded: A pass of two inputs.

    Raises:
        LayoutNotFoundError: They are others, or trying does not show which they are.
    """
    start = blocks[0].call
    shape = tuple(start.y.shape)
    if start.x is None or start.x.shape != start.y.shape:
        if start.x is not None and turns(start):
            raise TokensFirstError(
                start.name, _WANTED, f"{tuple(start.x.shape)} for 2 inputs, with tokens first", _INPUTS_FIRST
            )
        return
    block = next((block for block in blocks if block.attentions), blocks[0])
    axes = _of_attention(network, inputs(2), block)
    if len(shape) == 3:
        _check_inputs_first(network, inputs, block, axes)
        axes = axes if len(axes) == 1 else _of_length(network, inputs(2), block) or _of_norms(start, recorded)
    # Where the usual axis shows as well, what does not change are places that a window was filled up with.
    if axes and axes[-1] == len(shape) - 1 and (0 if len(shape) == 2 else 1) not in axes:
        usual = "(input, channel, time)" if len(shape) < 4 else "(input, channel, row, column)"
        came = f"{shape} with the tokens along the last axis, as in {usual}"
        advice = "turn them inside of the blocks, so that these read and return (input, token, feature)"
        raise LayoutNotFoundError(start.name, _WANTED, came, advice)
    if not axes and len(shape) == 3 and shape[1] == shape[2]:
        came = f"{shape}, where trying does not show which axis is that of the tokens"
        raise LayoutNotFoundError(start.name, _WANTED, came, "make inputs of more tokens")


def turns(block: ModuleCall) -> bool:
    """Tell whether a block gives its states in another order of inputs and tokens than it reads them.

    Args:
        block: Its call, of a pass of which the numbers of inputs and tokens differ.
    """
    x, y = block.x, block.y
    return x is not None and x.ndim == y.ndim == 3 and x.shape != y.shape == x.transpose(0, 1).shape


def _check_inputs_first(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], block: BlockCall, axes: tuple[int, ...]
) -> None:
    """Refuse states with the tokens first, and those of a single token."""
    start, shape = block.call, tuple(block.call.y.shape)
    first = axes == (0,) or (shape[0] != 2 and shape[1] == 2)
    if shape[:2] == (2, 2):  # of three inputs the lengths differ
        states = _states_of(network, inputs(3), block)
        first = first or (states is not None and tuple(states.shape[:2]) == (2, 3))
    if not axes and not first:  # what acts on each other are tokens
        first = _spreads(network, inputs(2), block, 0) and not _spreads(network, inputs(2), block, 1)
    if first:
        raise TokensFirstError(start.name, _WANTED, f"{shape} for 2 inputs, with tokens first", _INPUTS_FIRST)
    if shape[1] < 2:
        raise LayoutNotFoundError(start.name, _WANTED, f"{shape}", "make inputs of at least two tokens")


def _of_attention(network: nn.Module, given: Mapping[str, Any], block: BlockCall) -> tuple[int, ...]:
    """Return the axes along which a changed place changes some queries of every input, and not all."""
    usual = _queries(network, given, block, lambda states: states)
    if usual is None or block.call.x is None:
        return ()
    axes: list[int] = []
    for axis in range(block.call.x.ndim):
        query = _queries(network, given, block, lambda states, axis=axis: _with_other_last(states, axis))
        if query is None or query.shape != usual.shape:
            return ()
        changed = (query - usual).abs().amax(dim=-1) > CHANGED * usual.abs().max()
        of_inputs, of_places = changed.any(dim=1), changed.any(dim=0)
        by_row = block.call.x.ndim == 2  # a row is a token of one input
        if (bool(of_inputs.all()) or (by_row and bool(of_inputs.any()))) and not bool(of_places.all()):
            axes.append(axis)
    return tuple(axes)


def _queries(
    network: nn.Module, given: Mapping[str, Any], block: BlockCall, change: Callable[[Tensor], Tensor]
) -> Tensor | None:
    """Return the queries, (input, token, feature), of the first attention of a block that reads changed states."""
    queries: list[Tensor] = []
    _states_of(network, given, block, change, lambda call: queries.append(call.query.clone()))
    if not queries:
        return None
    count = len(queries[0])
    if count in block.call.y.shape[:2]:  # of all inputs, whichever axis is theirs
        return queries[0].transpose(1, 2).flatten(2)
    # Heads, or windows, may stand beside the inputs.
    return None if count % 2 else queries[0].unflatten(0, (2, -1)).permute(0, 3, 1, 2, 4).flatten(2)


def _spreads(network: nn.Module, given: Mapping[str, Any], block: BlockCall, axis: int) -> bool:
    """Return whether a block gives other states at further places along an axis where the first one is changed."""

    def changed(states: Tensor) -> Tensor:
        return _with_other_last(states.flip(axis), axis).flip(axis)

    usual, other = (_states_of(network, given, block, change) for change in (torch.clone, changed))
    if usual is None or other is None or usual.shape != other.shape or usual.shape[axis] < 2:
        return False
    return differ(*(states.narrow(axis, 1, states.shape[axis] - 1) for states in (other, usual)))


def _of_length(network: nn.Module, given: Mapping[str, Any], block: BlockCall) -> tuple[int, ...]:
    """Return the one of the last two axes along which the block takes fewer places; empty if both or neither do."""
    taken = [
        axis
        for axis in (1, 2)
        if _states_of(network, given, block, lambda states, axis=axis: states.narrow(axis, 0, states.shape[axis] - 1))
        is not None
    ]
    return tuple(taken) if len(taken) == 1 else ()


def _of_norms(block: ModuleCall, recorded: Pass) -> tuple[int, ...]:
    """Return the axis of the tokens by the first norm that reads the states, or gives them; empty without one.

    Norms act on the features of the last axis, but those of channels, which PyTorch has along the second.
    """
    for call in recorded.calls:
        if call.start < block.start or call.end > block.end or call.x is None or call.x.ndim != 3:
            continue
        by_channel = isinstance(call.module, nn.GroupNorm | nn.BatchNorm1d | nn.InstanceNorm1d)
        if call.norm is None and not by_channel:
            continue
        for tensor, states in ((call.x, block.x), (call.y, block.y)):
            if states is not None and (torch.equal(tensor, states) or torch.equal(tensor, states.mT)):
                return (1,) if torch.equal(tensor, states) is not by_channel else (2,)
    return ()


def _states_of(
    network: nn.Module,
    given: Mapping[str, Any],
    block: BlockCall,
    change: Callable[[Tensor], Tensor] = torch.clone,
    watch: Callable[[AttentionCall], None] = lambda call: None,
) -> Tensor | None:
    """Return what a block gives where it reads changed states; None where it does not run on these."""
    outputs: list[Tensor] = []
    inside: list[bool] = []

    def enter(states: Tensor) -> Tensor:
        inside.append(True)
        return change(states)

    def leave(states: Tensor) -> None:
        outputs.append(states)
        raise EndedError

    module = submodule(network, block.call.name)
    try:
        with Hooks() as hooks, without_cache(network), as_before(network):
            hooks.before_block(module, block.sites, enter)
            hooks.after_block(module, block.sites, leave)
            with watching(network, lambda call: watch(call) if inside else None, of_w=True):
                network(**copied(given))
    except Exception:  # also what a block says of a shape that it does not take
        return outputs[0] if outputs else None
    return outputs[0] if outputs else None


def check_one_sequence(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], blocks: Sequence[BlockCall]
) -> None:
    """Refuse blocks of which some read nothing of what those before them gave: two towers, or one that runs twice.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        blocks: In the order in which they ran.

    Raises:
        LayoutNotFoundError: It names the first two sequences of blocks.
    """
    given, names = inputs(2), [block.call.name for block in blocks]
    joins = [place for place, joined in enumerate(joining([block.call for block in blocks])) if joined]
    ends = [place for place in joins if not _feeds(network, given, blocks, place)]
    if not ends:
        return
    end, after = ends[0], (*ends[1:], len(names))[0]
    first, second = names[:end], names[end:after]
    towers = [_owner(several) for several in (first, second)]
    twice = f"runs {_from_to(first)} again for other inputs"
    others = f"runs {_from_to(second)} on other inputs than {_from_to(first)}"
    which = " or ".join(dict.fromkeys(f"its module {tower}" for tower in towers if tower))
    alone = "them once" if second == first else f"{_from_to(first)} or {_from_to(second)} alone"
    advice = f"pass {which}, with inputs= of that" if which else f"wrap it in a module that runs {alone}"
    came = f"one that {twice if second == first else others}"
    raise LayoutNotFoundError(type(network).__name__, "a network whose blocks read one sequence", came, advice)


def _from_to(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _owner(names: Sequence[str]) -> str:
    """Return the name of the module that holds the list of some blocks; empty where that is the network.

    >>> _owner(["left.blocks.0", "left.blocks.1"]), _owner(["blocks.0"])
    ('left', '')
    """
    around = [list(dict.fromkeys(parts)) for parts in zip(*(name.split(".")[:-1] for name in names), strict=False)]
    common = list(takewhile(lambda parts: len(parts) == 1, around))
    return ".".join(part for (part,) in common[:-1])


def _feeds(network: nn.Module, given: Mapping[str, Any], blocks: Sequence[BlockCall], place: int) -> bool:
    """Return whether what a block reads changes with what the one before it gave; True where that cannot be tried."""
    before, after = blocks[place - 1], blocks[place]

    def read(change: Callable[[Tensor], Tensor]) -> Tensor | None:
        entered: list[Tensor] = []
        left: list[Tensor] = []

        def enter(states: Tensor) -> None:
            entered.append(states.clone())
            if sum(block.call.name == after.call.name for block in blocks[: place + 1]) == len(entered):
                raise EndedError

        def leave(states: Tensor) -> Tensor | None:
            left.append(states)
            last = sum(block.call.name == before.call.name for block in blocks[:place]) == len(left)
            return change(states) if last else None

        try:
            with Hooks() as hooks, without_cache(network), as_before(network):
                hooks.after_block(submodule(network, before.call.name), before.sites, leave)
                hooks.before_block(submodule(network, after.call.name), after.sites, enter)
                network(**copied(given))
        except EndedError:
            return entered[-1]
        except Exception:  # it does not run with other states between its blocks
            return None
        return None

    usual, other = read(torch.clone), read(lambda states: _with_other_last(states, -1))
    return usual is None or other is None or usual.shape != other.shape or not torch.equal(usual, other)


def _with_other_last(states: Tensor, axis: int) -> Tensor:
    """Return states of which the last place along an axis holds other numbers."""
    generator = torch.Generator().manual_seed(_SEED)
    changed = states.clone()
    last = changed.select(axis, -1)
    size = states.std()
    last += torch.where(size > 0, size, 1.0) * torch.randn(last.shape, generator=generator).to(last)
    return changed
