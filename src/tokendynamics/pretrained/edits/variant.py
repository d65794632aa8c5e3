"""Changes of a network by name: parts, heads and logits scaled, norms and positions removed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import check_open
from tokendynamics.numerics.errors import shown
from tokendynamics.words import plural

PARTS = ("attention", "feed_forward")


SWITCHES = ("norms", "final_norm", "positions")


OF_ATTENTION = {"logits": 1.0, "remedy": 0.0}
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
            least 0. A bias by position stays as it is.
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
        check_open(given, "variant")
        if isinstance(given, Variant):
            return given
        if given is None or isinstance(given, str):
            name = "full" if given is None else given
            if name not in NAMED:
                advice = f"or a mapping of {_GRAMMAR} to numbers"
                raise ArgumentValueError(argument, " or ".join(map(repr, NAMED)), shown(name), advice)
            given = NAMED[name]
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(argument, f"a name or a mapping of {_GRAMMAR} to numbers", shown(given))
        gates: dict[tuple[int, str], float] = {}
        heads: dict[tuple[int, int], float] = {}
        whole: dict[str, float] = {}
        switched: dict[str, bool] = {}
        for name, value in given.items():
            where = f"{argument}[{shown(name)}]"
            if isinstance(value, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ArgumentValueError(where, "a finite number", shown(value))
            number = float(value)
            if name in PARTS:
                whole[name] = number
            elif name in OF_ATTENTION:
                if number < 0 if name == "logits" else number > 0:
                    wanted = "a factor of at least 0" if name == "logits" else "a λ of at most 0"
                    raise ArgumentValueError(where, wanted, shown(number))
                whole[name] = number
            elif name in SWITCHES:
                if number not in (0.0, 1.0):
                    advice = "parts take other numbers"
                    raise ArgumentValueError(where, "0 (without) or 1 (with)", shown(number), advice)
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
        unchanged = dict.fromkeys((*PARTS, *SWITCHES), 1.0) | OF_ATTENTION
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
            raise ArgumentValueError("variant", f"parts of {name}", "feed_forward, which no layer has")
        gates[~exists] = 1.0
        for (layer, part), value in self.gates.items():
            place = PARTS.index(part)
            if not 1 <= layer <= len(exists):
                raise ArgumentValueError("variant", f"layers from 1 to {len(exists)}", f"layer {layer}")
            if not exists[layer - 1, place]:
                raise ArgumentValueError("variant", f"parts of {name}", f"{part} of layer {layer}: none")
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
                raise ArgumentValueError("variant", f"layers from 1 to {len(exists)}", f"layer {layer}")
            count = int(exists[layer - 1].sum())
            if head >= count:
                wanted = f"heads from 0 to {count - 1} of {name}" if count else f"heads of {name} that were found"
                came = f"head {head} of layer {layer}{'' if count else ', in which none was found'}"
                raise ArgumentValueError("variant", wanted, came)
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
        raise ArgumentValueError(argument, _GRAMMAR, shown(name))
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if not 1 <= first <= last <= _MOST_LAYERS:
        raise ArgumentValueError(argument, f"layers from 1 to {_MOST_LAYERS}, the lower first", shown(name))
    return range(first, last + 1), match[3], None if match[4] is None else int(match[4])
