"""A small random copy of a configuration: its own attention, one layer of each kind, little of everything else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.network import put
from tokendynamics.pretrained.other_libraries import silenced

_SMALL: Mapping[str, int] = {
    "vocab_size": 97,
    "intermediate_size": 24,
    "ffn_dim": 24,
    "d_ff": 24,
    "n_inner": 24,
    "hidden_dim": 24,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "mlp_ratio": 1,
    "max_source_positions": 9,
}
"""Sizes that no attention depends on, by the names that configurations have for them."""

_DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
_TOKENS = 7
_GIVE_INPUTS = "pass the network itself with inputs=, a function that makes the arguments for a given number of inputs"
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
    for each in (small, *(getattr(small, name, None) for name in getattr(small, "sub_configs", {}))):
        if each is not None:
            _shrink(each, layers, depth)
    return small


def _shrink(config: Any, layers: Sequence[int], depth: int) -> None:
    other = getattr(config, "num_hidden_layers", None)  # of the other half of a network with two
    for name, value in _lists(config):
        if len(value) == depth:
            setattr(config, name, [value[layer] for layer in layers])
        elif len(value) == other:
            setattr(config, name, value[: len(layers)])
    for name in _DEPTHS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, len(layers))
    for name, size in _SMALL.items():
        if hasattr(config, name) and (getattr(config, name) is None or getattr(config, name) > size):
            setattr(config, name, size)
    for name, value in list(vars(config).items()):
        if name.endswith("_token_id") and isinstance(value, int) and value >= _SMALL["vocab_size"]:
            setattr(config, name, 1)
    if isinstance(getattr(config, "image_size", None), int) and isinstance(getattr(config, "patch_size", None), int):
        config.image_size = _PATCHES * config.patch_size


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
    needed = sum(each.numel() * each.element_size() for each in network.parameters())
    check_fits(needed, "a small copy of the network", "its layout is found on it")
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            put(module, name, nn.Parameter(random_values(parameter.shape, generator), requires_grad=False))
    return network.eval()


def random_values(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return random weights of a size that keeps the size of states; gains and biases are smaller."""
    values = torch.empty(shape).uniform_(-1.0, 1.0, generator=generator)
    if len(shape) < 2:
        return 0.3 * values
    return values * (3.0 / max(shape[-1], 1)) ** 0.5


def random_inputs(network: Any, seed: int = 1) -> Callable[[int], Mapping[str, Tensor]]:
    """Return what makes random inputs of a given number for a network that reads token ids, an image, or sounds.

    Raises:
        LayoutNotFoundError: It reads something else.
    """
    name, config = getattr(network, "main_input_name", None), getattr(network, "config", None)
    if name is None or config is None:
        advice = "pass inputs=, a function that makes the arguments for a given number of inputs"
        came = f"a {type(network).__name__} of your own"
        raise LayoutNotFoundError(expected("spec", "a transformers network with a list of blocks", came, advice))
    device = next(network.parameters()).device

    def make(count: int) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        with silenced():
            if name == "input_ids":
                vocabulary = size_in(config, "vocab_size", network)
                ids = torch.randint(2, vocabulary - 1, (count, _TOKENS), generator=generator)
                return {name: ids.to(device)}
            if name == "pixel_values":
                size = size_in(config, "image_size", network)
                height, width = (size, size) if isinstance(size, int) else size
                shape = (count, size_in(config, "num_channels", network), height, width)
            elif name == "input_features":
                most = size_in(config, "max_source_positions", network)
                shape = (count, size_in(config, "num_mel_bins", network), 2 * most)
            else:
                problem = f"its inputs are {name}, which are neither token ids nor images nor sounds"
                raise LayoutNotFoundError(f"{problem}; {_GIVE_INPUTS}")
            return {name: torch.randn(shape, generator=generator).to(next(network.parameters()))}

    return make


def size_in(config: Any, name: str, network: nn.Module) -> Any:
    """Return a size of the inputs that a configuration names.

    Raises:
        LayoutNotFoundError: It names none, as where a part of it does, or where any number is a token id.
    """
    size = getattr(config, name, None)
    if size is None:
        wanted = f"{name} in the configuration, which random inputs are made by"
        raise LayoutNotFoundError(expected(type(network).__name__, wanted, "none", _GIVE_INPUTS))
    return size
