"""Wrong files are refused in one line that names the file, the line and the nearest valid name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.specification._tables import SinusoidalMatrix
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.specification.file import parse, read
from tokendynamics.specification.section import SpecificationError

VALID = """\
title = "two tokens"

[attention]
qk = [
    [1.0, 0.5],
    [0.0, 2.0],
]
ov = { identity = -1.0 }

[space]
kind = "sphere"

[start]
tokens = [[1, 0], [0, 1]]

[time]
end = 3
"""

HEADS = """
[[attention.qk]]
matrix = [[1, 0],
          [0, 1]]
frequency = ["1 Hz", 2]

[[attention.qk]]
matrix = "identity"
frequency = "90 deg"
phase = "0.25 turn"
amplitude = [1, 2]
"""


def with_change(old: str, new: str) -> str:
    assert old in VALID
    return VALID.replace(old, new)


def test_a_valid_file_is_read_with_its_defaults() -> None:
    tables = parse(VALID, "a.toml").tables
    assert tables.attention.qk == [[1.0, 0.5], [0.0, 2.0]]
    assert tables.attention.weights == "softmax"
    assert tables.solver.model_dump(exclude_none=True) == {}


def test_units_become_radians_and_radians_per_unit_of_time() -> None:
    text = with_change("qk = [\n    [1.0, 0.5],\n    [0.0, 2.0],\n]\n", "").replace("[space]", HEADS + "\n[space]")
    first, second = parse(text, "a.toml").tables.attention.qk
    assert isinstance(first, SinusoidalMatrix)
    assert isinstance(second, SinusoidalMatrix)
    assert first.frequency == [2 * math.pi, 2.0]
    assert (second.frequency, second.phase) == (math.pi / 2, math.pi / 2)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("qk =", "kq =", 4, "attention.kq: unknown key; did you mean 'qk'?"),
        ("[space]", "[sapce]", 10, "sapce: unknown key; did you mean 'space'?"),
        ('[space]\nkind = "sphere"\n', "", 1, "missing table [space]"),
        ('kind = "sphere"', "", 10, "space: missing key 'kind'"),
        ('"sphere"', '"spher"', 11, "space.kind: unknown kind 'spher'; did you mean 'sphere'?"),
        ('kind = "sphere"', 'kind = "sphere"\nmetric = "identity"', 12, "space.metric: unknown key; "),
        ("[0.0, 2.0]", "[0.0, 2.0, 3.0]", 4, "attention.qk: expected rows of equal length, got lengths [2, 3]"),
        ("[0.0, 2.0]", '[0.0, "2"]', 6, "attention.qk[1][1]: expected a valid number, got '2'"),
        ("[0.0, 2.0]", "[0.0, nan]", 6, "attention.qk[1][1]: expected a finite number, got nan"),
        ("identity =", "identty =", 8, "attention.ov.identty: unknown key; did you mean 'identity'?"),
        ("{ identity = -1.0 }", '"idenity"', 8, "attention.ov: unknown name 'idenity'; did you mean 'identity'?"),
        ("{ identity = -1.0 }", "3.0", 8, "attention.ov: expected rows of numbers, 'identity', or a table"),
        ("{ identity = -1.0 }", '{ law = "normal" }', 8, "attention.ov: missing key 'seed'"),
        ("{ identity = -1.0 }", '{ law = "nromal", seed = 1 }', 8, "unknown name 'nromal'; did you mean 'normal'?"),
        (
            "{ identity = -1.0 }",
            '[{ matrix = [[1, 0],\n [0, 1]], frequency = "5 hz" }]',
            9,
            "attention.ov[0].frequency: unknown unit 'hz'; did you mean 'Hz'?",
        ),
        (
            "{ identity = -1.0 }",
            '["identity",\n{ matrix = "identity", frequency = 1, amplitud = 2 }]',
            9,
            "attention.ov[1].amplitud: unknown key; did you mean 'amplitude'?",
        ),
        ("tokens = [[1, 0], [0, 1]]", 'tokens = 3\nlaw = "uniform"', 13, "start: missing key 'seed'"),
        ("tokens = [[1, 0], [0, 1]]", "tokens = 3", 13, "start: missing key 'law'"),
        ("tokens = [[1, 0], [0, 1]]", 'law = "unifrm"', 14, "start.law: unknown law 'unifrm'; did you mean 'uniform'?"),
        ("tokens = [[1, 0], [0, 1]]", "tokns = 3", 14, "start.tokns: unknown key; did you mean 'tokens'?"),
        ("tokens = [[1, 0], [0, 1]]", 'angles = [0, "3 degg"]', 14, "start.angles[1]: unknown unit 'degg'; did you"),
        ("tokens = [[1, 0], [0, 1]]", 'angles = [0, "3"]', 14, "start.angles[1]: expected a number (in rad) or a text"),
        (
            "{ identity = -1.0 }",
            '{ matrix = "identity", frequency = 1, phase = "3 Hz" }',
            8,
            "attention.ov.phase: unknown unit 'Hz'; 'Hz' is for frequencies (valid: deg, rad, turn)",
        ),
        (
            "[time]",
            '[solver]\nengine = "turbo"\n[time]',
            17,
            "solver.engine: unknown name 'turbo'; did you mean 'auto'?",
        ),
        ("end = 3", 'end = "3 s"', 17, "time.end: expected a valid number, got '3 s'"),
        ("end = 3", "end = -3", 17, "time.end: expected greater than 0, got -3"),
        ("end = 3", 'end = 3\nspacing = "log"', 16, "time: spacing 'log' needs 'first'"),
        ("end = 3", 'end = 3\nspacing = "log"\nfirst = 4', 16, "time: expected first < end, got 4.0 and 3.0"),
        ("end = 3", "end = 3\nfirst = 1", 16, "time: spacing 'linear' has no 'first'"),
        ("[time]", '[solver]\nengine = "batchd"\n[time]', 17, "solver.engine: unknown name 'batchd'; did you mean 'b"),
        ("[time]", "[solver]\nrtoll = 1e-3\n[time]", 17, "solver.rtoll: unknown key; did you mean 'rtol'?"),
        ("[time]", '[output]\nformats = ["pdf", "jpg"]\n[time]', 17, "output.formats[1]: unknown name 'jpg'; did you"),
        ("[time]", '[output]\nfigures = ["token"]\n[time]', 17, "output.figures[0]: unknown name 'token'; did you"),
        ("[time]", "[events]\nconsensus = 3\n[time]", 17, "events.consensus: expected a table, got 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(SpecificationError) as refused:
        parse(with_change(old, new), "a.toml")
    message = str(refused.value)
    assert message.startswith(f"a.toml line {line}: "), message
    assert words in message
    assert "\n" not in message


def test_of_several_errors_the_first_in_the_file_is_named() -> None:
    text = with_change("end = 3", "ned = 3").replace("qk =", "kq =")
    with pytest.raises(SpecificationError, match=r"line 4: attention\.kq"):
        parse(text, "a.toml")


def test_a_syntax_error_has_line_and_column() -> None:
    with pytest.raises(SpecificationError, match=r"^a\.toml: line 17, column 9: expected newline"):
        parse(with_change("end = 3", "end = 3 4"), "a.toml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(SpecificationError, match=r"a\.toml: not UTF-8 text"):
        read(tmp_path / "a.toml")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf" + VALID.encode())
    assert read(tmp_path / "a.toml").tables.title == "two tokens"


def test_every_example_is_valid_and_says_what_it_is() -> None:
    for name in example_names():
        text = example_text(name)
        assert parse(text, name).tables.attention is not None
        assert text.startswith(("title = ", "# "))


def test_an_unknown_example_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ArgumentValueError, match="did you mean 'fig3'"):
        example_text("fig33")
    with pytest.raises(ArgumentValueError, match="did you mean 'table2'"):
        example_text("table22", "study")


def test_an_example_is_found_by_its_name_whatever_it_describes() -> None:
    kinds = ("simulation", "sweep", "study")
    names = [name for kind in kinds for name in example_names(kind)]
    assert len(names) == len(set(names)) == 20
    for kind in kinds:
        assert all(example_text(name) == example_text(name, kind) for name in example_names(kind))
    with pytest.raises(ArgumentValueError, match="unknown name 'outcomes'"):
        example_text("outcomes", "simulation")
    with pytest.raises(ArgumentValueError, match="kind: expected 'simulation', 'sweep' or 'study', got 'film'"):
        example_names("film")  # pyright: ignore[reportArgumentType]
