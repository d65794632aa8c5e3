"""The tensors of a base model by ITS names, checked; and those of one attention layer as factors, per head."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.arguments import first_index
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained.edits.language_head import base_of, empty_with_head
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.sources._tensor_files import TensorFiles


@dataclass
class TensorSource:
    """The sources of one tensor of a network.

    Attributes:
        target: Its name in the network.
        names: Names in the file, in the order of the network.
        patterns: For each of them the pattern of the conversion that it matched; "" for a plain tensor.
        conversion: What makes the tensor from them; None where it is stored as it is.
        network: The network, whose sizes a conversion may ask for.
    """

    target: str
    names: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    conversion: Any = None
    network: Any = None

    @property
    def plain(self) -> bool:
        """Whether the file holds the tensor as it is."""
        return self.conversion is None

    def read(self, read: Callable[[str], Tensor]) -> Tensor:
        """Return the tensor, built from what `read` gives for the names in the file."""
        if self.conversion is None:
            return read(self.names[0])
        conversion = copy.deepcopy(self.conversion)
        for name, pattern in zip(self.names, self.patterns, strict=True):
            conversion.add_tensor(self.target, name, pattern, lambda name=name: read(name))
        made = conversion.convert(self.target, model=self.network, config=self.network.config)
        value = made[self.target]
        return value[0] if isinstance(value, list) else value


def stored_names(whole: Any, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, TensorSource]:
    """Return, for each wanted tensor that a file holds, its sources.

    Args:
        whole: The empty base model.
        stored: The file's tensors by name.
        wanted: The network's, by name in the base model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules: list[Any] = get_model_conversion_mapping(whole)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    known, prefix = dict.fromkeys((*whole.state_dict(), *wanted)), whole.base_model_prefix
    sources: dict[str, TensorSource] = {}
    for name in sorted(stored, key=natural):
        target, pattern = rename_source_key(name, renamings, converters, prefix, _Present(known))
        if target not in known and name in known:
            target, pattern = name, None
        if pattern is None:
            # A plain name that is right already wins over one that a rule leads there.
            if target not in sources or name == target:
                sources[target] = TensorSource(target, [name], [""], None, whole)
            continue
        first = by_pattern[pattern]
        source = sources.setdefault(target, TensorSource(target, [], [], first, whole))
        source.names.append(name)
        source.patterns.append(pattern)
        for other in first.target_patterns[1:]:
            also = target.replace(first.target_patterns[0], other)
            sources[also] = replace(source, target=also)
    return sources | _tied(whole, sources, wanted)


class _Present(dict[str, Any]):
    """Says of known names that they are there: the rules ask for the tensor, and only whether it is None."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(dict.fromkeys(names, True))


def _tied(whole: Any, sources: Mapping[str, TensorSource], wanted: Mapping[str, Any]) -> dict[str, TensorSource]:
    """Return the sources of tensors that stand in the file under another name of theirs."""
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    ties = dict(getattr(whole, "all_tied_weights_keys", None) or {})
    for target, source in ties.items():
        names.setdefault(id(source), []).extend((target, source))
    result = {}
    for group in names.values():
        source = next((sources[name] for name in group if name in sources), None)
        if source is not None:
            result |= {name: source for name in group if name in wanted and name not in sources}
    return result


_TABLES = ("inv_freq", "original_inv_freq", "position_ids", "masked_bias", "relative_position_index", "version")
"""Last parts of the names of tables that earlier versions of transformers stored, and that are computed today."""


def unplaced(whole: Any, stored: Mapping[str, tuple[int, ...]], placed: Mapping[str, TensorSource]) -> list[str]:
    """Return the file's tensors inside the base model for which its configuration has no place, in order.

    A head of another task stands outside it and changes no state; a pooler does not either. What transformers itself
    leaves out (the patterns `_keys_to_ignore_on_load_unexpected`, masks and tables of positions) is not listed.

    Args:
        whole: The empty base model, with every part that its class builds by default.
        stored: Shape of every tensor of the file.
        placed: From `stored_names`.
    """
    known = {*whole.state_dict(), *(name for name, _ in whole.named_buffers())}
    used = names_in(whole, placed)
    inside, prefix = {name.split(".")[0] for name in known}, f"{whole.base_model_prefix}."
    patterns = ignored(whole)
    names = []
    for name, shape in stored.items():
        bare = name.removeprefix(prefix)
        table = bare.rsplit(".", 1)[-1] in _TABLES or not shape or (shape[:2] == (1, 1) and shape[2:3] == shape[3:])
        first = bare.split(".")[0]
        outside = first == "pooler" or (first not in inside and not (prefix != "." and name.startswith(prefix)))
        if name in used or bare in known or table or outside or any(pattern.search(name) for pattern in patterns):
            continue
        names.append(name)
    return sorted(names, key=natural)


def names_in(whole: Any, placed: Mapping[str, TensorSource]) -> set[str]:
    """Return the names in the file of all tensors that an empty network has a place for.

    Args:
        whole: The network.
        placed: From `stored_names` of it.
    """
    known = {*whole.state_dict(), *(name for name, _ in whole.named_buffers())}
    return {name for target, source in placed.items() if target in known for name in source.names}


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return what sorts names with numbers in them as a reader would.

    >>> sorted(["layers.10", "layers.9"], key=natural)
    ['layers.9', 'layers.10']
    """
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name)]


def ignored(whole: nn.Module) -> list[re.Pattern[str]]:
    """Return patterns of names that a file may hold although the network has no such part (further heads, say)."""
    patterns: Any = getattr(whole, "_keys_to_ignore_on_load_unexpected", None) or ()
    return [re.compile(pattern) for pattern in patterns]


def computed_table(whole: Any, module: nn.Module, leaf: str) -> Tensor | None:
    """Return the values of a frozen parameter that its network's initialization computes without drawing any.

    Args:
        whole: The network of transformers, whose initialization it is.
        module: The module that holds the parameter; empty.
        leaf: The parameter's name in it.

    Returns:
        None for a parameter that is trained, or drawn, or constant: a file without it is incomplete.
    """
    if module.get_parameter(leaf).requires_grad:
        return None
    made = []
    for seed in (0, 1):
        copied = copy.deepcopy(module).to_empty(device="cpu")
        copied.get_parameter(leaf).data.fill_(torch.nan)
        with silenced(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            whole._init_weights(copied)
        made.append(copied.get_parameter(leaf).detach())
    known = bool(torch.isfinite(made[0]).all()) and torch.equal(*made) and bool((made[0] != made[0].flatten()[0]).any())
    return made[0] if known else None


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_ADVICE = "does config.json belong to these weights?"


class Weights:
    """Reads the tensors of a base model, whatever name or form they are stored in.

    Attributes:
        tables: Names of stored values that are no parameters.

    Args:
        store: Where the tensors are.
        network: The empty base model, or the half of it that is needed.
        whole: The base model that the half belongs to; the same one without halves.
        prefix: Name of the half in it, empty for the whole.
        origin: The checkpoint in a message.

    Raises:
        CheckpointError: A tensor is missing or has another shape than the configuration says.
    """

    def __init__(self, store: TensorFiles, network: nn.Module, whole: Any, prefix: str, origin: str) -> None:
        self._store = store
        self._origin = origin
        self._prefix = f"{prefix}." if prefix else ""
        self._shapes = {self._prefix + name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
        self._stored = stored_names(whole, store.shapes, self._shapes)
        missing = [name for name in self._shapes if name not in self._stored]
        headed = empty_with_head(whole.config) if missing else None
        if headed is not None:  # a file may hold only the head of a tied pair
            start, _ = base_of(headed)
            tied = stored_names(headed, store.shapes, {start + name: None for name in missing})
            self._stored |= {name: tied[start + name] for name in missing if start + name in tied}
        self._computed: dict[str, Tensor] = {}
        for name in (name for name, _ in network.named_parameters() if self._prefix + name not in self._stored):
            owner, _, leaf = name.rpartition(".")
            values = computed_table(whole, network.get_submodule(owner), leaf)
            if values is not None:
                self._computed[self._prefix + name] = values
        self._check_shapes()
        parameters, kept = dict(network.named_parameters(remove_duplicate=False)), network.state_dict()
        self.tables = [name for name in kept if name not in parameters and self._prefix + name in self._stored]
        self._shapes |= {self._prefix + name: tuple(kept[name].shape) for name in self.tables}

    def read(self, name: str) -> Tensor:
        """Return one tensor of the network.

        Raises:
            CheckpointError: It holds no real numbers, or a NaN or an infinity (layer and tensor are named).
            MemoryLimitError: More than there is memory for.
        """
        if self._prefix + name in self._computed:
            return self._computed[self._prefix + name].clone()
        source = self._stored[self._prefix + name]
        where = _where(source.names[0], self._origin)
        check_fits(4 * prod(self._shapes[self._prefix + name]), where)
        with refusing(lambda words: CheckpointError(where, "pieces of one tensor that fit together", words)):
            tensor = source.read(self._read_stored)
        if tuple(tensor.shape) != self._shapes[self._prefix + name]:
            wanted = f"shape {self._shapes[self._prefix + name]}"
            raise CheckpointError(where, wanted, f"shape {tuple(tensor.shape)}", _ADVICE)
        return tensor

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows of one tensor; of one that is stored as it is, only these are read.

        Raises:
            CheckpointError: See `read`.
        """
        source = self._stored.get(self._prefix + name)
        if source is None or not source.plain:
            return self.read(name)[list(rows)]
        return self._checked(self._store.read_rows(source.names[0], rows), source.names[0])

    def read_beside(self, larger: nn.Module, name: str) -> Tensor | None:
        """Return a stored tensor that is no part of the network, such as one of an output head; None without.

        One that is stored only as a parameter of the base model, to which the configuration ties it, does not count.

        Args:
            larger: An empty network that has it.
            name: What it is called there.
        """
        source = stored_names(larger, self._store.shapes, {name: None}).get(name)
        if source is None or source.target.startswith(base_of(larger)[0] or "\0"):
            return None
        return source.read(self._read_stored)

    def _read_stored(self, name: str) -> Tensor:
        return self._checked(self._store.read(name), name)

    def _checked(self, tensor: Tensor, name: str) -> Tensor:
        where = _where(name, self._origin)
        # Eight bits and fewer mean nothing without the scales that a quantised checkpoint keeps elsewhere.
        if tensor.dtype not in _DTYPES:
            advice = "quantised checkpoints are read only as GGUF"
            wanted = "real numbers of 16 bits or more"
            raise CheckpointError(where, wanted, f"dtype {tensor.dtype}", advice)
        check_finite_weights(tensor, where)
        return tensor

    def _check_shapes(self) -> None:
        for name, shape in self._shapes.items():
            source = self._stored.get(name)
            if source is None and name in self._computed:
                continue
            if source is None:
                advice = "the file is incomplete or its config.json belongs to another model"
                raise CheckpointError(_where(name, self._origin), f"shape {shape}", "no such tensor", advice)
            came = tuple(self._store.shapes[source.names[0]])
            if source.plain and came != shape:
                where = _where(source.names[0], self._origin)
                raise CheckpointError(where, f"shape {shape}", f"shape {came}", _ADVICE)


def _where(stored: str, origin: str) -> str:
    # Files count blocks from 0.
    layer = re.search(r"\.(\d+)\.", f".{stored}")
    return f"{origin}: " + (f"layer {int(layer.group(1)) + 1}: " if layer else "") + f"tensor {stored}"


def check_finite_weights(tensor: Tensor, where: str) -> None:
    """Refuse a tensor with an entry that is not finite.

    Raises:
        CheckpointError: There is one; its place is named.
    """
    if type(tensor) is not Tensor:  # of a format that has a class of its own, which may not add up
        try:
            tensor = tensor.dequantize()
        except Exception:  # a class of the user's own need not be able to
            return
    # A NaN or an infinity survives a sum, which is 20 times faster than a mask as large as the tensor; a sum that
    # overflows by itself only leads to the slower check.
    if tensor.is_floating_point() and tensor.element_size() == 1:  # formats of eight bits, which do not add up
        tensor = tensor.float()
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    if bool(torch.isfinite(tensor.sum(dtype=torch.float32 if half else tensor.dtype))):
        return
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    index = first_index(~finite)
    came = f"{float(tensor[index])} at index {index} ({int((~finite).sum())} such entries)"
    raise CheckpointError(where, "finite numbers", came, "the checkpoint is damaged or its training diverged")
