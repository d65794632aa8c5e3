"""Refuses a tokenizer.json whose replacements make a text longer without bound, before any text goes through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.sources._configuration import read_json_object

MOST_GROWTH = 1000
"""Times its length that a text may reach; tokenizers in use stay below ten."""

_MOST_ALONE = 100
"""Patterns that are followed alone as well; a longer chain shows in the text of all of them."""


def check_growth(path: Path) -> None:
    """Refuse a tokenizer whose normalizer or decoder makes a text more than `MOST_GROWTH` times as long.

    A chain of replacements, each of one letter by two, doubles a text with every step. Replacements of plain text are
    followed on a text of all their patterns; of those by regular expressions, which may match anything, the lengths are
    multiplied.

    Args:
        path: A tokenizer.json.

    Raises:
        CheckpointError: It does, or the file cannot be read.
    """
    facts = read_json_object(path)
    for name in ("normalizer", "decoder"):
        steps = list(_steps(facts.get(name)))
        by_expression = prod(max(1, len(content)) for kind, _, content in steps if kind == "Regex")
        if by_expression > MOST_GROWTH or not all(_bounded(steps, text) for text in _texts(steps)):
            wanted = f"a {name} that makes a text at most {MOST_GROWTH:,} times as long"
            came = f"{len(steps)} replacements that make one longer"
            raise CheckpointError(expected(str(path), wanted, came, "take the tokenizer of the original checkpoint"))


def _texts(steps: list[tuple[str, str, str]]) -> list[str]:
    """Return the texts that the replacements are followed on: each pattern alone, and all of them."""
    patterns = list(dict.fromkeys(pattern for kind, pattern, _ in steps if kind == "String" and pattern))
    patterns += [pattern.lower() for pattern in patterns if pattern.lower() != pattern]
    return [*patterns[:_MOST_ALONE], " ".join(patterns)]


def _bounded(steps: list[tuple[str, str, str]], text: str) -> bool:
    """Tell whether a text stays within the bound through the replacements of plain text."""
    most = MOST_GROWTH * max(1, len(text))
    for kind, pattern, content in steps:
        if kind == "Prepend":
            text = content + text
        elif kind == "String" and pattern:
            # The length is known before the longer text is made.
            if len(text) + text.count(pattern) * (len(content) - len(pattern)) > most:
                return False
            text = text.replace(pattern, content)
        if len(text) > most:
            return False
    return True


def _steps(part: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the pattern and the content of every replacement, in order."""
    if not isinstance(part, Mapping):
        return
    for inner in ("normalizers", "decoders"):
        if isinstance(part.get(inner), list):
            for each in part[inner]:
                yield from _steps(each)
    pattern, content = part.get("pattern"), part.get("content", "")
    if part.get("type") == "Replace" and isinstance(pattern, Mapping) and isinstance(content, str):
        for kind in ("String", "Regex"):
            if isinstance(pattern.get(kind), str):
                yield kind, pattern[kind], content
    elif part.get("type") == "Prepend" and isinstance(part.get("prepend"), str):
        yield "Prepend", "", part["prepend"]
