"""Products of small matrices: some rows and lanes of the result stay in registers while all terms are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

from tokendynamics.modules._compiled._lanes import (
    at,
    behind,
    count,
    function,
    fused,
    instruction,
    loaded,
    moved,
    spread,
    stored,
)

_FEATURES: str = config.CPU_FEATURES or get_host_cpu_features()  # pyright: ignore[reportAttributeAccessIssue]
_WIDE = "+avx512f" in _FEATURES.split(",")
ROWS = 8 if _WIDE else 4
"""Of a result in registers: AVX-512 has 32, of which two vectors of eight rows take 16; of 16 elsewhere four take 8."""


class Left(NamedTuple):
    """Numbers of the left factor: the place of the first, and how far rows and terms are apart."""

    place: Any
    by_row: int
    by_term: int


class Rows(NamedTuple):
    """Rows of the right factor, one for each term, or of the result: where the first is, and how far they are apart."""

    place: Any
    apart: int


def _places(builder: Any, kind: Any, vectors: int, first: Any, apart: Any) -> list[Any]:
    """Return where the lanes of all rows of a result stand."""
    rows = [builder.gep(first, [builder.mul(apart, ir.Constant(apart.type, row))]) for row in range(ROWS)]
    return [moved(builder, row, kind.count * vector) for row in rows for vector in range(vectors)]


def _block(vectors: int) -> Callable[..., Any]:
    """Return the product of `ROWS` rows of the left factor and so many vectors of lanes of the right one."""

    @instruction
    def noughts(typing: Any, place: Any) -> Any:
        """Return a result of nought, of the kind that stands at a place."""

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return cgutils.pack_array(builder, [at(place).equal(0)] * (ROWS * vectors))

        return types.UniTuple(at(place), ROWS * vectors)(place), emit

    @instruction
    def write(typing: Any, place: Any, apart: Any, sums: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            places = _places(builder, sums.dtype, vectors, *args[:2])
            for one, value in zip(places, cgutils.unpack_tuple(builder, args[2]), strict=True):
                stored(builder, value, sums.dtype, one)
            return context.get_dummy_value()

        return types.void(place, types.intp, sums), emit

    @instruction
    def add_to(typing: Any, place: Any, apart: Any, sums: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            places = _places(builder, sums.dtype, vectors, *args[:2])
            for one, value in zip(places, cgutils.unpack_tuple(builder, args[2]), strict=True):
                stored(builder, builder.fadd(loaded(builder, sums.dtype, one), value), sums.dtype, one)
            return context.get_dummy_value()

        return types.void(place, types.intp, sums), emit

    @instruction
    def with_term(typing: Any, sums: Any, left: Any, by_row: Any, right: Any) -> Any:
        """Return the sums with the products of one term."""

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind, before = sums.dtype, iter(cgutils.unpack_tuple(builder, args[0]))
            lanes = [loaded(builder, kind, moved(builder, args[3], kind.count * one)) for one in range(vectors)]
            after = []
            for row in range(ROWS):
                number = builder.load(builder.gep(args[1], [builder.mul(args[2], ir.Constant(args[2].type, row))]))
                factor = spread(builder, kind, number)
                after += [fused(builder, kind, factor, one, next(before)) for one in lanes]
            return cgutils.pack_array(builder, after)

        return sums(sums, left, types.intp, right), emit

    @function
    def block(left, right, terms, into, add):
        sums = noughts(into.place)
        for term in range(terms):
            place = behind(left.place, term * left.by_term)
            sums = with_term(sums, place, left.by_row, behind(right.place, term * right.apart))
        if add:  # after the terms, so that rounding grows with those of a product and not with all
            add_to(into.place, into.apart, sums)
        else:
            write(into.place, into.apart, sums)

    return block


_AT_ONCE = 2 if _WIDE else 1
_several, _one = _block(_AT_ONCE), _block(1)


@function
def product(left, right, terms, into, width, add):
    """Write ``Σ_t left[r, t] · right[t, c]`` for `ROWS` rows and columns c < width, or add it to what is there.

    The width is a multiple of the lanes.
    """
    lanes, column = count(into.place), 0
    while column + _AT_ONCE * lanes <= width:
        place = Rows(behind(right.place, column), right.apart)
        _several(left, place, terms, Rows(behind(into.place, column), into.apart), add)
        column += _AT_ONCE * lanes
    while column < width:
        place = Rows(behind(right.place, column), right.apart)
        _one(left, place, terms, Rows(behind(into.place, column), into.apart), add)
        column += lanes
