"""Eight float64 numbers side by side as one value of numba's, with arithmetic, memory access and an exponential.

numba has no vector values, and its vectoriser leaves loops with an exponential alone. `lanes` is LLVM's
``<8 x double>``: one register with AVX-512, two with AVX2, four with SSE2 and NEON; LLVM splits it by itself. A number
stands for eight equal ones wherever lanes are expected. `row` values are tuples of lanes, a feature each: their number
is known to the compiler, which keeps them in registers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from tokendynamics.dynamics.engines.compiled._known import PartCompiler

WIDTH = 8

_DOUBLE, _BIT, LONG = ir.DoubleType(), ir.IntType(1), ir.IntType(64)
VECTOR, _BITS, _LONGS = (ir.VectorType(one, WIDTH) for one in (_DOUBLE, _BIT, LONG))
_ALIGNMENT = 8 * WIDTH


class LanesType(types.Type):
    """Eight float64 numbers, one for each of eight systems."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


class MaskType(types.Type):
    """Eight truth values."""

    def __init__(self) -> None:
        super().__init__(name="mask")


lanes, mask, memory = LanesType(), MaskType(), types.CPointer(types.float64)


# Nobody calls parts of the loop from Python: they get neither the doors for that nor machine code of their own.
_OF_PARTS: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": PartCompiler,
}


def function(python: Callable[..., Any]) -> Any:
    """Return a function for the compiler: a division by zero gives an infinity, as eight of them do."""
    return njit(**_OF_PARTS)(python)


def inlined(python: Callable[..., Any]) -> Any:
    """Return a `function` that is always made part of its caller."""
    return njit(forceinline=True, **_OF_PARTS)(python)


def instruction(typing: Callable[..., Any]) -> Any:
    """Return a function that is written in the instructions of LLVM."""
    return intrinsic(typing)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


@register_model(MaskType)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _BITS)


def as_lanes(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    """Lower a number to lanes that all hold it."""
    if kind == lanes:
        return value
    number = context.cast(builder, value, kind, types.float64)
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    )


def _register(operation: Any, accepts: Callable[..., bool], result: Any, emit: Callable[..., Any]) -> None:
    """Teach numba an operator on lanes or masks."""

    @infer_global(operation)  # pyright: ignore[reportOptionalCall]
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            return signature(result, *args) if accepts(*args) else None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if mask not in sig.args:
            args = [as_lanes(context, builder, value, kind) for value, kind in zip(args, sig.args, strict=True)]
        return emit(builder, *args)

    sides = (mask, lanes, types.Float, types.Integer)
    if operation in (operator.invert, operator.neg):
        lower_builtin(operation, mask if operation is operator.invert else lanes)(lower)
        return
    for first in sides:
        for second in sides:
            if lanes in (first, second) or first == second == mask:
                lower_builtin(operation, first, second)(lower)


def _one_is_lanes(*kinds: Any) -> bool:
    return lanes in kinds and all(isinstance(kind, LanesType | types.Float | types.Integer) for kind in kinds)


def _all_are_masks(*kinds: Any) -> bool:
    return all(kind == mask for kind in kinds)


for _operation, _name in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv"),
):  # fmt: skip
    _register(_operation, _one_is_lanes, lanes, lambda builder, *args, name=_name: getattr(builder, name)(*args))
_register(operator.neg, _one_is_lanes, lanes, lambda builder, value: builder.fneg(value))
for _operation, _sign in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">=")):
    # Ordered: whatever is compared with NaN is false.
    _register(_operation, _one_is_lanes, mask, lambda builder, *args, sign=_sign: builder.fcmp_ordered(sign, *args))
_register(operator.and_, _all_are_masks, mask, lambda builder, *args: builder.and_(*args))
_register(operator.or_, _all_are_masks, mask, lambda builder, *args: builder.or_(*args))
_register(operator.invert, _all_are_masks, mask, lambda builder, value: builder.not_(value))


def fused(context: Any, builder: Any, first: Any, second: Any, third: Any) -> Any:
    """Lower first * second + third with one rounding."""
    # `fma` itself is a call for every number where the processor has no such instruction.
    call = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fmuladd.v{WIDTH}f64"
    )
    return builder.call(call, (first, second, third))


def _unary(builder: Any, name: str, value: Any) -> Any:
    call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.{name}.v{WIDTH}f64")
    return builder.call(call, (value,))


@instruction
def fma(typing: Any, first: Any, second: Any, third: Any) -> Any:
    """Return first · second + third."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return fused(
            context, builder, *(as_lanes(context, builder, *pair) for pair in zip(args, sig.args, strict=True))
        )

    return lanes(first, second, third), emit


@instruction
def broadcast(typing: Any, number: Any) -> Any:
    """Return eight equal numbers."""
    return lanes(number), lambda context, builder, sig, args: as_lanes(context, builder, args[0], sig.args[0])


@instruction
def sqrt(typing: Any, x: Any) -> Any:
    """Return the square roots."""
    return lanes(x), lambda context, builder, sig, args: _unary(builder, "sqrt", args[0])


@instruction
def absolute(typing: Any, x: Any) -> Any:
    """Return the absolute values."""
    return lanes(x), lambda context, builder, sig, args: _unary(builder, "fabs", args[0])


@instruction
def select(typing: Any, which: Any, first: Any, second: Any) -> Any:
    """Return `first` where the mask holds and `second` elsewhere."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sides = (as_lanes(context, builder, *pair) for pair in zip(args[1:], sig.args[1:], strict=True))
        return builder.select(args[0], *sides)

    return lanes(which, first, second), emit


@instruction
def at_least(typing: Any, x: Any, bound: Any) -> Any:
    """Return the larger of x and the bound; NaN where x is NaN."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, least = (as_lanes(context, builder, *pair) for pair in zip(args, sig.args, strict=True))
        return builder.select(builder.fcmp_ordered("<", value, least), least, value)

    return lanes(x, bound), emit


@instruction
def any_of(typing: Any, which: Any) -> Any:
    """Tell whether the mask holds in some lane."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.icmp_unsigned(
            "!=", builder.bitcast(args[0], ir.IntType(WIDTH)), ir.Constant(ir.IntType(WIDTH), 0)
        )

    return types.boolean(which), emit


@instruction
def holds(typing: Any, which: Any, lane: Any) -> Any:
    """Tell whether the mask holds in one lane."""
    return types.boolean(which, lane), lambda context, builder, sig, args: builder.extract_element(*args)


def _read_as(kind: Any) -> Callable[..., Any]:
    def typing(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(address), emit

    return typing


# Arrays come as whole numbers, their addresses: the compiler then has nothing to count, to check or to pass on. Whoever
# calls the loop keeps them alive.
floats = instruction(_read_as(memory))
integers = instruction(_read_as(types.CPointer(types.int64)))


def load_lanes(builder: Any, place: Any, index: Any) -> Any:
    """Lower the read of the lanes at an index of an array."""
    vector = builder.load(builder.gep(builder.bitcast(place, VECTOR.as_pointer()), [index]))
    vector.align = _ALIGNMENT
    return vector


def store_lanes(builder: Any, value: Any, place: Any, index: Any) -> None:
    """Lower the write of lanes to an index of an array."""
    builder.store(value, builder.gep(builder.bitcast(place, VECTOR.as_pointer()), [index])).align = _ALIGNMENT


@instruction
def behind(typing: Any, place: Any, count: Any) -> Any:
    """Return the address `count` lanes further on."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [builder.mul(args[1], ir.Constant(LONG, WIDTH))])

    return memory(place, types.intp), emit


@instruction
def load(typing: Any, place: Any, index: Any) -> Any:
    """Return the eight numbers at ``place[8 · index]``, an aligned address."""
    return lanes(place, types.intp), lambda context, builder, sig, args: load_lanes(builder, *args)


@instruction
def store(typing: Any, place: Any, index: Any, value: Any) -> Any:
    """Write eight numbers to ``place[8 · index]``."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        store_lanes(builder, as_lanes(context, builder, args[2], sig.args[2]), *args[:2])
        return context.get_dummy_value()

    return types.void(place, types.intp, value), emit


@instruction
def _times_power_of_two(typing: Any, x: Any, shifted: Any) -> Any:
    """Return x · 2^n for the whole number n in the lowest bits of `shifted`; the result must be a normal number."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits, power = (builder.bitcast(value, _LONGS) for value in args)
        power = builder.shl(power, ir.Constant(_LONGS, [52] * WIDTH))
        return builder.bitcast(builder.add(bits, power), VECTOR)

    return lanes(x, shifted), emit


@instruction
def _exponent_and_mantissa(typing: Any, x: Any) -> Any:
    """Return e and m with x = m · 2^e and 1 ≤ m < 2, of positive normal numbers."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], _LONGS)
        biased = builder.lshr(bits, ir.Constant(_LONGS, [52] * WIDTH))
        exponent = builder.fsub(builder.sitofp(biased, VECTOR), ir.Constant(VECTOR, [1023.0] * WIDTH))
        fraction = builder.and_(bits, ir.Constant(_LONGS, [2**52 - 1] * WIDTH))
        mantissa = builder.bitcast(builder.or_(fraction, ir.Constant(_LONGS, [1023 << 52] * WIDTH)), VECTOR)
        return cgutils.pack_array(builder, [exponent, mantissa])

    return types.UniTuple(lanes, 2)(x), emit


_LOWEST = -708.0
_LOG2_E, _SHIFT = 1.4426950408889634, 1.5 * 2.0**52
# log 2 in two parts: a whole number below 2^11 times the first is exact, so that nothing depends on fused products.
_LOG_2 = float.fromhex("0x1.62E42FEFA0000p-1")
_LOG_2_REST = float.fromhex("0x1.CF79ABC9E3B3Ap-40")
# (e^r − 1 − r)/r² for |r| ≤ log(2)/2, interpolated at ten Chebyshev nodes: e^r is then right to 1.6e-17.
_C2, _C3, _C4, _C5 = 0.5000000000000001, 0.16666666666666669, 0.04166666666662413, 0.008333333333330062
_C6, _C7, _C8 = 0.0013888888917213717, 0.00019841269863053618, 2.4801521295954376e-05
_C9, _C10, _C11 = 2.7557268459997064e-06, 2.7620088445409746e-07, 2.510038549551032e-08


@inlined
def exp(x):
    """Return e^x, to one unit in the last place for −708 ≤ x ≤ 709; e^−708 below that, and NaN for NaN."""
    x = at_least(x, _LOWEST)
    shifted = fma(x, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    # What is left of the reduction, r = first − rest, is not rounded where it counts most: in the sum at the end.
    first, rest = fma(n, -_LOG_2, x), n * _LOG_2_REST
    r = first - rest
    p = fma(fma(r, _C11, _C10), r, _C9)
    p = fma(fma(p, r, _C8), r, _C7)
    p = fma(fma(p, r, _C6), r, _C5)
    p = fma(fma(p, r, _C4), r, _C3)
    p = fma(p, r, _C2)
    return _times_power_of_two(1.0 + (first + fma(r * r, p, -rest)), shifted)


@inlined
def rough_log(x):
    """Return log x of positive normal numbers to 1e-4: for step sizes, of which two digits count."""
    exponent, mantissa = _exponent_and_mantissa(x)
    m = mantissa - 1.0
    p = fma(fma(fma(fma(m, 0.05866494, -0.22510303), m, 0.44059903), m, -0.71671466), m, 1.44260389)
    return 0.6931471805599453 * fma(p, m, exponent)


def room(count: int) -> tuple[np.ndarray, int]:
    """Return an array of zeros with room for `count` lanes, and the address from where the processor reads fastest."""
    array = np.zeros(WIDTH * (count + 1))
    return array, -(-array.ctypes.data // _ALIGNMENT) * _ALIGNMENT


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
