"""Random inputs of a network: token ids, pictures or sounds, in the sizes that its configuration or a trial says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.packs import ids_in

MakeInputs: TypeAlias = Callable[[int], Mapping[str, Tensor]]
"""Makes the arguments of a forward pass for a given number of inputs."""

_TOKENS = 7
_FEWEST = 4
"""Tokens of a block that tell as much as more of them."""

_GRID = 4
_SIDES = (32, 64, 128, 224, 384)
_FRAMES = (32, 64, 128, 512)
_SAMPLES = (640, 2560, 10240, 40960)
"""What is tried, from the smallest, where a configuration does not say it."""

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "not_equal", "isin"))
_SAME_IDS = frozenset({
    "clone", "contiguous", "detach", "expand", "flatten", "flip", "long", "int", "to", "view", "reshape", "roll",
    "squeeze", "unsqueeze", "transpose", "cat", "stack", "getitem",
})  # fmt: skip
_OF_EACH_ID = frozenset({
    "add", "sub", "subtract", "rsub", "radd", "mul", "multiply", "rmul", "floor_divide", "floordiv", "div", "divide",
    "truediv", "true_divide", "remainder", "mod", "fmod", "bitwise_and", "and", "bitwise_or", "or", "xor",
    "bitwise_xor", "bitwise_right_shift", "rshift", "bitwise_left_shift", "lshift", "abs", "neg", "clamp", "clip",
    "floor", "float", "double", "maximum", "minimum",
})  # fmt: skip
"""Functions that compare numbers, those that give token ids again in another place, shape or format, and those that
compute something of each."""

_IDS = 2**18
"""Ids of which what is computed is known: more than vocabularies have."""

_MOST_COMPARED = 16
"""Token ids that a network is tried with; more numbers than these in one comparison are no list of tokens."""

_GIVE_INPUTS = "pass the network itself with inputs=, a function that makes the arguments for a given number of inputs"


def random_inputs(network: Any, seed: int = 1) -> MakeInputs:
    """Return what makes random inputs of a given number for a network that reads token ids, an image, or sounds.

    Where its configuration leaves a size or a shape open, the first is taken on which the network runs with several
    tokens.

    Raises:
        LayoutNotFoundError: It reads something else.
    """
    config = getattr(network, "config", None)
    if getattr(network, "main_input_name", None) is None or config is None:
        advice = "pass inputs=, an example of the arguments of its forward pass, to td.load or td.Monitor"
        wanted = "a transformers network, or an example of its input"
        raise LayoutNotFoundError(expected(type(network).__name__, wanted, "code of your own alone", advice))
    name = main_input_of(network)

    @cache
    def chosen() -> MakeInputs:
        grid = grid_of(network)
        kind = _KINDS.get(name or "")
        candidates = [] if name is None or kind is None else list(kind(_Sizes(network, seed), name, grid))
        if not candidates:
            problem = f"its inputs are {name}, which are neither token ids nor images nor sounds"
            raise LayoutNotFoundError(f"{problem}; {_GIVE_INPUTS}")
        if len(candidates) == 1:
            return candidates[0]
        ran = [(make, tokens) for make in candidates if (tokens := _tokens_with(network, make)) is not None]
        several = (make for make, tokens in ran if tokens >= _FEWEST)
        return next(several, ran[-1][0] if ran else candidates[-1])

    def make(count: int) -> Mapping[str, Tensor]:
        with silenced():
            return chosen()(count)

    return make


def main_input_of(network: Any) -> str | None:
    """Return the name of what a network reads; None for one of the user's own.

    A tower for images may call it token ids, as every network of transformers does that says nothing else.
    """
    named = getattr(network, "main_input_name", None)
    named = named[0] if isinstance(named, list | tuple) else named  # OneFormer reads an image and a task
    names = inspect.signature(network.forward).parameters
    known = [name for name in names if name in _KINDS]
    return named if named is None or named in names or not known else known[0]


def grid_of(network: nn.Module) -> str | None:
    """Return the argument that says how many patches each picture has; None for a network without one."""
    return next((name for name in inspect.signature(network.forward).parameters if name.endswith("grid_thw")), None)


def _tokens_with(network: nn.Module, make: MakeInputs) -> int | None:
    """Return how many tokens the last member of a list holds for random inputs; None where it does not run."""
    lengths: list[int] = []

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        del module, given
        states = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(states, Tensor) and states.ndim in (2, 3, 4):
            shape = states.shape
            # A map has its channels before or behind its rows and columns, and more of them than places in a row.
            on_map = min(prod(shape[1:3]), prod(shape[2:])) if states.ndim == 4 else 0
            lengths.append({2: len(states) // 2, 3: shape[1], 4: on_map}[states.ndim])

    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    handles = [member.register_forward_hook(keep) for members in lists for member in members]
    try:
        with torch.no_grad():
            network(**make(2))
    except Exception:  # what a network raises that reads another size
        return None
    finally:
        for handle in handles:
            handle.remove()
    return lengths[-1] if lengths else 0


class _Sizes:
    """Sizes of a network's inputs, and numbers in them.

    Args:
        network: With a configuration.
        seed: Of the numbers.
    """

    def __init__(self, network: Any, seed: int) -> None:
        self._network, self._seed = network, seed
        text = getattr(network.config, "get_text_config", lambda: network.config)()
        self._configs = (network.config, text)

    def of(self, *names: str) -> Any:
        """Return the first of several settings that is stated; None where none is."""
        values = (getattr(config, name, None) for config in self._configs for name in names)
        return next((value for value in values if value is not None), None)

    def ids(self, vocabulary: int, *shape: int) -> Tensor:
        """Return token ids, none of which stands for an image or a sound."""
        ids = torch.randint(2, vocabulary - 1, shape, generator=self._generator())
        others = {
            value
            for config in self._configs
            for name, value in vars(config).items()
            if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        }
        ordinary = next((number for number in range(2, vocabulary) if number not in others), 2)
        ids[torch.isin(ids, torch.tensor(sorted(others), dtype=ids.dtype))] = ordinary
        return ids.to(next(self._network.parameters()).device)

    def real(self, *shape: int) -> Tensor:
        """Return normal numbers."""
        return torch.randn(shape, generator=self._generator()).to(next(self._network.parameters()))

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)


def _ids(sizes: _Sizes, name: str, grid: str | None) -> Iterator[MakeInputs]:
    del grid
    vocabulary = sizes.of("vocab_size") or 100  # one that hashes characters states none
    yield lambda count: {name: sizes.ids(vocabulary, count, _TOKENS)}


def _pictures(sizes: _Sizes, name: str, grid: str | None) -> Iterator[MakeInputs]:
    if grid is not None:
        yield from _patches(sizes, name, grid)
        return
    channels, stated = sizes.of("num_channels", "in_channels", "in_chans") or 3, sizes.of("image_size")
    frames = sizes.of("num_frames")
    for size in _SIDES if stated is None else (stated,):
        sides = (size, size) if isinstance(size, int) else tuple(size)
        for before in ((channels,),) if frames is None else ((frames, channels), (channels,)):
            yield _drawn(sizes, name, (*before, *sides))


def _drawn(sizes: _Sizes, name: str, shape: tuple[int, ...]) -> MakeInputs:
    return lambda count: {name: sizes.real(count, *shape)}


def _patches(sizes: _Sizes, name: str, grid: str) -> Iterator[MakeInputs]:
    """Yield patches of pictures side by side, (picture and patch, …), beside how many each picture has."""
    channels, side = sizes.of("in_channels", "num_channels", "in_chans") or 3, sizes.of("patch_size")
    deep, merged = sizes.of("temporal_patch_size") or 1, sizes.of("spatial_merge_size") or 1
    across = _GRID * max(1, merged)
    for shape in ((channels * deep * side * side,), (channels * side * side,), (channels, side, side)):

        def make(count: int, shape: tuple[int, ...] = shape) -> Mapping[str, Tensor]:
            return {
                name: sizes.real(count * across * across, *shape),
                grid: torch.tensor([[1, across, across]] * count, device=sizes.real(1).device),
            }

        yield make


def _sounds(sizes: _Sizes, name: str, grid: str | None) -> Iterator[MakeInputs]:
    del grid
    bins = sizes.of(
        "num_mel_bins", "input_feat_per_channel", "feature_size", "input_size", "feature_projection_input_dim"
    )
    most = sizes.of("max_source_positions")
    if bins is not None and most is not None:
        yield _drawn(sizes, name, (bins, 2 * most))
        return
    for frames in _FRAMES:
        for width in (80, 128) if bins is None else (bins,):
            yield _drawn(sizes, name, (frames, width))
            yield _drawn(sizes, name, (width, frames))


def _waves(sizes: _Sizes, name: str, grid: str | None) -> Iterator[MakeInputs]:
    del grid
    bins, length = sizes.of("num_mel_bins"), sizes.of("max_length")
    if bins is not None and length is not None:
        yield _drawn(sizes, name, (length, bins))
    for samples in _SAMPLES:
        yield _drawn(sizes, name, (samples,))
        yield _drawn(sizes, name, (1, samples))


def _states(sizes: _Sizes, name: str, grid: str | None) -> Iterator[MakeInputs]:
    if grid is not None:
        yield from _patches(sizes, name, grid)
    elif sizes.of("hidden_size", "d_model") is not None:
        yield _drawn(sizes, name, (_TOKENS, sizes.of("hidden_size", "d_model")))


def _series(sizes: _Sizes, name: str, grid: str | None) -> Iterator[MakeInputs]:
    del grid
    length, channels = sizes.of("context_length"), sizes.of("num_input_channels", "input_size")
    if length is not None and channels is not None:
        yield _drawn(sizes, name, (length, channels))


_KINDS: Mapping[str, Callable[[_Sizes, str, str | None], Iterable[MakeInputs]]] = {
    "input_ids": _ids,
    "pixel_values": _pictures,
    "input_features": _sounds,
    "audio_mel": _sounds,
    "input_values": _waves,
    "inputs_embeds": _states,
    "hidden_states": _states,
    "past_values": _series,
}
"""What arguments of these names hold."""


@dataclass
class _Noted:
    """What a network does with the token ids of one argument.

    Attributes:
        ids: The argument.
        compared: Ids at which what is compared changes, and one for each entry of a table that ids are looked up in.
        vocabulary: Rows of the smallest embedding that they are looked up in; 0 before the first.
    """

    ids: Tensor
    compared: dict[int, None] = field(default_factory=dict)
    vocabulary: int = 0


class Comparisons(TorchFunctionMode):
    """Keeps the token ids that a network tells from others while it runs inside the block, such as a separator.

    What is computed of each id by itself (a difference, a remainder) is computed of every id as well.

    Args:
        arguments: Of its forward pass; token ids are whole numbers (input, token), which it may be given a copy of.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        whole = {name: ids for name in arguments if (ids := ids_in({name: arguments[name]})) is not None}
        self._noted = {name: _Noted(ids) for name, ids in whole.items()}
        # Tensors of ids by their identity: the tensor itself, its argument, and what was computed of every id.
        self._ids: dict[int, tuple[Tensor, str, Tensor | None]] = {}

    @property
    def argument(self) -> str | None:
        """Return the name of the token ids: those called so, or those with the largest vocabulary; None without."""
        names = [name for name, noted in self._noted.items() if noted.vocabulary]
        largest = max(names, key=lambda name: self._noted[name].vocabulary, default=None)
        return "input_ids" if "input_ids" in names else largest

    @property
    def vocabulary(self) -> int:
        """Return the rows of the smallest embedding that the token ids are looked up in; 0 without."""
        return 0 if self.argument is None else self._noted[self.argument].vocabulary

    @property
    def special(self) -> list[int]:
        """Return the compared numbers that are token ids."""
        compared = {} if self.argument is None else self._noted[self.argument].compared
        return [number for number in compared if 0 <= number < self.vocabulary][:_MOST_COMPARED]

    def _known(self, value: Any) -> tuple[str, Tensor | None] | None:
        """Return whose ids a value is, and what was computed of every id, or None for the ids themselves."""
        if id(value) in self._ids:
            return self._ids[id(value)][1:]
        for name, noted in self._noted.items() if isinstance(value, Tensor) else ():
            first = noted.ids
            alike = (value.dtype, value.shape, value.device, value.layout) == (
                *(first.dtype, first.shape, first.device, first.layout),
            )
            if alike and torch.equal(value, first):
                self._ids[id(value)] = value, name, None
                return name, None
        return None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function and note what it says of token ids."""
        del types
        output, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "").strip("_")
        given = [*args, *(kwargs or {}).values()]
        given += [value for several in given if isinstance(several, tuple | list) for value in several]
        known = next((known for value in given if (known := self._known(value)) is not None), None)
        if known is None:
            return output
        argument, computed = known
        noted, others = self._noted[argument], [value for value in given if id(value) not in self._ids]
        if name in _COMPARISONS and computed is None:
            noted.compared |= dict.fromkeys(_compared(others))
        elif name in _COMPARISONS:
            noted.compared |= dict.fromkeys(_changes(self._of_every_id(func, args, kwargs)))
        elif name == "embedding":
            rows = [len(value) for value in others if isinstance(value, Tensor) and value.is_floating_point()]
            noted.vocabulary = min([*rows, noted.vocabulary or max(rows, default=0)])
        if name == "getitem" and id(args[0]) not in self._ids:
            table = args[0]
            if isinstance(table, Tensor) and table.ndim == 1 and not table.is_floating_point():
                entries = [int((table == value).nonzero()[0]) for value in table.unique()[:_MOST_COMPARED]]
                noted.compared |= dict.fromkeys(entries if computed is None else _first(computed, entries))
        elif isinstance(output, Tensor) and name in _SAME_IDS and not output.is_floating_point():
            self._ids[id(output)] = output, argument, computed
        elif isinstance(output, Tensor) and name in _OF_EACH_ID and output.dtype != torch.bool:
            of_every_id = self._of_every_id(func, args, kwargs)
            if of_every_id is not None:
                self._ids[id(output)] = output, argument, of_every_id
        return output

    def _of_every_id(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """Return what a function of each id by itself makes of every id; None where it is no such function."""

        def every(value: Any) -> Any:
            if id(value) not in self._ids:
                return value
            computed = self._ids[id(value)][2]
            return torch.arange(_IDS, device=value.device) if computed is None else computed

        try:
            output = func(*map(every, args), **{name: every(value) for name, value in (kwargs or {}).items()})
        except Exception:  # such as a sum with a tensor that has an entry for each token
            return None
        return output if isinstance(output, Tensor) and output.shape == (_IDS,) else None


def _compared(others: Iterable[Any]) -> list[int]:
    """Return the numbers that ids are compared with, and their neighbours."""
    numbers: list[float] = []
    for value in others:
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers.append(value)
        elif isinstance(value, Tensor) and value.numel() <= _MOST_COMPARED and value.dtype != torch.bool:
            numbers += value.flatten().tolist()
    return [int(number) + step for number in numbers for step in (0, -1, 1)]


def _changes(of_every_id: Tensor | None) -> list[int]:
    """Return the first ids before and behind which what a comparison says of every id changes.

    >>> _changes(torch.arange(9) // 2 == 3)
    [5, 6, 7, 8]
    """
    if of_every_id is None:
        return []
    before = (of_every_id[1:] != of_every_id[:-1]).nonzero().flatten()[:_MOST_COMPARED]
    return torch.stack((before, before + 1), dim=1).flatten().unique().tolist()


def _first(of_every_id: Tensor, entries: Iterable[int]) -> list[int]:
    """Return the first id of which each of some numbers was computed."""
    places = ((of_every_id == entry).nonzero().flatten() for entry in entries)
    return [int(several[0]) for several in places if len(several)]


def holding(special: Iterable[int], ids: Tensor, vocabulary: int) -> tuple[Tensor, list[tuple[int, int, int]]]:
    """Return prompts that hold special token ids, and pairs of them that begin alike: their rows, and how they begin.

    Args:
        special: The ids, each of which stands first, in the middle and last in prompts that hold no other.
        ids: Of one prompt, (token,).
        vocabulary: How many ids there are.

    >>> rows, pairs = holding([0], torch.tensor([0, 4, 5]), 9)
    >>> rows.tolist(), pairs
    ([[1, 4, 5], [0, 4, 5], [0, 4, 1], [1, 0, 5], [1, 0, 1], [1, 4, 0]], [(1, 2, 2), (3, 4, 2), (0, 3, 1), (0, 5, 2)])
    """
    several, tokens = list(special), len(ids)
    ordinary = [number for number in range(vocabulary) if number not in several][:2] or [0]
    base = ids.clone()
    base[torch.isin(ids, ids.new_tensor(several))] = ordinary[0]
    rows, pairs = [base], list[tuple[int, int, int]]()
    for number in several:
        first = len(rows)
        for place in (0, tokens // 2):
            row = base.clone()
            row[place] = number
            other = row.clone()
            other[-1] = next((one for one in ordinary if one != int(row[-1])), 0)
            pairs.append((len(rows), len(rows) + 1, tokens - 1))
            rows += [row, other]
        row = base.clone()
        row[-1] = number
        pairs += [(0, first + 2, tokens // 2), (0, len(rows), tokens - 1)]
        rows.append(row)
    return torch.stack(rows), pairs
