"""A misspelt key that says which kind of table it is."""

from __future__ import annotations

import pytest

from tokendynamics.specification.file import parse
from tokendynamics.specification.section import SpecificationError

FILE = """[attention]
qk = "identity"
[space]
kin = "sphere"
[start]
tokens = [[1.0, 0.0], [0.0, 1.0]]
[time]
times = [0.0, 1.0]
"""


def test_a_misspelt_kind_is_named_with_its_line():
    with pytest.raises(SpecificationError, match=r"line 4: space.kin: unknown key; did you mean 'kind'\?"):
        parse(FILE, "file.toml")


def test_a_kind_that_is_not_there_is_missing():
    with pytest.raises(SpecificationError, match="space: missing key 'kind'"):
        parse(FILE.replace('kin = "sphere"\n', ""), "file.toml")
