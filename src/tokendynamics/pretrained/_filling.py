"""How weights come into an empty network: one tensor at a time where it belongs, never twice the memory.

A network that does not fit into memory is streamed: a block's weights are read just before it runs, and freed after.
Several inputs pass each block before it is freed, each in a forward pass and a thread of its own, so that weights are
read once and every pass is exactly the one it would be alone.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from threading import Barrier, BrokenBarrierError, Lock, Semaphore
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.numerics.resources import check_fits, free_memory, give_back
from tokendynamics.pretrained._dispatch import Placement
from tokendynamics.pretrained._torch_attention import apart
from tokendynamics.pretrained.discovery._random_inputs import grid_of, main_input_of
from tokendynamics.pretrained.network import at_least_single, copied_without_values, submodule, without_cache
from tokendynamics.pretrained.other_libraries import silenced

T = TypeVar("T")

Place = Callable[[str], torch.device]
"""Says on which device the tensor of a name belongs."""


@runtime_checkable
class TensorReader(Protocol):
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


def shapes_of(network: nn.Module) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of every parameter by name; a parameter of two names stands there under the first."""
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def put(network: nn.Module, name: str, values: Tensor, *further: str) -> None:
    """Give one parameter its values, under all of its names; no initialisation changes them any more."""
    parameter = nn.Parameter(values, requires_grad=False)
    vars(parameter)["_is_hf_initialized"] = True
    for path in (name, *further):
        owner, _, leaf = path.rpartition(".")
        network.get_submodule(owner).register_parameter(leaf, parameter)


def fill(network: nn.Module, weights: TensorReader, place: Place, but: tuple[str, ...] = ()) -> nn.Module:
    """Give every parameter and table of an empty network its values, in the format that it has; return it to run.

    Args:
        network: On torch's meta device, at least where it is filled.
        weights: Reads them.
        place: Where each belongs.
        but: Beginnings of the names of parameters that stay empty.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, *further in names.values():
        if not name.startswith(but):
            dtype = network.get_parameter(name).dtype
            put(network, name, weights.read(name).to(device=place(name), dtype=dtype), *further)
    fill_buffers(network, place, weights.tables)
    for name in weights.tables:
        table = network.get_buffer(name)
        table.copy_(weights.read(name).to(table))
    return network.eval()


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
        buffers = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        for name, buffer in buffers.items():
            persistent = name not in module._non_persistent_buffers_set
            whole = f"{prefix}.{name}" if prefix else name
            empty[whole] = torch.full_like(buffer, _unset(buffer.dtype), device=place(whole))
            module.register_buffer(name, empty[whole], persistent=persistent)
        if buffers:
            network._init_weights(module)
    for name in [name for name in empty if name not in stored and _is_unset(network.get_buffer(name))]:
        # Some tables are computed with a module around theirs, such as the one that holds the blocks (Falcon-H1).
        around = name.split(".")[:-2]
        for count in range(len(around), -1, -1):
            if _is_unset(network.get_buffer(name)):
                network._init_weights(network.get_submodule(".".join(around[:count])))
        if _is_unset(network.get_buffer(name)):
            came = "one that it leaves uninitialised"
            raise CheckpointError(name, "a table that transformers computes", came, "pass the network itself")


def _unset(dtype: torch.dtype) -> float | int | bool:
    """Return a value that no table has, with which an uninitialised one is seen."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _is_unset(buffer: Tensor) -> bool:
    if buffer.is_floating_point() or buffer.is_complex():
        return bool(buffer.isnan().any())
    return buffer.dtype not in (torch.bool, torch.uint8) and bool((buffer == _unset(buffer.dtype)).any())


class Network:
    """The modules of a checkpoint: empty until they are read, or a live network as it stands.

    Attributes:
        config: The transformers configuration; None for a live network without one.
        dtype: Number format of `model`.
        device: Where it is; of one that is dispatched to several, where single blocks are read to.
        parameters: How many it has, each tied one once.
        live: Whether it is a live network, which may change between two looks.
        main_input: Name of what its forward pass reads; None for a network of the user's own.
        grid: Name of the argument that says how many patches each picture has; None without.
        streamed: Whether blocks are read while they run.
        inputs: Of a live network, what makes the arguments of a forward pass for a given number of random inputs.
    """

    def __init__(
        self,
        network: nn.Module,
        config: Any,
        dtype: torch.dtype,
        device: torch.device,
        weights: TensorReader | None,
        stream: bool | None = None,
        placement: Placement | None = None,
        inputs: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.config, self.dtype, self.device, self.inputs = config, dtype, device, inputs
        self.parameters = sum(parameter.numel() for parameter in network.parameters())
        self.live = weights is None
        self.main_input, self.grid = main_input_of(network), grid_of(network)
        self._network, self._weights, self._placement = network, weights, placement
        needed = dtype.itemsize * self.parameters
        large = device.type == "cpu" and needed > free_memory() if stream is None else stream
        self.streamed = self._weights is not None and large and placement is None

    @cached_property
    def model(self) -> nn.Module:
        """The network, ready to run.

        Raises:
            CheckpointError: A tensor cannot be read.
            MemoryLimitError: More than there is memory for. The tables that a network computes count as well: a context
                of a million tokens may ask for a table of its square.
        """
        if self._weights is None:
            return self._network
        empty = copy.deepcopy(self._network)
        place = self._here if self._placement is None else self._placement.of
        tensors = (*empty.named_parameters(), *empty.named_buffers())
        in_memory = sum(tensor.numel() * tensor.element_size() for name, tensor in tensors if place(name).type == "cpu")
        check_fits(in_memory, "the network", "stream=True runs it block by block, audit(…) reads one layer")
        filled = fill(empty, self._weights, place)
        return filled if self._placement is None else self._placement.dispatch(filled)

    def _here(self, name: str) -> torch.device:
        del name
        return self.device

    @property
    def stored(self) -> tuple[nn.Module, TensorReader]:
        """The empty network and what reads its tensors.

        Raises:
            ArgumentValueError: It is a live one.
        """
        if self._weights is None:
            raise ArgumentValueError("spec", "stored weights", "a live network")
        return self._network, self._weights

    def shell(self, blocks: Sequence[str]) -> nn.Module:
        """Return a copy that has everything but the weights of its blocks, which are empty.

        Raises:
            CheckpointError: A tensor cannot be read.
        """
        inside = tuple(f"{name}." for name in blocks)
        if self._weights is None:
            return copied_without_values(self._network, inside).eval()
        return fill(copy.deepcopy(self._network), self._weights, self._here, inside)

    def block(self, name: str, needed: Iterable[str]) -> nn.Module:
        """Return one block with the weights of the modules that are needed, at least in single precision.

        Args:
            name: The block.
            needed: Modules in it.
        """
        block = submodule(self._network, name)
        if self._weights is None:
            return block
        block = copy.deepcopy(block)
        inside = tuple(f"{name}.{part}." for part in needed)
        for inner in shapes_of(block):
            if f"{name}.{inner}".startswith(inside):
                put(block, inner, at_least_single(self._weights.read(f"{name}.{inner}")).to(self.device))
                give_back()  # of a tensor in half precision
        for table in self._weights.tables:
            if table.startswith(inside):
                owner, _, leaf = table.removeprefix(f"{name}.").rpartition(".")
                setattr(block.get_submodule(owner), leaf, at_least_single(self._weights.read(table)).to(self.device))
        return block


class StreamedNetwork:
    """An empty network whose blocks are filled while they run.

    Attributes:
        network: With everything but its blocks, and the table of tokens, of which only rows are read.
        blocks: Names of its blocks, in the order in which they run.
        table: Name of the table of tokens outside the blocks; empty for a network that has none.

    Args:
        network: On torch's meta device.
        blocks: Names of its blocks.
        weights: Reads its tensors.
        dtype: Number format of the forward pass.
        device: Where it runs.
    """

    def __init__(
        self, network: nn.Module, blocks: Sequence[str], weights: TensorReader, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.network: Any = copy.deepcopy(network)
        self.blocks, self.table = blocks, ""
        self._weights, self._dtype, self._device = weights, dtype, device
        with suppress(AttributeError, NotImplementedError):
            table = self.network.get_input_embeddings()
            names: Mapping[nn.Module, str] = {module: name for name, module in self.network.named_modules()}
            self.table = names[table] if isinstance(table, nn.Embedding) else ""
        inside = tuple(f"{name}." for name in blocks)
        fill(self.network, weights, lambda name: device, (*inside, f"{self.table}.weight"))

    def run(self, works: Sequence[Callable[[nn.Module], T]]) -> list[T]:
        """Run several pieces of work, each one forward pass of the network, and return what they return.

        Raises:
            Exception: What the first of them raises.
        """
        with _Passes(self, len(works)) as passes, ThreadPoolExecutor(len(works)) as pool:
            futures = [pool.submit(passes.guarded, partial(work, self.network)) for work in works]
            errors = [error for future in futures if (error := future.exception()) is not None]
            causes = [error for error in errors if not isinstance(error, BrokenBarrierError)]
            if errors:
                raise (causes or errors)[0]
            return [future.result() for future in futures]

    def fill_block(self, name: str) -> None:
        """Read the weights of one block."""
        block = self.network.get_submodule(name)
        for inner in shapes_of(block):
            dtype = block.get_parameter(inner).dtype
            put(block, inner, self._weights.read(f"{name}.{inner}").to(device=self._device, dtype=dtype))

    def empty_block(self, name: str) -> None:
        """Free the weights of one block, and give the memory back to the system where it takes it."""
        block = self.network.get_submodule(name)
        for inner, parameter in list(block.named_parameters()):
            put(block, inner, torch.empty_like(parameter, device="meta"))
        give_back()

    def rows(self, ids: Tensor) -> Tensor:
        """Read rows of the table of tokens."""
        rows = self._weights.read_rows(f"{self.table}.weight", ids.tolist())
        return rows.to(device=self._device, dtype=self._dtype)


class _Passes(ExitStack):
    """Several forward passes in step: they enter each block together and leave it together."""

    def __init__(self, streamed: StreamedNetwork, count: int) -> None:
        super().__init__()
        self.streamed = streamed
        self.left = Counter(streamed.blocks)
        self.now = self.there = ""
        self.enter, self.leave = Barrier(count, action=self._fill), Barrier(count, action=self._empty)
        # One pass computes at a time: each would take all cores.
        self.turn, self.table = Semaphore(1), Lock()
        network = streamed.network
        self.enter_context(without_cache(network))
        self.enter_context(apart(network))
        self.enter_context(silenced())
        for name in self.left:
            block = network.get_submodule(name)
            self.callback(block.register_forward_pre_hook(partial(self._before, name), prepend=True).remove)
            self.callback(block.register_forward_hook(self._after).remove)
        if streamed.table:
            table = network.get_submodule(streamed.table)
            self.callback(table.register_forward_pre_hook(self._only_these_rows, with_kwargs=True).remove)
            self.callback(table.register_forward_hook(lambda *_: self.table.release(), always_call=True).remove)

    def guarded(self, work: Callable[[], T]) -> T:
        """Do one piece of work; if it fails, the others do not wait for it."""
        try:
            return work()
        except BaseException:
            self.enter.abort()
            self.leave.abort()
            self.turn.release()
            raise

    def _before(self, name: str, module: nn.Module, arguments: Any) -> None:
        del module, arguments
        self.now = name
        self.enter.wait()
        self.turn.acquire()

    def _after(self, module: nn.Module, arguments: Any, output: Any) -> None:
        del module, arguments, output
        self.turn.release()
        self.leave.wait()

    def _fill(self) -> None:
        if self.there != self.now:
            self.streamed.fill_block(self.now)
            self.there = self.now

    def _empty(self) -> None:
        self.left[self.now] -= 1
        if not self.left[self.now]:  # a block that runs again stays
            self.streamed.empty_block(self.now)
            self.there = ""

    def _only_these_rows(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.table.acquire()
        ids = positional[0] if positional else named["input"]
        used, places = ids.unique(return_inverse=True)
        module.register_parameter("weight", nn.Parameter(self.streamed.rows(used), requires_grad=False))
        return (places, *positional[1:]) if positional else (), {} if positional else {**named, "input": places}
