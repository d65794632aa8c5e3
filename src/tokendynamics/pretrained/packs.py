"""Inputs that share a forward pass: a short prompt alone pays for reading every weight."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, tensors_given

Packing: TypeAlias = Literal["any lengths", "any lengths with a mask", "equal shapes", "none"]
"""Which inputs may share a pass: prompts of any lengths, shorter ones filled up behind their end; the same where a mask
says which tokens are there; only inputs of the same shape; or none."""

_SAME = 1e-5
"""Largest difference, of the largest entry, between an input in company and alone: more than float32 rounds."""


def packing_of(network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], *, causal: bool) -> Packing:
    """Find which inputs may share a pass of a network.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        causal: Whether no token sees a later one; only then may a prompt be filled up without a mask, whatever a trial
            says: a network that has not been trained yet may hardly attend.
    """
    with torch.no_grad():
        two = dict(inputs(2))
        # What has no axis of two inputs is the same for both.
        paired = {name for name, value in two.items() if isinstance(value, Tensor) and value.shape[:1] == (2,)}
        one_of = ({name: two[name][[place]] if name in paired else two[name] for name in two} for place in (0, 1))
        first = _run(network, next(one_of))
        ids, filled, short = two.get("input_ids"), dict[str, Tensor](), None
        if set(two) == {"input_ids"} and isinstance(ids, Tensor) and ids.shape[1] > 2:
            shorter = ids.shape[1] - 3 if ids.shape[1] > 4 else 1
            short = _run(network, {"input_ids": ids[1:, :shorter]})
            filled = filled_up([ids[0], ids[1, :shorter]], filler_of(network))
            # Where inputs of several lengths may share a pass, those of one length may.
            if causal and _agree(_run(network, {"input_ids": filled["input_ids"]}), [first, short]):
                return "any lengths"
        if not _agree(_run(network, two), [first, _run(network, next(one_of))]):
            return "none"
        if filled and _agree(_run(network, filled), [first, short]):
            return "any lengths with a mask"
    return "equal shapes"


def filled_up(prompts: list[Tensor], filler: int) -> dict[str, Tensor]:
    """Return token ids of several prompts side by side, and the mask that says which tokens are there.

    >>> filled_up([torch.tensor([5, 6, 7]), torch.tensor([8])], filler=0)["input_ids"].tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    ids = nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=filler)
    there = nn.utils.rnn.pad_sequence([torch.ones_like(prompt) for prompt in prompts], batch_first=True)
    return {"input_ids": ids, "attention_mask": there}


def filler_of(network: Any) -> int:
    """Return the token that stands behind the end of a shorter prompt: some networks count positions by it."""
    config = getattr(network, "config", None)
    token, vocabulary = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", None)
    return token if isinstance(token, int) and 0 <= token < (vocabulary or 1) else 0


def _run(network: nn.Module, arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the first tensor with an axis that a network gives; None without one, or where it does not run."""
    with suppress(TypeError, ValueError, RuntimeError, IndexError), as_before(network):
        output = network(**copied(arguments))
        return next((tensor for tensor in tensors_given(output) if tensor.ndim), None)
    return None


def _agree(together: Tensor | None, alone: list[Tensor | None]) -> bool:
    if together is None or together.shape[0] != len(alone):
        return False
    for row, row_alone in zip(together, alone, strict=True):
        if row_alone is None or row_alone.ndim != together.ndim or row_alone.shape[0] != 1:
            return False
        in_both = row[: row_alone.shape[1]] if row_alone.ndim > 2 else row
        if not float((in_both - row_alone[0]).abs().max()) <= _SAME * float(row_alone.abs().max()):
            return False
    return True


_TOKENS = {"cpu": 256}
_TOKENS_ELSEWHERE = 4096
"""Tokens of a pass beyond which it is not faster for each: on a processor its states leave the cache, elsewhere every
unit is busy."""

_PASS = 30
"""What a pass costs whatever its length, in tokens: on a processor of two cores, for 135 million weights."""


def ids_in(arguments: Mapping[str, Any]) -> Int[Tensor, "prompt token"] | None:
    """Return the token ids among arguments: those called so, or the only argument; None where there are none."""
    only = next(iter(arguments.values())) if len(arguments) == 1 else None
    ids = arguments.get("input_ids", only)
    whole = isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point() and ids.dtype != torch.bool
    return ids if whole else None


@dataclass(frozen=True)
class Pack:
    """Inputs of one pass.

    Attributes:
        places: Which of the inputs that were given these are.
        arguments: Of the forward pass.
        lengths: Tokens of each, where some are shorter than the pass is long; None where all are alike.
    """

    places: tuple[int, ...]
    arguments: dict[str, Any]
    lengths: tuple[int, ...] | None = None

    @property
    def ids(self) -> Int[Tensor, "prompt token"] | None:
        """See `ids_in`."""
        return ids_in(self.arguments)

    def of_one_prompt(self) -> Pack:
        """Return a pass of the shortest of its prompts alone, which is filled up as in this one."""
        if len(self.places) == 1:
            return self
        shortest = 0 if self.lengths is None else self.lengths.index(min(self.lengths))
        row = slice(shortest, shortest + 1)
        arguments = {name: value[row] for name, value in self.arguments.items()}
        return Pack(self.places[row], arguments, None if self.lengths is None else self.lengths[row])


Classes = Callable[[int], Hashable]
"""Tells prompts apart that must not share a pass, by their tokens."""


def _all_alike(tokens: int) -> Hashable:
    del tokens
    return 0


def fewest_packs(
    several: Sequence[dict[str, Any]], packing: Packing, filler: int, class_of: Classes = _all_alike
) -> list[Pack]:
    """Put inputs into as few passes as can be, whatever each costs; the inputs of each in their order.

    Args:
        several: Arguments of the forward pass, each for one input.
        packing: Which may share one.
        filler: The token that fills up a shorter prompt.
        class_of: Tells apart, by their tokens, prompts of different lengths that may not share one.

    >>> short, long = ({"input_ids": torch.arange(count)[None]} for count in (3, 9))
    >>> [pack.places for pack in fewest_packs([short, long, short], "any lengths", 0, lambda tokens: tokens > 5)]
    [(0, 2), (1,)]
    """
    groups: dict[Hashable, list[int]] = {}
    for place, arguments in enumerate(several):
        if packing == "none":
            kind: Hashable = place
        elif packing.startswith("any lengths") and set(arguments) == {"input_ids"}:
            kind = ("prompts", class_of(arguments["input_ids"].shape[1]))
        else:
            kind = _shape_of(arguments, place)
        groups.setdefault(kind, []).append(place)
    packs = []
    for places in groups.values():
        if packing.startswith("any lengths") and len(places) > 1 and set(several[places[0]]) == {"input_ids"}:
            packs.append(_filled(places, {place: several[place]["input_ids"][0] for place in places}, packing, filler))
        else:
            packs.append(_side_by_side(places, several))
    return packs


def packs_of(
    several: Sequence[dict[str, Any]],
    packing: Packing,
    filler: int,
    device: torch.device,
    class_of: Classes = _all_alike,
) -> list[Pack]:
    """Sort inputs into passes.

    Args:
        several: Arguments of the forward pass, each for one input.
        packing: Which may share one.
        filler: The token that fills up a shorter prompt.
        device: Where they run.
        class_of: Tells apart, by their tokens, prompts of different lengths that may not share one.
    """
    most = _TOKENS.get(device.type, _TOKENS_ELSEWHERE)
    alone = [Pack((place,), arguments) for place, arguments in enumerate(several)]
    if packing == "none":
        return alone
    packs: list[Pack] = []
    prompts = {place: entry["input_ids"][0] for place, entry in enumerate(several) if set(entry) == {"input_ids"}}
    if packing.startswith("any lengths"):
        classes: dict[Hashable, list[int]] = {}
        for place in sorted(prompts, key=lambda place: len(prompts[place])):
            classes.setdefault(class_of(len(prompts[place])), []).append(place)
        for order in classes.values():
            for start, end in _cheapest([len(prompts[place]) for place in order], most):
                packs.append(_filled(order[start:end], prompts, packing, filler))
    left = [place for place in range(len(several)) if not any(place in pack.places for pack in packs)]
    groups: dict[Any, list[int]] = {}
    for place in left:
        groups.setdefault(_shape_of(several[place], place), []).append(place)
    for places in groups.values():
        ids = several[places[0]].get("input_ids")
        # The tokens of an image, which no one counts before it runs, are many.
        count = max(1, most // (ids.shape[1] if isinstance(ids, Tensor) else 64))
        packs += [_side_by_side(places[start : start + count], several) for start in range(0, len(places), count)]
    return packs


def _cheapest(lengths: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Cut prompts sorted by length into passes of at most a given number of tokens, at the lowest cost in all.

    >>> _cheapest([5, 5, 6, 100, 300], most=256)
    [(0, 3), (3, 4), (4, 5)]
    """

    @cache
    def best(end: int) -> tuple[int, int]:
        """Return the cost of the first `end` prompts, and where their last pass starts."""
        if end == 0:
            return 0, 0
        starts = [start for start in range(end) if start == end - 1 or (end - start) * lengths[end - 1] <= most]
        return min((best(start)[0] + _PASS + (end - start) * lengths[end - 1], start) for start in starts)

    for end in range(len(lengths)):  # from below, so that no call waits for more than one other
        best(end)
    cuts, end = [], len(lengths)
    while end:
        start = best(end)[1]
        cuts.append((start, end))
        end = start
    return cuts[::-1]


def _filled(places: list[int], prompts: Mapping[int, Tensor], packing: Packing, filler: int) -> Pack:
    lengths = tuple(len(prompts[place]) for place in places)
    arguments = filled_up([prompts[place] for place in places], filler)
    if packing == "any lengths" or len(set(lengths)) == 1:
        del arguments["attention_mask"]
    return Pack(tuple(places), arguments, lengths)


def _side_by_side(places: list[int], several: Sequence[dict[str, Any]]) -> Pack:
    if len(places) == 1:
        return Pack(tuple(places), several[places[0]])
    names = several[places[0]]
    arguments = {name: torch.cat([several[place][name] for place in places]) for name in names}
    return Pack(tuple(places), arguments)


def _shape_of(arguments: Mapping[str, Any], place: int) -> Any:
    """Return what inputs must have in common to stand side by side; for what is no tensor of one input, its place."""
    if not all(isinstance(value, Tensor) and value.ndim > 0 and len(value) == 1 for value in arguments.values()):
        return place
    return tuple(sorted((name, tuple(value.shape), str(value.dtype)) for name, value in arguments.items()))
