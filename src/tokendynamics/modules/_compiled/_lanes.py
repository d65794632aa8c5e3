"""Sixteen float32 numbers, or eight float64, side by side as one value of numba's, and where such numbers stand.

numba has no vector values, and its vectoriser leaves loops with an exponential, or with sums of products that should
stay in registers, alone. `LanesType` is LLVM's ``<16 x float>`` or ``<8 x double>``: one register with AVX-512, two
with AVX2, four with SSE2 and NEON; LLVM splits it by itself. What a place holds says which of both is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

BYTES = 64
"""Of a value: what a line of the cache has."""

_INT, _LONG = ir.IntType(32), ir.IntType(64)


class LanesType(types.Type):
    """As many numbers of a kind, float32 or float64, as 64 bytes hold."""

    def __init__(self, number: types.Float) -> None:
        self.number, self.count = number, 8 * BYTES // number.bitwidth
        super().__init__(name=f"lanes of {number}")

    @property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(ir.FloatType() if self.number == types.float32 else ir.DoubleType(), self.count)

    @property
    def whole(self) -> ir.VectorType:
        """Whole numbers of the same size."""
        return ir.VectorType(ir.IntType(self.number.bitwidth), self.count)

    def equal(self, number: float) -> ir.Constant:
        return ir.Constant(self.vector, [float(number)] * self.count)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: LanesType) -> None:
        super().__init__(manager, kind, kind.vector)


def function(python: Callable[..., Any]) -> Any:
    """Return a function for the compiler: a division by zero gives an infinity."""
    # Nobody calls it from Python: the doors for that would take a fifth of the compiler's time.
    return njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(python)  # pyright: ignore[reportCallIssue]


def instruction(typing: Callable[..., Any]) -> Any:
    """Return a function that is written in the instructions of LLVM."""
    return intrinsic(typing)


def at(place: types.CPointer) -> LanesType:
    """Return the kind of lanes that stand at a place."""
    return LanesType(place.dtype)


def spread(builder: Any, kind: LanesType, number: Any) -> Any:
    """Return lanes that all have the number, one of LLVM's of their kind."""
    nothing = ir.Constant(kind.vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, kind.count), [0] * kind.count))


def fused(builder: Any, kind: LanesType, *factors_and_sum: Any) -> Any:
    # `fma` itself is a call for every number where the processor has no such instruction.
    return _called(builder, f"llvm.fmuladd.v{kind.count}f{kind.number.bitwidth}", kind.vector, factors_and_sum)


def _called(builder: Any, name: str, result: Any, args: Any) -> Any:
    kind = ir.FunctionType(result, [value.type for value in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def moved(builder: Any, place: Any, count: Any) -> Any:
    return builder.gep(place, [ir.Constant(_LONG, count) if isinstance(count, int) else count])


def loaded(builder: Any, kind: LanesType, place: Any) -> Any:
    found = builder.load(builder.bitcast(place, kind.vector.as_pointer()))
    found.align = kind.number.bitwidth // 8
    return found


def stored(builder: Any, value: Any, kind: LanesType, place: Any) -> None:
    builder.store(value, builder.bitcast(place, kind.vector.as_pointer())).align = kind.number.bitwidth // 8


def _are_first(builder: Any, kind: LanesType, count: Any) -> Any:
    """Return a truth value for every lane: whether its number is below the count."""
    lanes = ir.VectorType(_LONG, kind.count)
    numbers, nothing = ir.Constant(lanes, list(range(kind.count))), ir.Constant(lanes, ir.Undefined)
    first = builder.insert_element(nothing, count, ir.Constant(_INT, 0))
    same = builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, kind.count), [0] * kind.count))
    return builder.icmp_signed("<", numbers, same)


@instruction
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """Return the place of an address, which has numbers as the array `like` has."""
    place = types.CPointer(like.dtype)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(place))

    return place(types.int64, like), emit


@instruction
def start(typing: Any, array: Any, first: Any) -> Any:
    """Return the place of ``array[first]`` of a flat array, which must live as long as the place is used."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(context.make_array(sig.args[0])(context, builder, args[0]).data, [args[1]])

    return types.CPointer(array.dtype)(array, types.intp), emit


@instruction
def behind(typing: Any, place: Any, count: Any) -> Any:
    """Return the place `count` numbers further on."""
    return place(place, types.intp), lambda context, builder, sig, args: builder.gep(args[0], [args[1]])


@instruction
def count(typing: Any, place: Any) -> Any:
    """Return how many numbers the lanes at a place have."""
    return types.intp(place), lambda context, builder, sig, args: ir.Constant(_LONG, at(sig.args[0]).count)


@instruction
def get(typing: Any, place: Any) -> Any:
    """Return the number at a place."""
    return place.dtype(place), lambda context, builder, sig, args: builder.load(args[0])


@instruction
def put(typing: Any, place: Any, number: Any) -> Any:
    """Write a number, rounded to the kind that stands there."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(context.cast(builder, args[1], sig.args[1], sig.args[0].dtype), args[0])
        return context.get_dummy_value()

    return types.void(place, number), emit


@instruction
def load(typing: Any, place: Any) -> Any:
    """Return the lanes that stand at a place."""
    return at(place)(place), lambda context, builder, sig, args: loaded(builder, at(sig.args[0]), args[0])


@instruction
def store(typing: Any, place: Any, value: Any) -> Any:
    """Write lanes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        stored(builder, args[1], sig.args[1], args[0])
        return context.get_dummy_value()

    return types.void(place, at(place)), emit


@instruction
def load_first(typing: Any, place: Any, count: Any) -> Any:
    """Return the first `count` lanes and noughts: what stands behind them is not touched."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = at(sig.args[0])
        where = builder.bitcast(args[0], kind.vector.as_pointer())
        size, those = ir.Constant(_INT, kind.number.bitwidth // 8), _are_first(builder, kind, args[1])
        name = f"llvm.masked.load.v{kind.count}f{kind.number.bitwidth}.p0"
        return _called(builder, name, kind.vector, (where, size, those, kind.equal(0)))

    return at(place)(place, types.intp), emit


@instruction
def store_first(typing: Any, place: Any, value: Any, count: Any) -> Any:
    """Write the first `count` lanes."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[1]
        where = builder.bitcast(args[0], kind.vector.as_pointer())
        size, those = ir.Constant(_INT, kind.number.bitwidth // 8), _are_first(builder, kind, args[2])
        name = f"llvm.masked.store.v{kind.count}f{kind.number.bitwidth}.p0"
        _called(builder, name, ir.VoidType(), (args[1], where, size, those))
        return context.get_dummy_value()

    return types.void(place, at(place), types.intp), emit


@instruction
def equal(typing: Any, place: Any, number: Any) -> Any:
    """Return lanes that all have the number, of the kind that stands at a place."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = at(sig.args[0])
        return spread(builder, kind, context.cast(builder, args[1], sig.args[1], kind.number))

    return at(place)(place, number), emit


@instruction
def only_first(typing: Any, value: Any, count: Any, other: Any) -> Any:
    """Return the first `count` lanes, and those of `other` behind them."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_are_first(builder, sig.args[0], args[1]), args[0], args[2])

    return value(value, types.intp, value), emit


@instruction
def add(typing: Any, first: Any, second: Any) -> Any:
    """Return the sums."""
    return first(first, first), lambda context, builder, sig, args: builder.fadd(*args)


@instruction
def subtract(typing: Any, first: Any, second: Any) -> Any:
    """Return the differences."""
    return first(first, first), lambda context, builder, sig, args: builder.fsub(*args)


@instruction
def multiply(typing: Any, first: Any, second: Any) -> Any:
    """Return the products."""
    return first(first, first), lambda context, builder, sig, args: builder.fmul(*args)


@instruction
def fma(typing: Any, first: Any, second: Any, third: Any) -> Any:
    """Return first · second + third."""
    return first(first, first, first), lambda context, builder, sig, args: fused(builder, sig.return_type, *args)


def _greater(builder: Any, first: Any, second: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", second, first), second, first)


@instruction
def larger(typing: Any, first: Any, second: Any) -> Any:
    """Return the larger ones; the first where the second is NaN."""
    return first(first, first), lambda context, builder, sig, args: _greater(builder, *args)


def _reduced(value: Any, operation: Callable[..., Any]) -> Any:
    """Return numba's signature and LLVM's instructions that make one number of all lanes, halves with halves."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rest, count = args[0], sig.args[0].count
        while count > 1:
            count //= 2
            halves = (
                ir.Constant(ir.VectorType(_INT, count), list(range(first, first + count))) for first in (0, count)
            )
            rest = operation(builder, *(builder.shuffle_vector(rest, rest, half) for half in halves))
        return builder.extract_element(rest, ir.Constant(_INT, 0))

    return value.number(value), emit


@instruction
def total(typing: Any, value: Any) -> Any:
    """Return the sum of all lanes."""
    return _reduced(value, lambda builder, first, second: builder.fadd(first, second))


@instruction
def largest(typing: Any, value: Any) -> Any:
    """Return the largest of all lanes."""
    return _reduced(value, _greater)


_EXPONENT = {32: (23, -87.0, 2.0**15, 7), 64: (52, -708.0, 2.0**40, 13)}
"""Bits behind which the exponent stands, where e^x is still a normal number, and for what is left, |r| ≤ log(2)/2: what
the first part of log 2 is a multiple of, times which a whole number is exact, and terms of the series of e^r."""


@instruction
def exp(typing: Any, x: Any) -> Any:
    """Return e^x for x ≤ 0, to two units in the last place; nought below −87 (float32) or −708, NaN for NaN."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind: LanesType = sig.args[0]
        bits, lowest, parts, terms = _EXPONENT[kind.number.bitwidth]
        log_2 = round(math.log(2) * parts) / parts
        # Times a thousand, what float64 leaves out of log 2 would be a hundred units in the last place.
        shift, rest = kind.equal(1.5 * 2.0**bits), kind.equal(float(Decimal(log_2) - Decimal(2).ln()))
        below = builder.fcmp_ordered("<", args[0], kind.equal(lowest))
        x = builder.select(below, kind.equal(lowest), args[0])
        shifted = fused(builder, kind, x, kind.equal(1 / math.log(2)), shift)
        n = builder.fsub(shifted, shift)
        r = fused(builder, kind, n, rest, fused(builder, kind, n, kind.equal(-log_2), x))
        series = kind.equal(1 / math.factorial(terms))
        for term in range(terms - 1, -1, -1):
            series = fused(builder, kind, series, r, kind.equal(1 / math.factorial(term)))
        power = builder.shl(builder.bitcast(shifted, kind.whole), ir.Constant(kind.whole, [bits] * kind.count))
        whole = builder.bitcast(builder.add(builder.bitcast(series, kind.whole), power), kind.vector)
        known = builder.select(below, kind.equal(0), whole)
        return builder.select(builder.fcmp_unordered("uno", args[0], args[0]), args[0], known)

    return x(x), emit
