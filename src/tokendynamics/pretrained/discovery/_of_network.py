"""The layout of a live network, found on its own modules with random weights: what its weights are does not matter."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._discover import Discovery, discover
from tokendynamics.pretrained.discovery._small_copy import random_values
from tokendynamics.pretrained.other_libraries import refusing

_SEED = 41
_LARGE = 2**24
"""Entries of a table whose random rows overlap in memory, so that it takes no room."""

_STRIDE = 13
"""By how many entries such rows are apart."""


def discover_in_network(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], name: str, *, decoder: bool = False
) -> Discovery:
    """Find the layout of a live network.

    A part whose weights are zero (a block that was added and not trained yet, a pruned head) shows nothing, and weights
    that happen to be equal show too much. So every parameter is random while the network runs. A network that cannot
    run so, such as one that takes roots of parameters, runs with its own weights, and random ones where they are zero;
    one whose blocks cannot be found so, with its own weights alone.

    Args:
        network: In evaluation mode. Its parameters are the same memory as before, with the same values, when this ends.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        name: What a message calls it.
        decoder: Whether it is the decoder of a network that has an encoder as well.

    Raises:
        LayoutNotFoundError: It has no list of blocks, or does not run on these inputs.
        ArgumentTypeError, ArgumentValueError: The user's function makes no inputs.
    """

    def refusal(words: str) -> LayoutNotFoundError:
        return LayoutNotFoundError(expected(name, "a network that runs on random inputs", words))

    best: Discovery | None = None
    problem: LayoutNotFoundError | None = None
    for values in (_random, _random_where_zero, _own):
        if values is _own and best is not None:
            break
        try:
            with _changed(network, values), refusing(refusal):
                found = discover(network, inputs, found_on="the network itself", decoder=decoder)
        except LayoutNotFoundError as error:
            problem = error
            continue
        if best is None or _parts_found(found) > _parts_found(best):
            best = found
        if _parts_found(best) == 2 * len(best.layout.layers):
            break
    if best is None:
        raise problem or refusal("no layout")
    return best


def _parts_found(found: Discovery) -> int:
    layers = found.layout.layers
    return sum((layer.attention is not None or not layer.attends) + (layer.residual is not None) for layer in layers)


@contextmanager
def _changed(network: nn.Module, values: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Let parameters have other values inside the block; blocks of one kind share theirs, which saves memory."""
    drawn: dict[tuple[Any, ...], Tensor] = {}
    former: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for name, parameter in network.named_parameters():
            if type(parameter.data) is not Tensor or not parameter.is_floating_point() or parameter.is_meta:
                continue
            kind = (re.sub(r"\d+", "*", name), parameter.shape, parameter.dtype)
            if kind not in drawn:
                # By its name, not by its turn: further parameters of a network change nothing for the others.
                generator = torch.Generator().manual_seed(_SEED + zlib.crc32(kind[0].encode()))
                drawn[kind] = _drawn(parameter, generator)
            former.append((parameter, parameter.data))
            parameter.data = values(parameter.data, drawn[kind])
        yield
    finally:
        for parameter, data in former:
            parameter.data = data


def _drawn(parameter: Tensor, generator: torch.Generator) -> Tensor:
    if parameter.ndim != 2 or parameter.numel() < _LARGE:
        return random_values(parameter.shape, generator).to(parameter.dtype)
    rows, columns = parameter.shape
    line = random_values(torch.Size((1, _STRIDE * rows + columns)), generator)[0].to(parameter.dtype)
    return (line * (line.numel() / columns) ** 0.5).as_strided((rows, columns), (_STRIDE, 1))


def _random(own: Tensor, drawn: Tensor) -> Tensor:
    del own
    return drawn


def _own(own: Tensor, drawn: Tensor) -> Tensor:
    del drawn
    return own


def _random_where_zero(own: Tensor, drawn: Tensor) -> Tensor:
    zero = own == 0
    return torch.where(zero, drawn, own) if bool(zero.any()) else own
