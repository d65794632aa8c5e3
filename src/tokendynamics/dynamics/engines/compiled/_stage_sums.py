"""Sums over the stages of a step by the coefficients of a tableau, which the compiler knows: zeros cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tokendynamics.dynamics.engines.compiled._known import known_value
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
from tokendynamics.dynamics.engines.tableau import TABLEAUS, Row, Tableau


def _tableau(method: Any) -> Tableau:
    return TABLEAUS[known_value(method, "tableau")]


def _equal(number: Any) -> Any:
    return ir.Constant(VECTOR, [float(number)] * WIDTH)


def _slope(builder: Any, slopes: Any, stage: int, entry: Any, entries: Any) -> Any:
    return load_lanes(builder, slopes, builder.add(entry, builder.mul(entries, ir.Constant(LONG, stage))))


def _sum(context: Any, builder: Any, row: Row, slopes: Any, entry: Any, entries: Any) -> Any:
    total = None
    for stage, factor in enumerate(row):
        # Stages of weight zero are left out: they may have overflowed without mattering.
        if factor == 0:
            continue
        value = _slope(builder, slopes, stage, entry, entries)
        factor = _equal(factor)
        total = builder.fmul(factor, value) if total is None else fused(context, builder, factor, value, total)
    return _equal(0.0) if total is None else total


@instruction
def move_to_stage(typing: Any, method: Any, stage: Any, y: Any, slopes: Any, h: Any, entries: Any, into: Any) -> Any:
    """Write ``y + h Σ_s a_stage,s k_s``, the state of a stage after the first."""
    rows = dict(enumerate((*_tableau(method).stages, *_tableau(method).extra_stages)))

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, stage, y, slopes, h, entries, into = args
        h, done = as_lanes(context, builder, h, sig.args[4]), builder.append_basic_block("moved")
        choice = builder.switch(stage, done)
        for number, row in rows.items():
            block = builder.append_basic_block(f"stage{number}")
            choice.add_case(ir.Constant(LONG, number), block)
            builder.position_at_end(block)
            with cgutils.for_range(builder, entries) as loop:
                total = _sum(context, builder, row, slopes, loop.index, entries)
                state = fused(context, builder, h, total, load_lanes(builder, y, loop.index))
                store_lanes(builder, state, into, loop.index)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(method, types.intp, y, slopes, h, types.intp, into), emit


def _combination(row_of: Callable[[Tableau], Row]) -> Callable[..., Any]:
    def typing(typing: Any, method: Any, slopes: Any, entry: Any, entries: Any) -> Any:
        row = row_of(_tableau(method))

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _sum(context, builder, row, *args[1:])

        return lanes(method, slopes, types.intp, types.intp), emit

    return typing


error_of = instruction(_combination(lambda tableau: tableau.error))
coarse_error_of = instruction(_combination(lambda tableau: tableau.coarse))


@instruction
def move_within(typing: Any, method: Any, share: Any, h: Any, y: Any, slopes: Any, entries: Any, into: Any) -> Any:
    """Write the states at the shares θ of the step, by the continuous extension; see `Tableau.extension`."""
    rows = {stage: row for stage, row in enumerate(_tableau(method).extension) if any(row)}

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, share, h, y, slopes, entries, into = args
        other = builder.fsub(_equal(1.0), share)
        weights = {}
        for stage, row in rows.items():
            total = _equal(0.0)
            for power in range(len(row) - 1, -1, -1):
                total = fused(context, builder, total, other if power % 2 == 0 else share, _equal(row[power]))
            weights[stage] = builder.fmul(builder.fmul(h, total), share)
        with cgutils.for_range(builder, entries) as loop:
            total = load_lanes(builder, y, loop.index)
            for stage, weight in weights.items():
                value = _slope(builder, slopes, stage, loop.index, entries)
                total = fused(context, builder, weight, value, total)
            store_lanes(builder, total, into, loop.index)
        return context.get_dummy_value()

    return types.void(method, share, h, y, slopes, types.intp, into), emit
