"""Prompts that repeat each other: two of them are one observation of a population, not two.

The common share is measured between prompts. Between a text and its copy it nearly equals what the tokens of one prompt
share, whatever the network does, so a network that reads the same text twice would appear anisotropic.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.errors import expected, shown

Repetition = Literal["same", "contained", "beginning"]

_WORDS: dict[Repetition, str] = {
    "same": "are the same text and count as one observation",
    "contained": "are nearly one observation because the second contains the first",
    "beginning": "are nearly one observation because more than half of the shorter one is the beginning of both",
}
_BEGIN, _END, _BETWEEN = "\x1d", "\x1e", "\x1f"
"""White space to Python, so that no unit of a text contains them."""

_UNIT = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class RepeatedTexts:
    """Two prompts, one of which repeats the other.

    Attributes:
        names: Their names; of "contained" the one that is contained first, otherwise in the order of the prompts.
        how: "same" (but for white space and upper case), "contained", or "beginning" (more than half of the shorter).
        text: A sentence without its full stop.
    """

    names: tuple[str, str]
    how: Repetition
    text: str


def repeated_texts(prompts: Mapping[str, Any]) -> tuple[RepeatedTexts, ...]:
    r"""Return the prompts that are equal or nearly equal; each is paired with at most one other.

    Texts are compared by words, signs and letters of scripts without capitals (Chinese, Thai, …), or by token ids,
    ignoring white space. Other prompts (images, arguments by name) are compared only as a whole.

    Args:
        prompts: By name, as `tokendynamics.trace` takes them.

    Raises:
        ArgumentTypeError: No mapping of names to prompts.

    >>> [each.text for each in repeated_texts({"a": "A cat sat.", "b": "a cat\nsat.", "c": "A dog ran."})]
    ['prompts “a” and “b” are the same text and count as one observation']
    """
    if not isinstance(prompts, Mapping):
        raise ArgumentTypeError(expected("prompts", "prompts by name", shown(prompts)))
    names = list(prompts)
    keys = [_BETWEEN + "".join(unit + _BETWEEN for unit in _units(item)) for item in prompts.values()]
    whole = [_BEGIN + key + _END for key in keys]
    everything, starts = "".join(whole), list(accumulate(map(len, whole), initial=0))[:-1]
    found: dict[frozenset[int], RepeatedTexts] = {}
    for place, key in enumerate(keys):
        for how, pattern in _patterns(key):
            others = (bisect_right(starts, where) - 1 for where in _occurrences(everything, pattern))
            other = next((each for each in others if each != place), None)
            if other is None:
                continue
            pair = (place, other) if how == "contained" else (min(place, other), max(place, other))
            if how == "beginning" and keys[other] in key:
                pair, how = (other, place), "contained"
            found.setdefault(frozenset(pair), _in_words(names[pair[0]], names[pair[1]], how))
            break
    return tuple(found.values())


def _patterns(key: str) -> Iterator[tuple[Repetition, str]]:
    """Yield what another prompt has if it repeats this one, the plainest first; none for an empty text."""
    if key == _BETWEEN:
        return
    yield "same", _BEGIN + key + _END
    yield "contained", key
    units = key[1:-1].split(_BETWEEN)
    yield "beginning", _BEGIN + _BETWEEN + "".join(unit + _BETWEEN for unit in units[: len(units) // 2 + 1])


def _occurrences(text: str, pattern: str) -> Iterator[int]:
    where = text.find(pattern)
    while where >= 0:
        yield where
        where = text.find(pattern, where + 1)


def _in_words(first: str, second: str, how: Repetition) -> RepeatedTexts:
    return RepeatedTexts((first, second), how, f"prompts “{first}” and “{second}” {_WORDS[how]}")


def _units(item: Any) -> list[str]:
    """Return what is compared, one after the other."""
    if isinstance(item, str):
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", item).casefold())
        return [part for word in _UNIT.findall(folded) for part in _parts(word)]
    ids = item.get("input_ids") if isinstance(item, Mapping) and set(item) <= {"input_ids", "attention_mask"} else item
    numbers = _ids(ids)
    return [f"#{_digest(item)}"] if numbers is None else [f"#{number}" for number in numbers]


def _parts(word: str) -> list[str]:
    """Return a word, or the letters of one in a script without capitals, which may be many words."""
    return list(word) if any(unicodedata.category(letter) == "Lo" for letter in word) else [word]


def _ids(item: Any) -> list[int] | None:
    if isinstance(item, Sequence) and not isinstance(item, str | bytes) and all(isinstance(each, int) for each in item):
        return list(item)
    if not isinstance(item, Tensor | np.ndarray):
        return None
    array = np.asarray(item.detach().cpu().numpy() if isinstance(item, Tensor) else item)
    array = array[0] if array.ndim == 2 and len(array) == 1 else array
    return array.tolist() if array.ndim == 1 and array.dtype.kind in "iu" else None


def _digest(item: Any) -> str:
    """Return a name for the content of what is neither text nor ids."""
    if isinstance(item, Path):
        return sha256(str(item.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    if isinstance(item, Mapping):
        return sha256(repr(sorted((str(name), _digest(value)) for name, value in item.items())).encode()).hexdigest()
    if not isinstance(item, Tensor) and not hasattr(item, "__array_interface__"):  # arrays and PIL's images
        return f"object {id(item)}"
    values = item.detach().cpu().double().numpy() if isinstance(item, Tensor) else np.asarray(item)
    return sha256(f"{values.shape} {values.dtype} ".encode() + values.tobytes()).hexdigest()
