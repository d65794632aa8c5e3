"""How transformers itself initializes each tensor of a network, read off without allocating any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.network import copied_without_values
from tokendynamics.pretrained.other_libraries import silenced


@dataclass(frozen=True)
class InitialLaw:
    """How an untrained tensor is drawn: N(mean, std²), cut off or not; uniform; or a constant. One row may be zero.

    Attributes:
        std: Standard deviation; 0 for a constant.
        constant: The constant, or the mean.
        cut: Largest distance from the mean in standard deviations; infinite without.
        width: Half the width of a uniform law; 0 for the others.
        zero_row: A row that is zero, of a padding token.
    """

    std: float = 0.0
    constant: float = 0.0
    cut: float = math.inf
    width: float = 0.0
    zero_row: int | None = None

    @property
    def varies(self) -> bool:
        """Whether two draws differ."""
        return self.std > 0 or self.width > 0

    @property
    def is_normal(self) -> bool:
        """Whether all entries are independent N(0, std²)."""
        return self.std > 0 and self.constant == 0 and self.cut == math.inf and self.zero_row is None


def initial_laws(network: Any, prefix: str = "") -> Mapping[str, InitialLaw]:
    """Return the law of every parameter that the network's own initialization touches, by name.

    Args:
        network: On torch's meta device.
        prefix: Name of the half of it that is needed, whose names are returned; empty for the whole.
    """
    half = network.get_submodule(prefix)
    parameters = {id(parameter): name for name, parameter in half.named_parameters()}
    laws: dict[str, InitialLaw] = {}

    def note(tensor: Tensor, law: InitialLaw) -> None:
        base = tensor if tensor._base is None else tensor._base
        name = parameters.get(id(base))
        if name is None:
            return
        if base is tensor:
            laws[name] = law
        elif law == InitialLaw() and base.ndim == 2 and tensor.numel() == base.shape[1]:
            laws[name] = replace(laws.get(name, law), zero_row=int(tensor.storage_offset()) // base.shape[1])

    with _noting(note), silenced():
        _initialize(network, network._init_weights)
    return laws


def laws_of(network: Any, name: str) -> Mapping[str, InitialLaw]:
    """Return the laws of a network that has values, which stay as they are.

    Args:
        network: Of transformers.
        name: What a message calls it.

    Raises:
        CheckpointError: A network of the user's own.
    """
    if not hasattr(network, "_init_weights"):
        raise CheckpointError(expected(name, "a network that transformers initialises", type(network).__name__))
    return initial_laws(copied_without_values(network))


def _initialize(module: Any, initialize: Callable[[Any], None]) -> None:
    """Go through the modules as transformers does: inner ones first, so that an outer one has the last word."""
    for child in module.children():
        _initialize(child, getattr(child, "_init_weights", initialize))
    initialize(module)


@contextmanager
def _noting(note: Callable[[Tensor, InitialLaw], None]) -> Iterator[None]:
    """Replace transformers' functions of initialization by ones that note what they would have drawn."""
    from transformers import initialization as functions

    def fans(tensor: Tensor) -> tuple[int, int]:
        rest = math.prod(tensor.shape[2:])
        return tensor.shape[1] * rest, tensor.shape[0] * rest

    def xavier(tensor: Tensor, gain: float = 1.0, **_: Any) -> Tensor:
        return noted(tensor, InitialLaw(width=gain * math.sqrt(6 / sum(fans(tensor)))))

    def noted(tensor: Tensor, law: InitialLaw) -> Tensor:
        note(tensor, law)
        return tensor

    def cut(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, **_: Any) -> Tensor:
        return noted(tensor, InitialLaw(std, mean, cut=min(abs(a), abs(b)) / std if std else math.inf))

    def uniform(tensor: Tensor, a: float = 0.0, b: float = 1.0, **_: Any) -> Tensor:
        return noted(tensor, InitialLaw(constant=(a + b) / 2, width=(b - a) / 2))

    replaced: dict[str, Callable[..., Any]] = {
        "normal_": lambda tensor, mean=0.0, std=1.0, **_: noted(tensor, InitialLaw(std, mean)),
        "trunc_normal_": cut,
        "uniform_": uniform,
        "constant_": lambda tensor, val: noted(tensor, InitialLaw(constant=float(val))),
        "ones_": lambda tensor: noted(tensor, InitialLaw(constant=1.0)),
        "zeros_": lambda tensor: noted(tensor, InitialLaw()),
        "xavier_uniform_": xavier,
        "xavier_normal_": lambda tensor, gain=1.0, **_: noted(
            tensor, InitialLaw(std=gain * math.sqrt(2 / sum(fans(tensor))))
        ),
        "copy_": lambda tensor, other: tensor,
    }
    former = {name: getattr(functions, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(functions, name, function)
        yield
    finally:
        for name, function in former.items():
            setattr(functions, name, function)
