"""Rows: a token of eight systems, as a tuple of lanes, one for each feature.

Their number is known to the compiler, which keeps them in registers: every loop over features is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tokendynamics.dynamics.engines.compiled.lanes import (
    LONG,
    VECTOR,
    WIDTH,
    as_lanes,
    fused,
    instruction,
    lanes,
    load_lanes,
    store_lanes,
)


@instruction
def zeros(typing: Any, features: Any) -> Any:
    """Return a row of zeros, as long as the tuple `features`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return cgutils.pack_array(builder, [ir.Constant(VECTOR, [0.0] * WIDTH)] * len(sig.args[0]))

    return types.UniTuple(lanes, len(features))(features), emit


@instruction
def load_row(typing: Any, features: Any, place: Any, index: Any) -> Any:
    """Return as many lanes from `index` on as the tuple `features` is long."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = [
            load_lanes(builder, args[1], builder.add(args[2], ir.Constant(LONG, feature)))
            for feature in range(len(sig.args[0]))
        ]
        return cgutils.pack_array(builder, parts)

    return types.UniTuple(lanes, len(features))(features, place, types.intp), emit


@instruction
def store_row(typing: Any, place: Any, index: Any, row: Any) -> Any:
    """Write a row from `index` on."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        for feature, value in enumerate(cgutils.unpack_tuple(builder, args[2])):
            store_lanes(builder, value, args[0], builder.add(args[1], ir.Constant(LONG, feature)))
        return context.get_dummy_value()

    return types.void(place, types.intp, row), emit


@instruction
def dot(typing: Any, first: Any, second: Any) -> Any:
    """Return the inner product of two rows."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (one, other), *pairs = zip(*(cgutils.unpack_tuple(builder, row) for row in args), strict=True)
        total = builder.fmul(one, other)
        for one, other in pairs:
            total = fused(context, builder, one, other, total)
        return total

    return lanes(first, second), emit


@instruction
def added(typing: Any, factor: Any, row: Any, to: Any) -> Any:
    """Return ``factor · row + to``, the factor being lanes or a number."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = as_lanes(context, builder, args[0], sig.args[0])
        pairs = zip(*(cgutils.unpack_tuple(builder, one) for one in args[1:]), strict=True)
        return cgutils.pack_array(builder, [fused(context, builder, number, *pair) for pair in pairs])

    return row(factor, row, to), emit


@instruction
def scaled(typing: Any, factor: Any, row: Any) -> Any:
    """Return ``factor · row``, the factor being lanes or a number."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = as_lanes(context, builder, args[0], sig.args[0])
        return cgutils.pack_array(
            builder, [builder.fmul(number, one) for one in cgutils.unpack_tuple(builder, args[1])]
        )

    return row(factor, row), emit


@instruction
def chosen(typing: Any, which: Any, first: Any, second: Any) -> Any:
    """Return the row `first` where the mask holds and `second` elsewhere."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pairs = zip(*(cgutils.unpack_tuple(builder, one) for one in args[1:]), strict=True)
        return cgutils.pack_array(builder, [builder.select(args[0], *pair) for pair in pairs])

    return first(which, first, second), emit


def _product(transposed: bool) -> Callable[..., Any]:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row = cgutils.unpack_tuple(builder, args[2])
        size, totals = len(row), []
        for one in range(size):
            total = None
            for other, value in enumerate(row):
                number = other * size + one if transposed else one * size + other
                entry = load_lanes(builder, args[0], builder.add(args[1], ir.Constant(LONG, number)))
                total = builder.fmul(entry, value) if total is None else fused(context, builder, entry, value, total)
            totals.append(total)
        return cgutils.pack_array(builder, totals)

    return emit


@instruction
def matrix_times(typing: Any, place: Any, index: Any, row: Any) -> Any:
    """Return ``B row`` for the square matrices stored from `index` on."""
    return row(place, types.intp, row), _product(transposed=False)


@instruction
def transpose_times(typing: Any, place: Any, index: Any, row: Any) -> Any:
    """Return ``B^T row`` for the square matrices stored from `index` on."""
    return row(place, types.intp, row), _product(transposed=True)
