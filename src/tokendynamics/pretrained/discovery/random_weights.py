"""The layout of a network, found with random weights: on a live network itself, or on a small copy of a configuration.

What the weights are does not matter. A small copy has the configuration's own attention, one layer of each kind, and
little of everything else.
"""

from __future__ import annotations

import copy
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained._filling import fill_buffers, put
from tokendynamics.pretrained.discovery._blocks import block_list
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._discover import Discovery, discover, with_fixed_factors
from tokendynamics.pretrained.discovery._random_inputs import random_inputs
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import empty_network, evaluating, half_of, persistent_buffers
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import packing_of


def discover_in(config: Any, network: nn.Module, half: str | None, origin: str) -> Discovery:
    """Find the layout of the network that a configuration describes.

    Args:
        config: The transformers configuration.
        network: The empty network of it, or its half.
        half: Which half, of a network that has two.
        origin: The checkpoint in a message.

    Raises:
        LayoutNotFoundError: It has no list of blocks, or reads something unusual.
    """
    network_config: Any = getattr(network, "config", config)
    name = block_list(network)
    blocks = list(network.get_submodule(name).children()) if name else []
    kinds, owner = layer_kinds(network_config, blocks), network.get_submodule(name.rpartition(".")[0])
    beside = [child for child in owner.children() if isinstance(child, nn.ModuleList) and len(child) == len(blocks)]
    # One layer whose parts stand in several lists does not show what it hands on.
    first = sorted({*kinds, *(range(2) if len(beside) > 1 < len(blocks) else ())})
    copy, chosen = _small_copy(config, network_config, blocks, name, first, half, origin)
    filled = fill_randomly(copy)
    # What it reads from a file besides (running variances) is 1.
    kept = set(persistent_buffers(filled))
    fill_buffers(filled, lambda label: torch.device("cpu"), kept)
    for buffer in map(filled.get_buffer, kept):
        if buffer.is_floating_point():
            buffer.nan_to_num_(nan=1.0)
    with refusing(lambda words: LayoutNotFoundError(expected(origin, "a network whose small copy runs", words))):
        inputs = random_inputs(filled)
        discovery = discover(filled, inputs, found_on="a small random copy", decoder=half == "decoder")
        with evaluating(filled), as_before(filled), silenced():
            packing = packing_of(filled, inputs, causal=discovery.layout.causal)
        discovery = replace(discovery, layout=replace(discovery.layout, packing=packing))
        discovery = with_fixed_factors(discovery, fill_randomly(filled, seed=1), inputs)
    if chosen is None:
        return discovery
    if discovery.layout.blocks != tuple(f"{name}.{number}" for number in range(len(chosen))):
        came = f"calls of {', '.join(discovery.layout.blocks[:4])}"
        wanted = f"a network whose blocks are {name}.0, {name}.1 and so on, each of which runs once"
        raise LayoutNotFoundError(expected(origin, wanted, came, "load the network and pass it itself"))
    names, places = tuple(f"{name}.{number}" for number in range(len(blocks))), [chosen.index(kind) for kind in kinds]
    layout = discovery.layout.with_blocks(names, tuple(places))
    return Discovery(layout, tuple(discovery.seen[place] for place in places), discovery.dim)


def _small_copy(
    config: Any,
    network_config: Any,
    blocks: Sequence[nn.Module],
    name: str,
    first: Sequence[int],
    half: str | None,
    origin: str,
) -> tuple[nn.Module, Sequence[int] | None]:
    """Return a small empty copy that has a block of each kind, and which blocks of the network its own are.

    Where kinds follow from a period or a list of numbers in the configuration, single layers cannot be chosen: then
    the copy has the first layers up to the last new kind, or all. A network whose blocks run again and again (ALBERT)
    has fewer blocks than layers, whatever their number: its copy has all layers, and None for which they are.
    """
    choices = [first, range(first[-1] + 1), range(len(blocks))] if first else []
    if len(blocks) == 1:
        choices = [[0, 0], [0]]  # with one layer, a block that runs again and again would look like one that does not
    problem = "its blocks are of other kinds there"
    for chosen in choices:
        try:
            copy = _empty_copy(config, chosen, len(blocks), half, origin)
            copies = list(copy.get_submodule(name).children())
        except (CheckpointError, AttributeError) as error:
            problem = str(error)
            continue
        if len(copies) != len(chosen):
            break
        if same_kinds(copies, [blocks[layer] for layer in chosen]):
            return copy, chosen
    else:
        if choices:
            wanted = "a network whose small copy has the same kinds of blocks"
            raise LayoutNotFoundError(expected(origin, wanted, problem, "load the network and pass it itself"))
    depth = int(network_config.num_hidden_layers)
    return _empty_copy(config, range(depth), depth, half, origin), None


def _empty_copy(config: Any, layers: Sequence[int], depth: int, half: str | None, origin: str) -> nn.Module:
    def refusal(words: str) -> CheckpointError:
        return CheckpointError(expected(origin, "a configuration of which a small copy can be made", words))

    with refusing(refusal):  # some settings follow from others and cannot be set
        small = small_config(config, layers, depth)
    # Batched products of experts exist in few types; one expert after the other exists in all.
    small._experts_implementation_internal = "eager"
    return half_of(empty_network(small), half, origin)[1]


_INNER = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim")
_SMALL: Mapping[str, int] = {
    **{"vocab_size": 97, **dict.fromkeys(_INNER, 24), "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    **{"mlp_ratio": 1, "max_source_positions": 9},
}
"""Sizes that no attention depends on, by the names that configurations have for them."""


_DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")


_PATCHES = 3


_NOT_BY_LAYER = ("image_size", "patch_size", "architectures", "mrope_section")
"""Lists of a configuration that have no entry for each layer, whatever their length."""


def small_config(config: Any, layers: Sequence[int], depth: int) -> Any:
    """Return a configuration with some layers alone, and small where attention does not see it.

    Args:
        config: The whole one.
        layers: Counted from 0.
        depth: How many layers the network has.
    """
    small = copy.deepcopy(config)
    inner = (getattr(small, name, None) for name in getattr(small, "sub_configs", {}))
    for part in (small, *(inner_config for inner_config in inner if inner_config is not None)):
        other = getattr(part, "num_hidden_layers", None)  # of the other half of a network with two
        for name, value in _lists(part):
            if len(value) == depth:
                setattr(part, name, [value[layer] for layer in layers])
            elif len(value) == other:
                setattr(part, name, value[: len(layers)])
        for name in _DEPTHS:
            if isinstance(getattr(part, name, None), int):
                with suppress(NotImplementedError):  # it follows from the depths of both halves
                    setattr(part, name, len(layers))
        for name, size in _SMALL.items():
            if hasattr(part, name) and (getattr(part, name) is None or getattr(part, name) > size):
                setattr(part, name, size)
        for name, value in list(vars(part).items()):
            if name.endswith("_token_id") and isinstance(value, int) and value >= _SMALL["vocab_size"]:
                setattr(part, name, 1)
        if isinstance(getattr(part, "image_size", None), int) and isinstance(getattr(part, "patch_size", None), int):
            part.image_size = _PATCHES * part.patch_size
    return small


def _lists(config: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return the lists of a configuration that may have an entry for each layer."""
    lists = [(name, value) for name, value in vars(config).items() if isinstance(value, list | tuple)]
    return [(name, value) for name, value in lists if name not in _NOT_BY_LAYER and not name.endswith("_token_id")]


def layer_kinds(config: Any, blocks: Sequence[nn.Module]) -> list[int]:
    """Return, for each block, the first one of its kind: the same modules and entries of the configuration's lists."""
    lists = [value for _, value in _lists(config) if len(value) == len(blocks)]
    first: dict[Any, int] = {}
    kinds = []
    for number, block in enumerate(blocks):
        modules = _modules_in(block)
        entries = tuple(str(entry[number]) for entry in lists)
        kinds.append(first.setdefault((modules, entries), number))
    return kinds


def same_kinds(copies: Sequence[nn.Module], blocks: Sequence[nn.Module]) -> bool:
    """Return whether the blocks of a small copy are of the same modules as those of the network."""
    return [_modules_in(copy) for copy in copies] == [_modules_in(block) for block in blocks]


def _modules_in(block: nn.Module) -> tuple[tuple[str, str], ...]:
    """Return the names and classes of the modules in a block."""
    return tuple((name, type(module).__name__) for name, module in block.named_modules())


def fill_randomly(network: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter of an empty network random values: no two columns, gains or biases are alike."""
    needed = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    check_fits(needed, "a small copy of the network", "its layout is found on it")
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = _table_of_angles(network, module, parameter.shape)
            put(module, name, random_values(parameter.shape, generator) if values is None else values)
    return network.eval()


def _table_of_angles(network: Any, module: nn.Module, shape: torch.Size) -> Tensor | None:
    """Return the parameter of an empty module that transformers computes as sines and cosines; None for any other."""
    if not isinstance(module, nn.Embedding) or type(module) is nn.Embedding or not hasattr(network, "_init_weights"):
        return None
    module.weight = nn.Parameter(torch.zeros(shape), requires_grad=False)
    with silenced():
        network._init_weights(module)
    values = module.weight.detach()
    return values if _is_table_of_angles(values) else None


def random_values(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return random weights of a size that keeps the size of states; gains and biases are smaller."""
    values = torch.empty(shape).uniform_(-1.0, 1.0, generator=generator)
    if len(shape) < 2:
        return 0.3 * values
    return values * (3.0 / max(shape[-1], 1)) ** 0.5


_SEED = 41
_LARGE = 2**24
"""Entries of a table whose random rows overlap in memory, so that it takes no room."""

_STRIDE = 13
"""By how many entries such rows are apart."""

_SHARED = 2**16
"""Entries from which parameters of one kind share their memory."""

_OF_A_KIND = 61
"""How many of a kind, one after the other, differ from each other."""


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
    for random in ("all", "zeros", "none"):
        if random == "none" and best is not None:
            break
        try:
            with _changed(network, random), refusing(refusal):
                known = best is not None
                discovery = discover(network, inputs, found_on="the network itself", decoder=decoder, again=known)
        except LayoutNotFoundError as error:
            problem = error
            continue
        if best is None or _parts_found(discovery) > _parts_found(best):
            best = discovery
        if _parts_found(best) == 2 * len(best.layout.layers):
            break
    if best is None:
        raise problem or refusal("no layout")
    # A part whose weights are zero shows no factor.
    with _changed(network, "zeros", again=True), refusing(refusal):
        return with_fixed_factors(best, network, inputs)


def _parts_found(discovery: Discovery) -> int:
    layers = discovery.layout.layers
    return sum((layer.attention is not None or not layer.attends) + (layer.residual is not None) for layer in layers)


def _is_table_of_angles(values: Tensor) -> bool:
    """Return whether each row is sines and cosines of the same angles: a table that is computed and not trained.

    >>> angles = torch.outer(torch.arange(3.0), torch.tensor([1.0, 0.1]))
    >>> _is_table_of_angles(torch.cat((angles.sin(), angles.cos()), dim=1)), _is_table_of_angles(torch.eye(4))
    (True, False)
    """
    if values.ndim != 2 or values.shape[1] % 2 or values.is_meta or not values.numel():
        return False
    rows = values[:8].double()
    halves, neighbours = rows.unflatten(1, (2, -1)).square().sum(dim=1), rows.unflatten(1, (-1, 2)).square().sum(dim=2)
    return any(bool((squares - 1).abs().max() < 1e-3) for squares in (halves, neighbours))


class _Drawn:
    """Random values of parameters, no two of which have a row or a column in common; large ones share memory.

    Args:
        again: Whether they are others than those of the first time.
    """

    def __init__(self, *, again: bool = False) -> None:
        self._suffix = " again" if again else ""
        self._lines: dict[tuple[Any, ...], Tensor] = {}
        self._counts: Counter[tuple[Any, ...]] = Counter()

    def like(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Return values for a parameter; by its name, so that further ones of a network change nothing for it."""
        shape, numel = parameter.shape, parameter.numel()
        if numel < _SHARED:
            return random_values(shape, _seeded(name + self._suffix)).to(parameter.dtype)
        # Those of other blocks, and others in a list, are the same numbers from another place on.
        kind = (re.sub(r"(?<![^.])\d+(?![^.])", "*", name), shape, parameter.dtype)
        rows, columns = shape[0], numel // shape[0]
        stride = _STRIDE if parameter.ndim == 2 and numel >= _LARGE else columns
        if kind not in self._lines:
            line = torch.Size((1, stride * (rows - 1) + columns + _OF_A_KIND * (stride + 1)))
            fan_in = shape[-1] if parameter.ndim > 1 else 1
            values = random_values(line, _seeded(kind[0] + self._suffix)) * (line[1] / fan_in) ** 0.5
            self._lines[kind] = values[0].to(parameter.dtype)
        start = self._counts[kind] % _OF_A_KIND * (stride + 1)
        self._counts[kind] += 1
        return self._lines[kind].as_strided((rows, columns), (stride, 1), start).view(shape)


def _seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(_SEED + zlib.crc32(name.encode()))


@contextmanager
def _changed(network: nn.Module, random: Literal["all", "zeros", "none"], *, again: bool = False) -> Iterator[None]:
    """Let parameters, or their zeros, be random inside the block; `again` as in `_Drawn`."""
    drawn = _Drawn(again=again)
    former: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for name, parameter in network.named_parameters() if random != "none" else ():
            if type(parameter.data) is not Tensor or not parameter.is_floating_point() or parameter.is_meta:
                continue
            if _is_table_of_angles(parameter.data):
                continue
            former.append((parameter, parameter.data))
            if random == "all":
                parameter.data = drawn.like(name, parameter)
            elif bool((zero := parameter.data == 0).any()):
                parameter.data = torch.where(zero, drawn.like(name, parameter), parameter.data)
        yield
    finally:
        for parameter, data in former:
            parameter.data = data
