"""Nothing that is quoted acts on a terminal, and no message grows with what it quotes."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentValueError, CheckpointError, expected
from tokendynamics.numerics.printable import printable, shortened, shortened_clauses

HOSTILE = st.text(st.characters(codec=None))


@given(HOSTILE)
def test_printable_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    kinds = {unicodedata.category(char) for char in shown if char not in "\u200c\u200d"}
    assert kinds.isdisjoint({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


@given(HOSTILE, st.integers(3, 40))
def test_shortened_text_keeps_its_ends(text: str, longest: int) -> None:
    short = shortened(text, longest)
    assert len(short) <= max(longest, 0)
    assert short == text or (text.startswith(short.split(" … ")[0]) and text.endswith(short.rsplit(" … ")[-1]))


@given(st.lists(st.text("ab (", min_size=1, max_size=60), min_size=1, max_size=40), st.booleans(), st.integers(60, 90))
@example(["ab " * 40, "b", "a"], False, 60)
def test_reasons_are_left_out_between_each_other(reasons: list[str], in_brackets: bool, longest: int) -> None:
    text = "; ".join(reasons)
    short = shortened_clauses(f"none ({text})" if in_brackets else text, longest)
    assert len(short) <= longest
    if in_brackets:
        assert short.startswith("none (")
        assert short.endswith(")")
        short = short[len("none (") : -1]
    whole, _, more = short.rpartition("; and ")
    if not more.endswith(" more"):
        assert short == text or (len(reasons) == 1 and " … " in short)
        return
    count = int(more.removesuffix(" more"))
    first = reasons[: len(reasons) - count]
    assert whole == "; ".join(first) or (len(first) == 1 and " … " in whole)
    assert len("; ".join(reasons[: len(first) + 1])) + len(f"none (); and {count} more") > longest - 1  # no more fit


def test_words_are_left_out_whole() -> None:
    words = "its queries, keys and values are not projected from one tensor, and its weights are changed"
    short = shortened_clauses(words, 60)
    assert set(short.split(" ")) <= {*words.split(" "), "…"}
    assert len(short) > 40


def test_plain_text_of_any_language_stays() -> None:
    assert printable("Öl – 漢字 نمی‌خواهم 👩‍💻 x²") == "Öl – 漢字 نمی‌خواهم 👩‍💻 x²"


def test_every_error_shows_control_characters_as_signs() -> None:
    assert str(CheckpointError("folder \x1b[2J\u202e")) == "folder ␛[2J‹U+202E›"
    assert str(ArgumentValueError(expected("x\x07", "text", "a\nb"))) == "x␇: expected text, got a␊b"


def test_what_a_message_quotes_is_shortened() -> None:
    assert len(expected("x", "less", "9" * 1_000_000, "y" * 1_000_000)) < 450
