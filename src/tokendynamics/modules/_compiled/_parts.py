"""Queries, keys and values of one head: gathered side by side from where a network has them, and written back."""

from __future__ import annotations

from tokendynamics.modules._compiled._lanes import (
    behind,
    count,
    equal,
    fma,
    function,
    get,
    load_first,
    multiply,
    pointer,
    put,
    store,
    store_first,
)

ADDRESS, BY_SYSTEM, BY_HEAD, BY_TOKEN, WIDTH, COSINE, SINE = range(7)
"""What a row of a table of parts tells: the address of the first number, how far systems, heads and tokens are apart,
how many columns there are, and the addresses of the cosines and sines of their angles, (token, column) each, or 0."""


@function
def rounded_up(number, multiple):
    return (number + multiple - 1) // multiple * multiple


@function
def columns(parts):
    """Return how many columns all parts have together."""
    total = 0
    for part in range(len(parts)):
        total += parts[part, WIDTH]
    return total


@function
def fill(place, number, many):
    """Write a number many times, a multiple of the lanes."""
    for one in range(0, many, count(place)):
        store(behind(place, one), equal(place, number))


@function
def _turned(first, second, cosines, sines, half, many, back):
    """Return columns of two halves turned by their angles, (x c₁ + y s₁, y c₂ + x s₂), or by the transpose of that."""
    c_1, c_2 = load_first(cosines, many), load_first(behind(cosines, half), many)
    s_1, s_2 = load_first(sines, many), load_first(behind(sines, half), many)
    if back:
        s_1, s_2 = s_2, s_1
    return fma(first, c_1, multiply(second, s_1)), fma(second, c_2, multiply(first, s_2))


@function
def _copy(source, target, width, factor):
    """Copy the columns of a token, times the factor."""
    for column in range(0, width, count(source)):
        many = width - column
        value = multiply(load_first(behind(source, column), many), factor)
        store_first(behind(target, column), value, many)


@function
def _copy_turned(source, target, width, factor, cosines, sines, back):
    """Copy the columns of a token, times the factor and turned by the angles of its position."""
    half = width // 2
    for column in range(0, half, count(source)):
        many, here, there = half - column, behind(source, column), behind(target, column)
        first, second = load_first(here, many), load_first(behind(here, half), many)
        angles = behind(cosines, column), behind(sines, column)
        first, second = _turned(first, second, angles[0], angles[1], half, many, back)
        store_first(there, multiply(first, factor), many)
        store_first(behind(there, half), multiply(second, factor), many)


@function
def _carry(parts, head, like, tokens, room, factor, back):
    """Copy columns of all parts between the tokens of a head and rows of memory: into it, or back."""
    (system, number), (first, rows), (place, apart), offset = head, tokens, room, 0
    times = equal(place, factor)
    for part in range(len(parts)):
        row = parts[part]
        start = row[ADDRESS] + like.itemsize * (system * row[BY_SYSTEM] + number * row[BY_HEAD] + first * row[BY_TOKEN])
        own, width = pointer(start, like), row[WIDTH]
        past = like.itemsize * first * width
        cosines, sines = pointer(row[COSINE] + past, like), pointer(row[SINE] + past, like)
        for token in range(rows):
            given, inside = behind(own, token * row[BY_TOKEN]), behind(place, token * apart + offset)
            source, target = (inside, given) if back else (given, inside)
            if row[COSINE]:
                here = behind(cosines, token * width), behind(sines, token * width)
                _copy_turned(source, target, width, times, here[0], here[1], back)
            else:
                _copy(source, target, width, times)
        offset += width


@function
def gather(parts, head, like, tokens, room, factor):
    """Write all columns of the tokens of a head side by side, turned, times the factor.

    Args:
        parts: A table, a row for each part.
        head: System and head.
        like: An array of the dtype.
        tokens: The first, and how many.
        room: Where they go to, and how far tokens are apart there.
        factor: A number.
    """
    _carry(parts, head, like, tokens, room, factor, False)


@function
def hand_out(parts, head, like, tokens, room, factor):
    """Write rows of memory to all parts, each to its own, turned back: the transpose of `gather`."""
    _carry(parts, head, like, tokens, room, factor, True)


@function
def transpose(rows, many, width, into, panel):
    """Write (row, column) as (row // panel, column, row % panel): side by side is one column of a panel's rows."""
    for first in range(0, many, panel):
        for column in range(width):
            for row in range(panel):
                number = get(behind(rows, (first + row) * width + column))
                put(behind(into, first * width + column * panel + row), number)
