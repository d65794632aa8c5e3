"""Blocks that are no modules: a loop of the network runs their parts one by one, and adds up outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Literal

import torch
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._calls import BlockSites, ModuleCall, Pass
from tokendynamics.pretrained.discovery.attention_call import AttentionCall

_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class BlockCall:
    """One call of one block.

    Attributes:
        call: The call; of a block that is no module, from the beginning of its first module to the end of its last.
        attentions: Times and arguments of the attentions that ran inside it; empty for a block without attention.
        sites: Where the states before and after it show.
    """

    call: ModuleCall
    attentions: tuple[tuple[int, AttentionCall], ...]
    sites: BlockSites = field(default_factory=BlockSites)


def chained(calls: Sequence[ModuleCall]) -> list[bool]:
    """Return of each of these calls but the first whether it reads what the one before it gave."""
    return [_same(after.given, before.y) for before, after in pairwise(calls)]


def joining(calls: Sequence[ModuleCall]) -> list[bool]:
    """Return of each block whether the network changes what the block before it gave until it reads that."""
    several = [False]
    for before, after in pairwise(calls):
        comparable = after.given is not None and after.given.shape == before.y.shape
        several.append(comparable and not any(_same(after.given, y) for y in (before.y, *before.beside)))
    return several


def spans(network: nn.Module, recorded: Pass, branches: Sequence[ModuleCall]) -> list[BlockCall]:
    """Return blocks that hand on their states, put together from calls that do not; empty where they cannot be.

    Args:
        network: The one that ran.
        recorded: Its pass.
        branches: The calls, in the order in which they ran.
    """
    lists = [name for outer in _outer_lists(network, branches) for name in outer]
    inside = {name: calls for name in lists if (calls := _inside(recorded, name))}
    by_list = dict(sorted(inside.items(), key=lambda entry: entry[1][0].start))
    for groups in (by_list, {call.name: [call] for call in branches}):
        if len(groups) > 1 and (leave := _leave(groups)) is not None:
            return [_block(network, recorded, name, group, leave) for name, group in groups.items()]
    return []


def _outer_lists(network: nn.Module, branches: Sequence[ModuleCall]) -> list[list[str]]:
    """Return the names of all members of each list of lists of modules around some calls."""
    outer: dict[str, list[str]] = {}
    for call in branches:
        owner = call.name.rpartition(".")[0]
        while owner:
            around = owner.rpartition(".")[0]
            members = network.get_submodule(around)
            if all(type(module) is nn.ModuleList for module in (network.get_submodule(owner), members)):
                outer[around] = [f"{around}.{name}" for name, _ in members.named_children()]
                break
            owner = around
    return list(outer.values())


def _inside(recorded: Pass, name: str) -> list[ModuleCall]:
    """Return the outermost calls of the modules in a list, in the order in which they ran."""
    calls = [call for call in recorded.calls if call.name.startswith(f"{name}.")]
    outer = [call for call in calls if not any(call.is_inside(other) for other in calls)]
    return sorted(outer, key=lambda call: call.start)


def _leave(by_name: Mapping[str, Sequence[ModuleCall]]) -> tuple[str, Literal["output", "sum"]] | None:
    """Return where the states show that each group hands on to the next; None where they do not show alike in all."""
    groups = list(by_name.values())
    sides: tuple[Literal["output", "sum"], ...] = ("output", "sum")
    for place, side in product(range(1, 1 + min(map(len, groups))), sides):
        ends = [_state(group[-place], side) for group in groups[:-1]]
        inner = {group[-place].name_in(name) for name, group in by_name.items()}
        if len(inner) == 1 and all(_same(after[0].given, end) for end, after in zip(ends, groups[1:], strict=True)):
            return inner.pop(), side
    return None


def _block(
    network: nn.Module,
    recorded: Pass,
    name: str,
    group: Sequence[ModuleCall],
    leave: tuple[str, Literal["output", "sum"]],
) -> BlockCall:
    first = group[0]
    last = next(call for call in reversed(group) if call.name_in(name) == leave[0])
    y = _state(last, leave[1])
    # A moment before the first and after the last, so that both stand inside.
    start, end = (first.start, last.end) if first is last and first.name == name else (first.start - 1, last.end + 1)
    call = ModuleCall(
        name, network.get_submodule(name), first.given, first.x, last.y if y is None else y, first.arguments, start, end
    )
    return BlockCall(call, recorded.attentions_in(call), BlockSites(first.name_in(name), leave))


def _state(call: ModuleCall, side: str) -> Tensor | None:
    if side == "output":
        return call.y
    return None if call.given is None or call.given.shape != call.y.shape else call.given + call.y


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    size = float(other.abs().nan_to_num().max())
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * size, equal_nan=True)
