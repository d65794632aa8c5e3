"""Runs a network that does not fit into memory: a block's weights are read just before it runs, and freed after.

Several inputs pass each block before it is freed, each in a forward pass and a thread of its own, so that weights are
read once and every pass is exactly the one it would be alone.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from threading import Barrier, BrokenBarrierError, Lock, Semaphore
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tokendynamics.numerics.resources import give_back
from tokendynamics.pretrained.network import Readable, fill_buffers, put, shapes_of, without_cache
from tokendynamics.pretrained.other_libraries import silenced

T = TypeVar("T")


class StreamedNetwork:
    """An empty network whose blocks are filled while they run.

    Args:
        network: On torch's meta device.
        blocks: Names of its blocks, in the order in which they run.
        weights: Reads its tensors.
        dtype: Number format of the forward pass.
        device: Where it runs.
    """

    def __init__(
        self, network: nn.Module, blocks: Sequence[str], weights: Readable, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.network = copy.deepcopy(network).to(dtype)
        self.blocks = blocks
        self.weights, self.dtype, self.device = weights, dtype, device
        self.table = _token_table(self.network)
        inside = tuple(f"{name}." for name in blocks)
        for name in shapes_of(self.network):
            if not name.startswith(inside) and name != f"{self.table}.weight":
                self._fill(name)
        fill_buffers(self.network, lambda name: device, weights.tables)
        for name in weights.tables:
            stored = self.network.get_buffer(name)
            stored.copy_(weights.read(name).to(stored))
        self.network.eval()

    def run(self, works: Sequence[Callable[[nn.Module], T]]) -> list[T]:
        """Run several pieces of work, each one forward pass of the network, and return what they return.

        Raises:
            Exception: What the first of them raises.
        """
        passes = _Passes(self, len(works))
        with ExitStack() as stack, without_cache(self.network), silenced():
            passes.hook(stack)
            with ThreadPoolExecutor(len(works)) as pool:
                futures = [pool.submit(passes.guarded, partial(work, self.network)) for work in works]
            errors = [error for future in futures if (error := future.exception()) is not None]
            own = [error for error in errors if not isinstance(error, BrokenBarrierError)]
            if errors:
                raise (own or errors)[0]
            return [future.result() for future in futures]

    def fill_block(self, name: str) -> None:
        """Read the weights of one block."""
        for inner in shapes_of(self.network.get_submodule(name)):
            self._fill(f"{name}.{inner}")

    def empty_block(self, name: str) -> None:
        """Free the weights of one block, and give the memory back to the system where it takes it."""
        block = self.network.get_submodule(name)
        for inner, parameter in list(block.named_parameters()):
            put(block, inner, nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False))
        give_back()

    def rows(self, ids: Tensor) -> Tensor:
        """Read rows of the table of tokens."""
        found = self.weights.read_rows(f"{self.table}.weight", ids.tolist())
        return found.to(device=self.device, dtype=self.dtype)

    def _fill(self, name: str) -> None:
        values = self.weights.read(name).to(device=self.device, dtype=self.dtype)
        put(self.network, name, nn.Parameter(values, requires_grad=False))


class _Passes:
    """Several forward passes in step: they enter each block together and leave it together."""

    def __init__(self, streamed: StreamedNetwork, count: int) -> None:
        self.streamed = streamed
        self.left = Counter(streamed.blocks)
        self.now = ""
        self.enter, self.leave = Barrier(count, action=self._fill), Barrier(count, action=self._empty)
        # One pass computes at a time: each would take all cores.
        self.turn, self.table = Semaphore(1), Lock()
        self.there = ""

    def hook(self, stack: ExitStack) -> None:
        network = self.streamed.network
        for name in self.left:
            block = network.get_submodule(name)
            stack.callback(block.register_forward_pre_hook(partial(self._before, name), prepend=True).remove)
            stack.callback(block.register_forward_hook(self._after).remove)
        if self.streamed.table:
            table = network.get_submodule(self.streamed.table)
            stack.callback(table.register_forward_pre_hook(self._only_these_rows, with_kwargs=True).remove)
            stack.callback(table.register_forward_hook(self._without_rows, always_call=True).remove)

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

    def _without_rows(self, module: nn.Module, positional: Any, output: Any) -> None:
        del module, positional, output
        self.table.release()


def _token_table(network: Any) -> str:
    """Return the name of the table of tokens outside the blocks; empty for a network that has none."""
    with suppress(AttributeError, NotImplementedError):
        table = network.get_input_embeddings()
        names: Mapping[nn.Module, str] = {module: name for name, module in network.named_modules()}
        return names[table] if isinstance(table, nn.Embedding) else ""
    return ""
