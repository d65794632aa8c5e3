"""The line of every key, found again in a TOML file that `tomllib` has already accepted."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.specification.toml import key_lines, nearest_line, present_part

HARD = '''# a comment with [brackets] = and "quotes"
title = "a # b [c] \\" d"  # [not.a.table]
text = """one
[two] three = 3
""""
raw = \'\'\'x = ["
]\'\'\'
a.b."c d".'e.f' = 1
[table]
row = [ # comment, with ] bracket
  1, [2,
  3], {x = 4, y = [5,
    6]},
]
"quoted key" = { p.q = "}", r = '],' }
[table.deep.er]
z = 1979-05-27T07:32:00Z
[[many]]
k = 1
[[many]]
  k = 2
  [many.inner]
  v = -1e-3
  [[many.list]]
  w = true
  [[many.list]]
  w = false
'''


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Every key and index of a parsed document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    computed = {path} if path else set()
    return computed.union(*(paths_of(entry, (*path, key)) for key, entry in inside))


def test_every_key_of_a_hard_document_has_its_line() -> None:
    lines = key_lines(HARD)
    assert set(lines) == paths_of(tomllib.loads(HARD))
    source = HARD.splitlines()
    assert lines["text",] == 3
    assert lines["raw",] == 6
    assert lines["a", "b", "c d", "e.f"] == 8
    assert [lines["table", "row", index] for index in range(3)] == [11, 11, 12]
    assert lines["table", "row", 1, 1] == 12
    assert lines["table", "row", 2, "y", 1] == 13
    assert source[lines["table", "quoted key", "r"] - 1].startswith('"quoted key"')
    assert [lines["many", index, "k"] for index in range(2)] == [19, 21]
    assert lines["many", 1, "inner", "v"] == 23
    assert [lines["many", 1, "list", index, "w"] for index in range(2)] == [25, 27]


def test_windows_line_ends_do_not_shift_the_lines() -> None:
    assert key_lines(HARD.replace("\n", "\r\n")) == key_lines(HARD)


keys = st.text(alphabet="ab.c -_#=\"'[]{}\\é", min_size=1, max_size=4)
values = st.recursive(
    st.integers(-9, 9) | st.text(alphabet="ab#=\"'[]{},\\ \n", max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def written(value: Any, newline: str) -> str:
    """TOML of a value on purpose spread over lines."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + "".join(f"{newline}{written(entry, newline)}," for entry in value) + "]"
    return "{" + ", ".join(f"{quoted(key)} = {written(entry, newline)}" for key, entry in value.items()) + "}"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@pytest.mark.long
@settings(max_examples=150)
@given(st.dictionaries(keys, values, max_size=4), st.sampled_from(["", " ", "\n", "  # ] } [ {\n"]))
def test_the_scanner_finds_exactly_the_keys_that_the_parser_finds(document: dict[str, Any], newline: str) -> None:
    text = "".join(f"{quoted(key)} = {written(value, newline)}\n" for key, value in document.items())
    assert tomllib.loads(text) == document
    lines = key_lines(text)
    assert set(lines) == paths_of(document)
    for key in document:
        assert text.splitlines()[lines[key,] - 1].startswith(quoted(key))


def test_parts_that_the_file_does_not_have_are_skipped() -> None:
    lines = key_lines("[a]\nb = [[1],\n[2]]\n")
    assert present_part(lines, ("a", "<tag>", "b", 1, "<other>", 0)) == ("a", "b", 1, 0)
    assert nearest_line(lines, ("a", "<tag>", "b", 1, 0)) == 3
    assert nearest_line(lines, ("missing",)) == 1


@pytest.mark.parametrize("text", ["", "# nothing", "\n\n"])
def test_an_empty_document_has_no_keys(text: str) -> None:
    assert key_lines(text) == {}
