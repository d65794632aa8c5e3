"""Under which names, and in which pieces, the tensors of a network stand in a file: transformers' own conversion rules.

The rules are no public interface of transformers; `tests/pretrained/test_stored_names.py` holds them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn


@dataclass
class Source:
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


def stored_names(whole: Any, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Source]:
    """Return, for each wanted tensor that a file holds, its sources.

    Args:
        whole: The empty base model.
        stored: The file's tensors by name.
        wanted: The network's, by name in the base model.
    """
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = _rules(whole)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    known, prefix = dict.fromkeys((*whole.state_dict(), *wanted)), whole.base_model_prefix
    found: dict[str, Source] = {}
    for name in sorted(stored, key=natural):
        target, pattern = rename_source_key(name, renamings, converters, prefix, _Present(known))
        if target not in known and name in known:
            target, pattern = name, None
        if pattern is None:
            # A plain name that is right already wins over one that a rule leads there.
            if target not in found or name == target:
                found[target] = Source(target, [name], [""], None, whole)
            continue
        first = by_pattern[pattern]
        source = found.setdefault(target, Source(target, [], [], first, whole))
        source.names.append(name)
        source.patterns.append(pattern)
        for other in first.target_patterns[1:]:
            also = target.replace(first.target_patterns[0], other)
            found[also] = replace(source, target=also)
    return found | _tied(whole, found, wanted)


class _Present(dict[str, Any]):
    """Says of known names that they are there: the rules ask for the tensor, and only whether it is None."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(dict.fromkeys(names, True))


def _rules(whole: Any) -> list[Any]:
    from transformers.conversion_mapping import get_model_conversion_mapping

    return get_model_conversion_mapping(whole)


def _tied(whole: Any, found: Mapping[str, Source], wanted: Mapping[str, Any]) -> dict[str, Source]:
    """Return the sources of tensors that stand in the file under another name of theirs."""
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    ties = dict(getattr(whole, "all_tied_weights_keys", None) or {})
    for target, source in ties.items():
        names.setdefault(id(source), []).extend((target, source))
    result = {}
    for group in names.values():
        source = next((found[name] for name in group if name in found), None)
        if source is not None:
            result |= {name: source for name in group if name in wanted and name not in found}
    return result


_TABLES = ("inv_freq", "original_inv_freq", "position_ids", "masked_bias", "relative_position_index", "version")
"""Last parts of the names of tables that earlier versions of transformers stored, and that are computed today."""


def unplaced(whole: Any, stored: Mapping[str, tuple[int, ...]], placed: Mapping[str, Source]) -> list[str]:
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
    found = []
    for name, shape in stored.items():
        bare = name.removeprefix(prefix)
        table = bare.rsplit(".", 1)[-1] in _TABLES or not shape or (shape[:2] == (1, 1) and shape[2:3] == shape[3:])
        first = bare.split(".")[0]
        outside = first == "pooler" or (first not in inside and not (prefix != "." and name.startswith(prefix)))
        if name in used or bare in known or table or outside or any(each.search(name) for each in patterns):
            continue
        found.append(name)
    return sorted(found, key=natural)


def names_in(whole: Any, placed: Mapping[str, Source]) -> set[str]:
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
