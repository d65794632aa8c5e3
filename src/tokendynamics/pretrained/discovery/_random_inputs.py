"""Random inputs of a network: token ids, pictures or sounds, in the sizes that its configuration or a trial says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.other_libraries import silenced

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

_COMPARISONS = frozenset(f"{mark}{name}{mark}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for mark in ("", "__"))
_SAME_IDS = frozenset({
    "clone", "contiguous", "detach", "expand", "flatten", "flip", "long", "int", "to", "view", "reshape", "roll",
    "squeeze", "unsqueeze", "transpose", "cat", "stack", "__getitem__",
})  # fmt: skip
"""Functions that compare numbers, and those that give token ids again in another place, shape or format."""

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
        if isinstance(states, Tensor) and states.ndim in (2, 3):
            lengths.append(states.shape[1] if states.ndim == 3 else len(states) // 2)

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


class Comparisons(TorchFunctionMode):
    """Keeps the numbers that token ids are compared with while a network runs inside the block, such as a separator.

    Args:
        ids: The token ids, of which the network may be given a copy; None for an input without.

    Attributes:
        compared: These numbers and their neighbours, and one id for each entry of a table that ids are looked up in.
        vocabulary: Rows of the smallest embedding that they are looked up in; 0 before the first.
    """

    def __init__(self, ids: Tensor | None) -> None:
        super().__init__()
        self.compared: dict[int, None] = {}
        self.vocabulary = 0
        self._first = ids
        self._ids: dict[int, Tensor] = {}

    @property
    def special(self) -> list[int]:
        """Return the compared numbers that are token ids."""
        return [number for number in self.compared if 0 <= number < self.vocabulary][:_MOST_COMPARED]

    def _are_ids(self, value: Any) -> bool:
        if id(value) in self._ids:
            return True
        first = self._first
        if not isinstance(value, Tensor) or first is None or value.dtype != first.dtype or value.shape != first.shape:
            return False
        if (value.device, value.layout) != (first.device, first.layout) or not torch.equal(value, first):
            return False
        self._ids[id(value)] = value
        return True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function and note what it says of token ids."""
        del types
        output, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        given = [*args, *(kwargs or {}).values()]
        given += [value for several in given if isinstance(several, tuple | list) for value in several]
        if not any(map(self._are_ids, given)):
            return output
        others = [value for value in given if id(value) not in self._ids]
        if name in _COMPARISONS or name == "isin":
            self._note(others)
        elif name == "embedding":
            rows = [len(value) for value in others if isinstance(value, Tensor) and value.is_floating_point()]
            self.vocabulary = min([*rows, self.vocabulary or max(rows, default=0)])
        if name == "__getitem__" and id(args[0]) not in self._ids:
            table = args[0]
            if isinstance(table, Tensor) and table.ndim == 1 and not table.is_floating_point():
                entries = [int((table == value).nonzero()[0]) for value in table.unique()[:_MOST_COMPARED]]
                self.compared |= dict.fromkeys(entries)
        elif name in _SAME_IDS and isinstance(output, Tensor) and not output.is_floating_point():
            self._ids[id(output)] = output
        return output

    def _note(self, others: Iterable[Any]) -> None:
        for value in others:
            numbers = [value] if isinstance(value, int | float) and not isinstance(value, bool) else []
            if isinstance(value, Tensor) and value.numel() <= _MOST_COMPARED and value.dtype != torch.bool:
                numbers = value.flatten().tolist()
            self.compared |= {int(number) + step: None for number in numbers for step in (0, -1, 1)}


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
