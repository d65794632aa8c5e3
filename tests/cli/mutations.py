"""Files after a few changes of their bytes, and what must be said of those that cannot be read any more."""

from __future__ import annotations

from hypothesis import strategies as st

from tokendynamics.numerics.errors import TokenDynamicsError


@st.composite
def mutations(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file after one to three changes, most of them near its beginning, where its structure is."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(data), 3000)))
        new = draw(st.binary(max_size=8) | st.sampled_from([b"\xff" * 8, bytes(8), b'"', b"{", b"]", b"-1", b"9" * 30]))
        kind = draw(st.sampled_from(["replace", "insert", "cut", "double"]))
        if kind == "replace":
            data[place : place + len(new)] = new
        elif kind == "insert":
            data[place:place] = new
        elif kind == "cut":
            del data[place : place + draw(st.integers(1, len(data) + 1))]
        else:
            data[place:place] = data[place : place + 200]
    return bytes(data)


def check_refusal(error: TokenDynamicsError) -> None:
    """One line of printable characters, not long, that says what was expected."""
    message = str(error)
    assert message.isprintable()
    assert ": expected " in message
    assert len(message) < 700
