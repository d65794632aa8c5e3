"""Builds a base model without allocating it, and fills it tensor by tensor: never twice the memory."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.resources import check_fits, free_memory, give_back
from tokendynamics.pretrained._dispatch import Placement
from tokendynamics.pretrained.other_libraries import refusing, silenced

_BY_NAME = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_HALVES: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "text": ("text_model", "language_model"),
    "vision": ("vision_model", "vision_tower", "visual"),
}
"""What the halves of a network are called inside it."""


Place = Callable[[str], torch.device]
"""Says on which device the tensor of a name belongs."""


@runtime_checkable
class Readable(Protocol):
    """Reads the tensors of a network one at a time."""

    @property
    def tables(self) -> Collection[str]:
        """Names of the tables that are stored: values that are no parameters."""
        ...

    def read(self, name: str) -> Tensor:
        """Return one tensor by its name in the network."""
        ...

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows of one tensor."""
        ...

    def read_beside(self, larger: nn.Module, name: str) -> Tensor | None:
        """Return a tensor that a larger network has and that is stored, such as one of its head; None without."""
        ...


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype called `name`.

    >>> dtype_of("bfloat16")
    torch.bfloat16

    Raises:
        ArgumentTypeError, ArgumentValueError: Neither a text nor a dtype; any other name.
    """
    if not isinstance(name, str | torch.dtype):
        raise ArgumentTypeError(expected("dtype", " or ".join(_BY_NAME), shown(name)))
    dtype = name if isinstance(name, torch.dtype) else _BY_NAME.get(name)
    if dtype is None or dtype not in _BY_NAME.values():
        raise ArgumentValueError(expected("dtype", " or ".join(_BY_NAME), shown(str(name))))
    return dtype


def at_least_single(tensor: torch.Tensor) -> torch.Tensor:
    """Return half-precision values as float32 (no linear algebra exists below it), others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def empty_network(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return the base model (no output head) on torch's meta device, which stores shapes and no values.

    Raises:
        CheckpointError: The configuration describes no network that can be built.
    """
    from transformers import AutoModel

    # The model classes raise whatever an impossible size leads to.
    with refusing(_not_built), silenced(), torch.device("meta"):
        return AutoModel.from_config(config, dtype=dtype, trust_remote_code=False, **_options(config))


def _options(config: Any) -> dict[str, Any]:
    """Choose the fused attention where there is one.

    A pooler is left out: it reads the last state and feeds nothing, and many checkpoints do not have it.
    """
    from transformers import MODEL_MAPPING

    kind = MODEL_MAPPING.get(type(config), None)
    takes = () if not isinstance(kind, type) else inspect.signature(kind).parameters
    pooler = {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}
    return pooler | {"attn_implementation": "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"}


def _not_built(words: str) -> CheckpointError:
    came = f"one that cannot be built ({words})"
    return CheckpointError(expected("config.json", "the configuration of a network", came))


def half_of(network: nn.Module, half: str | None, origin: str) -> tuple[str, nn.Module]:
    """Return the half of a network that was asked for, with its name; the network itself, named "", if it has none.

    Raises:
        ArgumentValueError: It has halves and none was named, or not this one.
    """
    inside, has = "", _halves(network)
    for name in _base_models(network):
        if not has:
            inside, has = f"{name}.", _halves(network.get_submodule(name))
    two = ("encoder" in has and "decoder" in has) or ("text" in has and "vision" in has)
    if half is None and not two:
        return "", network
    if half is None or half not in has or not two:
        wanted = " or ".join(map(repr, has)) if two else "None"
        came = f"{shown(half)} for {origin}, which has {'two halves' if two else 'no halves'}"
        raise ArgumentValueError(expected("half", wanted, came, "name the one to use" if two else "leave it out"))
    name, inner = has[half]
    return f"{inside}{name}", inner


def _halves(network: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """Return the halves of a network by name."""
    return {half: inner for half in _HALVES if (inner := _inner(network, half)) is not None}


def _base_models(network: nn.Module) -> list[str]:
    """Return the names of what a network with a head, or with an adapter, is wrapped around, from the outside in."""
    names: dict[nn.Module, str] = {module: name for name, module in network.named_modules()}
    found: list[str] = []
    inner = getattr(network, "base_model", None)
    while isinstance(inner, nn.Module) and names.get(inner, "") not in ("", *found):
        found.append(names[inner])
        inner = getattr(inner, "base_model", None)
    return found


def _inner(network: nn.Module, half: str) -> tuple[str, nn.Module] | None:
    for name in _HALVES[half]:
        inner = getattr(network, name, None)
        if isinstance(inner, nn.Module) and hasattr(inner, "main_input_name"):
            return name, inner
    return None


def shapes_of(network: nn.Module) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of every parameter by name; a parameter of two names stands there under the first."""
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def fill(network: nn.Module, weights: Readable, dtype: torch.dtype, place: Place) -> nn.Module:
    """Give every parameter of an empty network its values, one at a time where it belongs; return it ready to run.

    The tables that a network computes (of positions, rotations and masks) count as well: a context of a million
    tokens may ask for a table of its square.

    Raises:
        MemoryLimitError: More than there is memory for.
    """
    advice = "stream=True runs it block by block, audit(…) reads one layer"
    check_fits(_bytes_of(network, place), "the network", advice)
    for name in list(shapes_of(network)):
        values = nn.Parameter(weights.read(name).to(device=place(name), dtype=dtype), requires_grad=False)
        for each in _names_of(network, name):
            put(network, each, values)
    fill_buffers(network, place, weights.tables)
    for name in weights.tables:
        table = network.get_buffer(name)
        table.copy_(weights.read(name).to(table))
    return network.eval()


def put(network: nn.Module, name: str, values: nn.Parameter) -> None:
    """Give one parameter its values, which no initialisation changes any more."""
    owner, _, leaf = name.rpartition(".")
    vars(values)["_is_hf_initialized"] = True
    network.get_submodule(owner).register_parameter(leaf, values)


def _names_of(network: nn.Module, name: str) -> list[str]:
    """Return every name of one parameter: tied ones have several."""
    parameter = network.get_parameter(name)
    return [each for each, other in network.named_parameters(remove_duplicate=False) if other is parameter]


def _bytes_of(network: nn.Module, place: Place) -> int:
    """Count the bytes that go into the memory of the machine, not those of its accelerators."""
    tensors = (*network.named_parameters(), *network.named_buffers())
    return sum(each.numel() * each.element_size() for name, each in tensors if place(name).type == "cpu")


def fill_buffers(network: Any, place: Place, stored: Collection[str] = ()) -> None:
    """Compute the tables that no file stores (rotary frequencies, position ids) as transformers itself does.

    Args:
        network: Its empty tables are filled.
        place: Where each belongs.
        stored: Names of those that a file has: they are read later.

    Raises:
        CheckpointError: transformers does not compute one of them: what stood in memory would take its place.
    """
    empty: dict[str, Tensor] = {}
    for prefix, module in network.named_modules():
        own = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        for name, buffer in own.items():
            persistent = name not in module._non_persistent_buffers_set
            whole = f"{prefix}.{name}" if prefix else name
            empty[whole] = torch.full_like(buffer, _unset(buffer.dtype), device=place(whole))
            module.register_buffer(name, empty[whole], persistent=persistent)
        if own:
            network._init_weights(module)
    for name in [name for name in empty if name not in stored and _is_unset(network.get_buffer(name))]:
        # Some tables are computed with the module that holds the blocks (Falcon-H1).
        for outer in _outer_modules(name):
            if _is_unset(network.get_buffer(name)):
                network._init_weights(network.get_submodule(outer))
        if _is_unset(network.get_buffer(name)):
            came = "one that it leaves uninitialised"
            raise CheckpointError(expected(name, "a table that transformers computes", came, "pass the network itself"))


def _outer_modules(name: str) -> list[str]:
    """Return the names of the modules around a tensor, from the inside to the whole network.

    >>> _outer_modules("layers.0.mixer.table")
    ['layers.0', 'layers', '']
    """
    parts = name.split(".")[:-2]
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)] + [""]


def _unset(dtype: torch.dtype) -> float | int | bool:
    """Return a value that no table has, with which an uninitialised one is seen."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _is_unset(buffer: Tensor) -> bool:
    if buffer.is_floating_point() or buffer.is_complex():
        return bool(buffer.isnan().any())
    return buffer.dtype not in (torch.bool, torch.uint8) and bool((buffer == torch.iinfo(buffer.dtype).min).any())


@contextmanager
def without_cache(network: nn.Module) -> Iterator[None]:
    """Let a network's forward passes inside the block keep no keys and values for later tokens."""
    found: dict[int, Any] = {id(each.config): each.config for each in network.modules() if hasattr(each, "config")}
    former = [(config, config.use_cache) for config in found.values() if hasattr(config, "use_cache")]
    try:
        for config, _ in former:
            config.use_cache = False
        yield
    finally:
        for config, was in former:
            config.use_cache = was


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Switch a network to evaluation inside the block; each module's own mode is put back after."""
    former = [module for module in network.modules() if module.training]
    try:
        network.eval()
        yield
    finally:
        for module in former:
            module.training = True


def copied_without_values(network: nn.Module, inside: tuple[str, ...] = ("",)) -> nn.Module:
    """Return a copy whose parameters are empty, or those whose names begin so."""
    named = network.named_parameters(remove_duplicate=False)
    chosen = {id(each): each for name, each in named if name.startswith(inside)}
    empty = {key: nn.Parameter(torch.empty_like(each, device="meta"), False) for key, each in chosen.items()}
    return copy.deepcopy(network, empty)


class Network:
    """The modules of a checkpoint: empty until they are read, or a live network as it stands.

    Attributes:
        config: The transformers configuration; None for a live network without one.
        dtype: Number format of `model`.
        device: Where it is; of one that is dispatched to several, where single blocks are read to.
        parameters: How many it has, each tied one once.
        live: Whether it is a live network, which may change between two looks.
        main_input: Name of what its forward pass reads; None for a network of the user's own.
        streamed: Whether blocks are read while they run.
        inputs: Of a live network, what makes the arguments of a forward pass for a given number of random inputs.
    """

    def __init__(
        self,
        network: nn.Module,
        config: Any,
        dtype: torch.dtype,
        device: torch.device,
        weights: Readable | None,
        stream: bool | None = None,
        placement: Placement | None = None,
        inputs: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.config = config
        self.inputs = inputs
        self.dtype = dtype
        self.device = device
        self.parameters = sum(parameter.numel() for parameter in network.parameters())
        self.live = weights is None
        self.main_input = getattr(network, "main_input_name", None)
        self._network = network
        self._weights = weights
        self._placement = placement
        needed = dtype.itemsize * self.parameters
        large = device.type == "cpu" and needed > free_memory() if stream is None else stream
        self.streamed = self._weights is not None and large and placement is None

    @cached_property
    def _filled(self) -> nn.Module:
        if self._weights is None:
            return self._network
        empty = copy.deepcopy(self._network).to(self.dtype)
        if self._placement is None:
            return fill(empty, self._weights, self.dtype, lambda name: self.device)
        return self._placement.dispatch(fill(empty, self._weights, self.dtype, self._placement.of))

    @property
    def model(self) -> nn.Module:
        """The network, ready to run."""
        return self._filled

    @property
    def stored(self) -> tuple[nn.Module, Readable]:
        """The empty network and what reads its tensors.

        Raises:
            ArgumentValueError: It is a live one.
        """
        if self._weights is None:
            raise ArgumentValueError(expected("spec", "stored weights", "a live network"))
        return self._network, self._weights

    def shell(self, blocks: Sequence[str]) -> nn.Module:
        """Return a copy that has everything but the weights of its blocks, which are empty.

        Raises:
            CheckpointError: A tensor cannot be read.
        """
        inside = tuple(f"{name}." for name in blocks)
        if self._weights is None:
            return copied_without_values(self._network, inside).eval()
        shell: Any = copy.deepcopy(self._network).to(self.dtype)
        for name in shapes_of(shell):
            if not name.startswith(inside):
                values = self._weights.read(name).to(device=self.device, dtype=self.dtype)
                put(shell, name, nn.Parameter(values, requires_grad=False))
        fill_buffers(shell, lambda name: self.device, self._weights.tables)
        for name in self._weights.tables:
            table = shell.get_buffer(name)
            table.copy_(self._weights.read(name).to(table))
        return shell.eval()

    def block(self, name: str, needed: Iterable[str]) -> nn.Module:
        """Return one block with the weights of the modules that are needed, at least in single precision.

        Args:
            name: The block.
            needed: Modules in it.
        """
        block = self._network.get_submodule(name)
        if self._weights is None:
            return block
        block = copy.deepcopy(block)
        inside = tuple(f"{name}.{each}." for each in needed)
        for inner, _ in list(block.named_parameters()):
            if f"{name}.{inner}".startswith(inside):
                values = at_least_single(self._weights.read(f"{name}.{inner}")).to(self.device)
                put(block, inner, nn.Parameter(values, requires_grad=False))
                give_back()  # of a tensor in half precision
        for table in self._weights.tables:
            if table.startswith(inside):
                owner, _, leaf = table.removeprefix(f"{name}.").rpartition(".")
                setattr(block.get_submodule(owner), leaf, at_least_single(self._weights.read(table)).to(self.device))
        return block
