"""The loops over heads: attention, and its gradients, in blocks of rows whose weights stay in the cache.

A head's queries, keys and values are gathered side by side into memory of the loop's own. Of a block of rows all
logits that are wanted are made, turned into weights, used and forgotten; for the gradients they are made again.
Attention keeps for them each row's largest logit and one over the sum of its exponentials.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from tokendynamics.modules._compiled._lanes import (
    BYTES,
    add,
    behind,
    count,
    equal,
    exp,
    fma,
    function,
    larger,
    largest,
    load,
    multiply,
    only_first,
    start,
    store,
    subtract,
    total,
)
from tokendynamics.modules._compiled._parts import columns, fill, gather, hand_out, rounded_up, transpose
from tokendynamics.modules._compiled._products import ROWS, Left, Rows, product

_BLOCK = 32
"""Rows whose weights are made at once. With more of them, more weights are made that causal attention does not want."""
_TERMS = 256
"""Of a sum over keys that are added one after the other; such sums are added then, which rounds less."""
_PANEL = 2
"""Vectors of keys that stand side by side, transposed."""


class Shape(NamedTuple):
    """What is to be done: heads of a system, tokens, whether token i sees only tokens j ≤ i, and the logits' factor."""

    heads: int
    tokens: int
    causal: bool
    scale: float


class _Block(NamedTuple):
    """Rows of queries whose weights are made at once: the first, and how many."""

    first: int
    rows: int


@function
def _memory(many, like):
    """Return memory of so many noughts, and its first place, where a line of the cache begins."""
    lanes = BYTES // like.itemsize
    array = np.zeros(many + lanes, like.dtype)
    past = (array.ctypes.data // like.itemsize) % lanes
    return array, start(array, (lanes - past) % lanes)


@function
def _seen(shape, block, row):
    """Return how many keys the rows of the block up to this one, counted from nought, see."""
    return min(block.first + row + 1, shape.tokens) if shape.causal else shape.tokens


@function
def _times_panels(rows, panels, width, shape, block, into):
    """Write the products of the rows of a block with those of all tokens that they see, which stand in panels."""
    lanes = count(panels)
    for panel in range(0, _seen(shape, block, block.rows - 1), _PANEL * lanes):
        right = Rows(behind(panels, panel * width), _PANEL * lanes)
        for row in range(0, block.rows, ROWS):
            wanted = min(_PANEL * lanes, rounded_up(_seen(shape, block, row + ROWS - 1) - panel, lanes))
            if wanted > 0:
                left = Left(behind(rows, row * width), width, 1)
                there = behind(into.place, row * into.apart + panel)
                product(left, right, width, Rows(there, into.apart), wanted, False)


@function
def _times_rows(weights, rows, width, shape, block, into):
    """Write the sums of the rows of all tokens that the rows of a block see, with their weights."""
    for row in range(0, block.rows, ROWS):
        seen, there = _seen(shape, block, row + ROWS - 1), Rows(behind(into, row * width), width)
        for key in range(0, seen, _TERMS):
            left = Left(behind(weights.place, row * weights.apart + key), weights.apart, 1)
            right, terms = Rows(behind(rows, key * width), width), min(_TERMS, seen - key)
            product(left, right, terms, there, width, key > 0)


@function
def _add_transposed(weights, rows, width, shape, block, into):
    """Add, to the rows of all tokens that are seen, the rows of the block with their weights."""
    for key in range(0, _seen(shape, block, block.rows - 1), ROWS):
        first = max(0, key - block.first) if shape.causal else 0
        left = Left(behind(weights.place, first * weights.apart + key), 1, weights.apart)
        right, there = Rows(behind(rows, first * width), width), Rows(behind(into, key * width), width)
        product(left, right, block.rows - first, there, width, True)


@function
def _exponentials(row, seen):
    """Replace the logits of a row by e^(logit − largest), nought for what is not seen; return largest and sum."""
    lanes = count(row)
    whole = seen // lanes * lanes
    none, left = equal(row, -np.inf), seen - whole
    peak = only_first(load(behind(row, whole)), left, none) if left > 0 else none
    for key in range(0, whole, lanes):
        peak = larger(peak, load(behind(row, key)))
    highest = largest(peak)
    peak, summed = equal(row, highest), equal(row, 0.0)
    for key in range(0, whole, lanes):
        share = exp(subtract(load(behind(row, key)), peak))
        store(behind(row, key), share)
        summed = add(summed, share)
    if left > 0:
        share = only_first(exp(subtract(load(behind(row, whole)), peak)), left, equal(row, 0.0))
        store(behind(row, whole), share)
        summed = add(summed, share)
    return highest, total(summed)


@function
def _slopes(weights, slopes, seen, highest, share):
    """Replace the logits of a row by its weights, and the gradients by them by those by the logits."""
    lanes, peak, times = count(weights), equal(weights, highest), equal(weights, share)
    nought = equal(weights, 0.0)
    mean = nought
    for key in range(0, seen, lanes):
        weight = multiply(exp(subtract(load(behind(weights, key)), peak)), times)
        slope = load(behind(slopes, key))
        if seen - key < lanes:
            weight, slope = only_first(weight, seen - key, nought), only_first(slope, seen - key, nought)
            store(behind(slopes, key), slope)
        store(behind(weights, key), weight)
        mean = fma(weight, slope, mean)
    mean = equal(weights, total(mean))
    for key in range(0, seen, lanes):
        slope = subtract(load(behind(slopes, key)), mean)
        store(behind(slopes, key), multiply(load(behind(weights, key)), slope))


@function
def _attend(queries, keys, values, mixed, kept, shape, units):
    """Do the heads of all systems from the first to the last unit."""
    lanes, tokens = BYTES // kept.itemsize, shape.tokens
    width, value_width = rounded_up(columns(queries), lanes), rounded_up(columns(values), lanes)
    padded = rounded_up(tokens, _PANEL * lanes)
    array, query = _memory((_BLOCK + 2 * padded) * width + (_BLOCK + padded) * value_width + _BLOCK * padded, kept)
    key = behind(query, _BLOCK * width)
    key_panels = behind(key, padded * width)
    value = behind(key_panels, padded * width)
    into = behind(value, padded * value_width)
    weights = Rows(behind(into, _BLOCK * value_width), padded)
    for unit in range(units[0], units[1]):
        head = unit // shape.heads, unit % shape.heads
        gather(keys, head, kept, (0, tokens), (key, width), 1.0)
        gather(values, head, kept, (0, tokens), (value, value_width), 1.0)
        transpose(key, padded, width, key_panels, _PANEL * lanes)
        for first in range(0, tokens, _BLOCK):
            block = _Block(first, min(_BLOCK, tokens - first))
            gather(queries, head, kept, (first, block.rows), (query, width), shape.scale)
            _times_panels(query, key_panels, width, shape, block, weights)
            for row in range(block.rows):
                place = behind(weights.place, row * weights.apart)
                highest, summed = _exponentials(place, _seen(shape, block, row))
                kept[unit, first + row, 0], kept[unit, first + row, 1] = highest, 1.0 / summed
            _times_rows(weights, value, value_width, shape, block, into)
            for row in range(block.rows):
                share = equal(into, kept[unit, first + row, 1])
                for column in range(0, value_width, lanes):
                    place = behind(into, row * value_width + column)
                    store(place, multiply(load(place), share))
            hand_out(mixed, head, kept, (first, block.rows), (into, value_width), 1.0)
    return array.size  # the memory must live as long as its places are used


@function
def _gradients(queries, keys, values, towards, of_queries, of_keys, of_values, kept, shape, units):
    """Do the heads of all systems from the first to the last unit."""
    lanes, tokens = BYTES // kept.itemsize, shape.tokens
    width, value_width = rounded_up(columns(queries), lanes), rounded_up(columns(values), lanes)
    padded = rounded_up(tokens, _PANEL * lanes)
    many = (2 * _BLOCK + 3 * padded) * width + (_BLOCK + 3 * padded) * value_width + 2 * _BLOCK * padded
    array, query = _memory(many, kept)
    of_query, key = behind(query, _BLOCK * width), behind(query, 2 * _BLOCK * width)
    key_panels, of_key = behind(key, padded * width), behind(key, 2 * padded * width)
    value = behind(key, 3 * padded * width)
    value_panels, of_value = behind(value, padded * value_width), behind(value, 2 * padded * value_width)
    slope = behind(value, 3 * padded * value_width)
    weights = Rows(behind(slope, _BLOCK * value_width), padded)
    slopes = Rows(behind(weights.place, _BLOCK * padded), padded)
    for unit in range(units[0], units[1]):
        head, everything = (unit // shape.heads, unit % shape.heads), (0, tokens)
        gather(keys, head, kept, everything, (key, width), 1.0)
        gather(values, head, kept, everything, (value, value_width), 1.0)
        transpose(key, padded, width, key_panels, _PANEL * lanes)
        transpose(value, padded, value_width, value_panels, _PANEL * lanes)
        fill(of_key, 0.0, padded * width)
        fill(of_value, 0.0, padded * value_width)
        for first in range(0, tokens, _BLOCK):
            block = _Block(first, min(_BLOCK, tokens - first))
            gather(queries, head, kept, (first, block.rows), (query, width), shape.scale)
            gather(towards, head, kept, (first, block.rows), (slope, value_width), 1.0)
            _times_panels(query, key_panels, width, shape, block, weights)
            _times_panels(slope, value_panels, value_width, shape, block, slopes)
            for row in range(block.rows):
                place, beside = behind(weights.place, row * padded), behind(slopes.place, row * padded)
                highest, share = kept[unit, first + row, 0], kept[unit, first + row, 1]
                _slopes(place, beside, _seen(shape, block, row), highest, share)
            _times_rows(slopes, key, width, shape, block, of_query)
            hand_out(of_queries, head, kept, (first, block.rows), (of_query, width), shape.scale)
            _add_transposed(slopes, query, width, shape, block, of_key)
            _add_transposed(weights, slope, value_width, shape, block, of_value)
        hand_out(of_keys, head, kept, everything, (of_key, width), 1.0)
        hand_out(of_values, head, kept, everything, (of_value, value_width), 1.0)
    return array.size  # the memory must live as long as its places are used


def _sources() -> int:
    """Return a number that changes with any of the files that the loops are compiled from."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")


def _compiled(python: Callable[..., Any]) -> Any:
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(python)
    except RuntimeError:  # neither this folder nor the user's can be written to
        return njit(nogil=True, error_model="numpy")(python)


def _loops(sources: int) -> Any:
    """Return both loops; what is compiled is kept on disk under `sources`: numba itself looks at this one file only."""

    @_compiled
    def attend(queries, keys, values, mixed, kept, shape, units):
        """Write what heads attend to.

        Args:
            queries: Table of parts (see `_parts`); keys, values and mixed, what is written, too.
            keys: One.
            values: One.
            mixed: One.
            kept: (head of all systems, token, 2): each row's largest logit and one over the sum of its exponentials
                are written here.
            shape: What is to be done.
            units: Heads of all systems from the first to before the second.
        """
        return _attend(queries, keys, values, mixed, kept, shape, units), sources

    @_compiled
    def gradients(queries, keys, values, towards, of_queries, of_keys, of_values, kept, shape, units):
        """Write the gradients of what heads attend to, times `towards`, by queries, keys and values: all tables."""
        return (
            _gradients(queries, keys, values, towards, of_queries, of_keys, of_values, kept, shape, units),
            sources,
        )

    return attend, gradients


attend, gradients = _loops(_sources())
