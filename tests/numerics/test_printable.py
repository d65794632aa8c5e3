"""Nothing that is quoted acts on a terminal, and no message grows with what it quotes."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentValueError, CheckpointError, expected
from tokendynamics.numerics.printable import printable, shortened

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


def test_plain_text_of_any_language_stays() -> None:
    assert printable("Öl – 漢字 نمی‌خواهم 👩‍💻 x²") == "Öl – 漢字 نمی‌خواهم 👩‍💻 x²"


def test_every_error_shows_control_characters_as_signs() -> None:
    assert str(CheckpointError("folder \x1b[2J\u202e")) == "folder ␛[2J‹U+202E›"
    assert str(ArgumentValueError(expected("x\x07", "text", "a\nb"))) == "x␇: expected text, got a␊b"


def test_what_a_message_quotes_is_shortened() -> None:
    assert len(expected("x", "less", "9" * 1_000_000, "y" * 1_000_000)) < 450
