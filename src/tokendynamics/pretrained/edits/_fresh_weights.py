"""Blocks whose weights are drawn anew for every pass: literally, or by the exact law of what they give.

A matrix W of independent N(0, σ²) that is used once, on the rows X, need not be drawn: with Xᵀ = QR the product is
XW = Rᵀ(QᵀW), and QᵀW, a matrix of min(rows, columns of X) rows, has again independent N(0, σ²) entries, because Q has
orthonormal columns (`mathematics` 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained._filling import put
from tokendynamics.pretrained.network import at_least_single, copied_without_values, submodule
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
        raise CheckpointError(name, "a network that transformers initialises", type(network).__name__)
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


Drawing: TypeAlias = Literal["resample", "law"]
"""Whether every matrix is drawn, or what it gives is drawn from its law."""


class FreshBlocks(ExitStack):
    """Hooks that draw the weights of each block just before it runs, and let them go after it.

    Attributes:
        network: The shell.
        drawn_whole: With "law": parameters that are drawn as they are all the same, since they are no matrices of a
            linear map, or their law is not normal.

    Args:
        shell: A network whose parameters outside the blocks have their values, and those in blocks may have none.
        blocks: Names of its blocks, in the order in which they run.
        laws: Of every parameter by name.
        how: See `Drawing`.
        seed: Of all draws; each pass and block has its own generator.
        name: What a message calls the network.

    Raises:
        CheckpointError: Layers that are no modules; a parameter without a law; with "law" a weight that is used more
            than once in a pass.
    """

    def __init__(
        self,
        shell: nn.Module,
        blocks: Sequence[str],
        laws: Mapping[str, InitialLaw],
        how: Drawing,
        seed: int,
        name: str,
    ) -> None:
        super().__init__()
        self.network, self._blocks, self._laws, self._how = shell, tuple(blocks), laws, how
        self._seed, self._name, self._pass = seed, name, 0
        self._maps = {block: self._linear_maps(block) for block in self._blocks}
        parameters = {block: [inner for inner, _ in self._of(block)] for block in self._blocks}
        apart = next((block for block in self._blocks if block.rpartition(".")[0].endswith("}")), None)
        if apart is not None:  # nothing runs there before which weights could be drawn
            came = f"{apart}, whose parts stand in lists beside each other"
            raise CheckpointError(name, "layers that are modules, to draw their weights anew", came)
        lawless = next(
            (f"{one}.{inner}" for one in parameters for inner in parameters[one] if f"{one}.{inner}" not in laws), ""
        )
        if lawless:
            raise CheckpointError(lawless, "a tensor that transformers initialises", "one it does not")
        if how == "law":
            self._check_used_once()
        skipped = {block: set(self._maps[block]) for block in self._blocks}
        self._whole = {
            block: [inner for inner in parameters[block] if inner not in skipped[block]] for block in parameters
        }
        matrices = ((block, inner) for block in dict.fromkeys(self._blocks) for inner in self._whole[block])
        self.drawn_whole = tuple(
            dict.fromkeys(inner for block, inner in matrices if how == "law" and self._laws[f"{block}.{inner}"].varies)
        )
        self._generator = torch.Generator()  # on the processor: the same draws on every device
        self._device = next(
            (parameter.device for parameter in shell.parameters() if not parameter.is_meta), torch.device("cpu")
        )
        self._used: set[str] = set()

    def __enter__(self) -> FreshBlocks:
        super().__enter__()
        for name in dict.fromkeys(self._blocks):
            block = submodule(self.network, name)
            self.callback(block.register_forward_pre_hook(partial(self._draw, name), prepend=True).remove)
            self.callback(block.register_forward_hook(partial(self._free, name)).remove)
            for inner in self._maps[name]:
                module = block.get_submodule(inner.rpartition(".")[0])
                vars(module)["forward"] = partial(self._by_law, module, f"{name}.{inner}")
                self.callback(vars(module).pop, "forward")
        return self

    def begin(self, number: int) -> None:
        """Say which pass comes next: the same numbers are drawn in it whatever came before."""
        self._pass = number
        self._used.clear()

    def _of(self, block: str) -> list[tuple[str, Tensor]]:
        return list(submodule(self.network, block).named_parameters(remove_duplicate=False))

    def _linear_maps(self, block: str) -> list[str]:
        """Return the weights, within a block, of linear maps with a normal law of mean 0; none where all are drawn."""
        if self._how == "resample":
            return []
        names = []
        for inner, module in submodule(self.network, block).named_modules():
            law = self._laws.get(f"{block}.{inner}.weight")
            if is_linear_map(module) and law is not None and law.is_normal:
                names.append(f"{inner}.weight")
        return names

    def _check_used_once(self) -> None:
        twice = next((block for block in self._blocks if self._blocks.count(block) > 1), None)
        shared = [id(tensor) for block in dict.fromkeys(self._blocks) for _, tensor in self._of(block)]
        if twice is not None or len(set(shared)) < len(shared):
            came = f"{twice}, which runs {self._blocks.count(twice)} times" if twice else "parameters of two names"
            wanted = "weights that are used once in a pass"
            raise CheckpointError(self._name, wanted, came, "weights='resample' draws them once a pass")

    def _draw(self, block: str, module: nn.Module, arguments: Any) -> None:
        del arguments
        # A block that runs again keeps its weights for the pass: the same generator draws the same.
        place = self._blocks.index(block)
        # One seed of all three: sums of seeds of other passes would be the same.
        mixed = np.random.SeedSequence((self._seed, self._pass, place)).generate_state(1, np.uint64)[0]
        self._generator.manual_seed(int(mixed >> np.uint64(1)))
        for inner in self._whole[block]:
            empty = module.get_parameter(inner)
            values = drawn(self._laws[f"{block}.{inner}"], empty.shape, self._generator)
            values = values.to(device=self._device, dtype=empty.dtype)
            put(module, inner, values)

    def _free(self, block: str, module: nn.Module, arguments: Any, output: Any) -> None:
        del arguments, output
        for inner in self._whole[block]:
            large = self._laws[f"{block}.{inner}"].varies
            if large:  # constants stay where they are
                empty = torch.empty_like(module.get_parameter(inner), device="meta")
                put(module, inner, empty)

    def _by_law(self, module: nn.Module, name: str, x: Float[Tensor, "*batch reads"]) -> Float[Tensor, "*batch gives"]:
        if name in self._used:
            wanted = "weights that are used once in a pass"
            raise CheckpointError(self._name, wanted, f"{name}, which is used again")
        self._used.add(name)
        reads, gives = _reads(module) or (0, 0)
        rows = x.reshape(-1, reads)
        single = at_least_single(rows)
        factor = rows if len(rows) >= reads else torch.linalg.qr(single.mT, mode="r").R.mT.to(rows)
        std = self._laws[name].std
        normal = torch.empty(factor.shape[-1], gives).normal_(generator=self._generator)
        values = factor @ normal.mul_(std).to(x)
        bias = module.bias
        values = values + bias if isinstance(bias, Tensor) else values
        return values.reshape(*x.shape[:-1], gives)


def of_std(laws: Mapping[str, InitialLaw], shapes: Mapping[str, Sequence[int]], std: float) -> dict[str, InitialLaw]:
    """Return the laws with N(0, std²) for every matrix that is drawn; vectors and constants keep theirs.

    Args:
        laws: By name.
        shapes: By name; a tensor of two axes or more is a matrix, or several.
        std: Standard deviation.

    >>> laws = {"map": InitialLaw(std=0.02), "gain": InitialLaw(constant=1.0)}
    >>> of_std(laws, {"map": (3, 5), "gain": (3,)}, 0.1)["map"]
    InitialLaw(std=0.1, constant=0.0, cut=inf, width=0.0, zero_row=None)
    """
    return {name: InitialLaw(std=std) if law.varies and len(shapes[name]) >= 2 else law for name, law in laws.items()}


def drawn(law: InitialLaw, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return a tensor of a law, float32.

    >>> drawn(InitialLaw(constant=1.0), (2,), torch.Generator()).tolist()
    [1.0, 1.0]
    """
    values = torch.empty(*shape)
    if law.width:
        values.uniform_(-law.width, law.width, generator=generator)
    elif law.std and law.cut < math.inf:
        nn.init.trunc_normal_(values, 0.0, law.std, -law.cut * law.std, law.cut * law.std, generator=generator)
    elif law.std:
        values.normal_(0.0, law.std, generator=generator)
    else:
        values.zero_()
    values += law.constant
    if law.zero_row is not None:
        values[law.zero_row] = 0.0
    return values


def is_linear_map(module: nn.Module) -> bool:
    """Say whether a module is a matrix and a bias: torch's own or transformers' transposed one.

    >>> is_linear_map(nn.Linear(2, 3)), is_linear_map(nn.LayerNorm(2))
    (True, False)
    """
    return _reads(module) is not None


def _reads(module: nn.Module) -> tuple[int, int] | None:
    """Return how many features a linear map reads and gives; None for anything else."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int):  # transformers' own
        rows, columns = module.get_parameter("weight").shape
        return rows, columns
    return None
