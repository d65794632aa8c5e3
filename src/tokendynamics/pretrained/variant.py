"""What of a network is changed: parts weighted or taken out, norms taken out, positions taken away."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import expected, shown

PARTS = ("attention", "feed_forward")
SWITCHES = ("norms", "final_norm", "positions")
_ONE_LAYER = re.compile(r"layers? (\d+)(?:\s*-\s*(\d+))? (attention|feed_forward)")
_GRAMMAR = (
    "'attention', 'feed_forward', 'layer 12 attention', 'layers 3-9 feed_forward', 'norms', 'final_norm' or 'positions'"
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
    blocks), the gate stands before it.

    Attributes:
        attention: Gate on the attention of every layer.
        feed_forward: Gate on the feed-forward part of every layer.
        gates: Gates of single parts by (layer, part), which take the place of those two.
        norms: Whether the norms of the blocks are there.
        final_norm: Whether the norm after the last block is.
        positions: Whether tokens know where they stand.

    >>> Variant.of({"feed_forward": 0, "layer 2 attention": 0.5}).words
    'feed_forward × 0, layer 2 attention × 0.5'
    """

    attention: float = 1.0
    feed_forward: float = 1.0
    gates: Mapping[tuple[int, str], float] = field(default_factory=dict)
    norms: bool = True
    final_norm: bool = True
    positions: bool = True

    @classmethod
    def of(cls, given: VariantLike, argument: str = "variant") -> Variant:
        """Return a variant from what a user writes.

        Args:
            given: None or "full" for the network as it is; "no-ffn", "no-norm", "attention-only" (both at once); or
                changes by name: gates of parts, and 0 or 1 for norms, final norm and positions. A single layer's
                gate takes the place of that of all layers, a later entry that of an earlier one.
            argument: What an error calls it.

        Raises:
            ArgumentTypeError: Nothing of these.
            ArgumentValueError: A name that there is not, or a value that is not a number.
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
        whole: dict[str, float] = {}
        switched: dict[str, bool] = {}
        for name, value in given.items():
            number = _number(value, f"{argument}[{shown(name)}]")
            if name in PARTS:
                whole[name] = number
            elif name in SWITCHES:
                switched[name] = _switch(number, f"{argument}[{shown(name)}]")
            else:
                gates |= dict.fromkeys(_places(name, argument), number)
        return cls(**whole, **switched, gates=gates)

    @property
    def words(self) -> str:
        """What is changed, in words; "as it is" where nothing is."""
        parts = [f"{name} × {value:g}" for name in PARTS if (value := getattr(self, name)) != 1]
        parts += [f"layer {layer} {part} × {value:g}" for (layer, part), value in self.gates.items()]
        parts += [f"without {name.replace('_', ' ')}" for name in SWITCHES if not getattr(self, name)]
        return ", ".join(parts) or "as it is"

    @property
    def plain(self) -> dict[str, float]:
        """What `of` reads, of everything that is changed."""
        found = {name: float(getattr(self, name)) for name in (*PARTS, *SWITCHES) if getattr(self, name) != 1}
        return found | {f"layer {layer} {part}": value for (layer, part), value in self.gates.items()}

    def gates_of(self, exists: Bool[Tensor, "layer part"], name: str) -> Float64[Tensor, "layer part"]:
        """Return the gate on each part of each layer.

        Args:
            exists: Which parts there are.
            name: What an error calls the network.

        Raises:
            ArgumentValueError: A layer or a part that there is not.
        """
        found = torch.tensor([self.attention, self.feed_forward], dtype=torch.float64).repeat(len(exists), 1)
        if self.feed_forward != 1 and not bool(exists[:, 1].any()):
            raise ArgumentValueError(expected("variant", f"parts of {name}", "feed_forward, which no layer has"))
        found[~exists] = 1.0
        for (layer, part), value in self.gates.items():
            place = PARTS.index(part)
            if not 1 <= layer <= len(exists):
                raise ArgumentValueError(expected("variant", f"layers from 1 to {len(exists)}", f"layer {layer}"))
            if not exists[layer - 1, place]:
                raise ArgumentValueError(expected("variant", f"parts of {name}", f"{part} of layer {layer}: none"))
            found[layer - 1, place] = value
        return found


def _number(value: object, argument: str) -> float:
    if isinstance(value, str) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentValueError(expected(argument, "a finite number", shown(value)))
    return float(value)


def _switch(value: float, argument: str) -> bool:
    if value not in (0.0, 1.0):
        raise ArgumentValueError(
            expected(argument, "0 (without) or 1 (with)", shown(value), "parts take other numbers")
        )
    return bool(value)


def _places(name: object, argument: str) -> Iterable[tuple[int, str]]:
    match = _ONE_LAYER.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ArgumentValueError(expected(argument, _GRAMMAR, shown(name)))
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if not 1 <= first <= last <= _MOST_LAYERS:
        raise ArgumentValueError(expected(argument, f"layers from 1 to {_MOST_LAYERS}, the lower first", shown(name)))
    return [(layer, match[3]) for layer in range(first, last + 1)]
