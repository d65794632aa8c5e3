"""The systems that a run takes, and the eight that are under way, as numba sees them.

Eight systems lie side by side: entry k of a system in lane l stands at ``array[8 · k + l]``. Arrays of systems that
share their matrices have one entry along the first axis.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tokendynamics.dynamics.engines.compiled.lanes import WIDTH, behind, floats, function, inlined, store

SOFTMAX, EXPONENTIAL, LINEAR = 0, 1, 2
"""Kinds of weights."""


class Options(NamedTuple):
    """What all systems of a run share.

    Attributes:
        tokens: Tokens of a system.
        heads: Heads.
        rotary: Coordinates that rotary positions turn; 0 without them.
        rotates: Whether there are any; known to the compiler.
        causal: Whether token i sees tokens j ≤ i only.
        weights: Which kind: `SOFTMAX`, `EXPONENTIAL` or `LINEAR`.
        offset: Taken off the logits of exponential weights.
        constrained: Whether tokens are held to ``y^T M y = 1``.
        has_metric: Whether M is not the identity.
        has_table: Whether attention reads x + p.
        turning: Whether a circuit depends on time; known to the compiler.
        multiple: Whether ov is a multiple of the identity, so that differences give the velocity of slow tokens.
        relative: Whether what attention carries is taken relative to the receiver.
    """

    tokens: int
    heads: int
    rotary: int
    rotates: Any
    causal: bool
    weights: int
    offset: float
    constrained: bool
    has_metric: bool
    has_table: bool
    turning: Any
    multiple: bool
    relative: bool


WAVE, ABSOLUTE, GROWING = 0.0, 1.0, 2.0
"""Kinds of gates."""


class Circuit(NamedTuple):
    """Matrices ``diag(gate) B`` with gates ``amplitude · sin(frequency · t + phase)``, with |sin|, or growing.

    Attributes:
        matrix: Address of B, (system or 1, head · row · column).
        matrices: How many B there are.
        gates: Address of amplitude, frequency, phase and kind, (system or 1, head · row · 4). A growing gate is
            ``amplitude · exp(frequency · t)``, with the exponent no larger than `phase`.
        gated: How many of these there are; 0 where nothing turns.
        rows: Rows of all heads.
        columns: Columns.
    """

    matrix: int
    matrices: int
    gates: int
    gated: int
    rows: int
    columns: int


class Systems(NamedTuple):
    """Matrices of all systems, and what belongs to each token.

    Attributes:
        qk: The QK circuits, with what multiplies all logits.
        ov: The OV circuits, with what multiplies all weights.
        query: Of rotary positions, (dim, rank) matrices, with what multiplies all logits.
        key: Likewise.
        metric: Address of (system or 1, dim · dim).
        metrics: How many there are.
        table: Address of absolute positions, (token · dim).
        turns: Address of cosine and sine of the angle of each token and pair, (token · rank).
    """

    qk: Circuit
    ov: Circuit
    query: Circuit
    key: Circuit
    metric: int
    metrics: int
    table: int
    turns: int


class InLanes(NamedTuple):
    """A circuit of eight systems, as addresses.

    Attributes:
        now: The matrices as they are at the time at hand.
        matrix: B.
        gates: Those of each row.
        rows: Rows of all heads.
        columns: Columns.
        turning: Whether there are gates.
    """

    now: Any
    matrix: Any
    gates: Any
    rows: int
    columns: int
    turning: bool


class Lanes(NamedTuple):
    """Eight systems and the scratch memory of their field, as addresses.

    Attributes:
        qk: The QK circuits.
        ov: The OV circuits.
        query: Of rotary positions.
        key: Likewise.
        metric: (dim · dim).
        table: (token · dim), the same in all lanes.
        points: Projections of the states, (token · dim).
        placed: What attention reads, (token · dim).
        turns: Cosines and sines, (token · rank).
        turned: Rotated keys of a head, (token · rank), and behind them one rotated query.
        logits: Of one receiver, (token).
    """

    qk: InLanes
    ov: InLanes
    query: InLanes
    key: InLanes
    metric: Any
    table: Any
    points: Any
    placed: Any
    turns: Any
    turned: Any
    logits: Any


@inlined
def _in_lanes(circuit, place):
    """Return a circuit of eight systems from `place` on, and the place behind it."""
    entries, turning = circuit.rows * circuit.columns, circuit.gated > 0
    matrix, gates = behind(place, entries), behind(place, 2 * entries)
    lanes = InLanes(place, matrix, gates, circuit.rows, circuit.columns, turning)
    return lanes, behind(place, _room_of(circuit))


@inlined
def _room_of(circuit):
    return circuit.rows * (2 * circuit.columns + 4)


def room_of_eight(options: Options, systems: Systems, dim: int) -> int:
    """Return how many lanes `eight` takes."""
    circuits = sum(one.rows * (2 * one.columns + 4) for one in (systems.qk, systems.ov, systems.query, systems.key))
    tokens, rank = options.tokens, options.rotary
    return circuits + dim * dim + 3 * tokens * dim + (2 * tokens + 1) * rank + tokens


@inlined
def eight(features, options, systems, place):
    """Return lanes without systems, from `place` on."""
    tokens, dim, rank = options.tokens, len(features), options.rotary
    qk, place = _in_lanes(systems.qk, place)
    ov, place = _in_lanes(systems.ov, place)
    query, place = _in_lanes(systems.query, place)
    key, place = _in_lanes(systems.key, place)
    table = behind(place, dim * dim)
    points, placed = behind(table, tokens * dim), behind(table, 2 * tokens * dim)
    turns = behind(table, 3 * tokens * dim)
    turned = behind(turns, tokens * rank)
    logits = behind(turned, (tokens + 1) * rank)
    if options.has_table:
        for entry in range(tokens * dim):
            store(table, entry, floats(systems.table)[entry])
    for entry in range(tokens * rank):
        store(turns, entry, floats(systems.turns)[entry])
    return Lanes(qk, ov, query, key, place, table, points, placed, turns, turned, logits)


@function
def _fill(numbers, count, into, lane, row):
    """Copy a row of `count` numbers into one lane."""
    for entry in range(count):
        into[WIDTH * entry + lane] = numbers[row * count + entry]


@inlined
def _fill_circuit(circuit, into, lane, system):
    entries = circuit.rows * circuit.columns
    _fill(floats(circuit.matrix), entries, into.now, lane, system % circuit.matrices)
    if circuit.gated > 0:
        _fill(floats(circuit.matrix), entries, into.matrix, lane, system % circuit.matrices)
        _fill(floats(circuit.gates), 4 * circuit.rows, into.gates, lane, system % circuit.gated)


@inlined
def fill(features, options, systems, lanes, lane, system):
    """Put the matrices of one system into one lane."""
    _fill_circuit(systems.qk, lanes.qk, lane, system)
    _fill_circuit(systems.ov, lanes.ov, lane, system)
    if options.rotates:
        _fill_circuit(systems.query, lanes.query, lane, system)
        _fill_circuit(systems.key, lanes.key, lane, system)
    entries = len(features) * len(features)
    _fill(floats(systems.metric), entries, lanes.metric, lane, system % systems.metrics)


@function
def _turn_circuit(circuit, lane, t):
    if not circuit.turning:
        return
    frequency_before, grown = math.nan, 1.0
    for row in range(circuit.rows):
        gate = 4 * row * WIDTH + lane
        amplitude, frequency, phase = circuit.gates[gate], circuit.gates[gate + WIDTH], circuit.gates[gate + 2 * WIDTH]
        kind = circuit.gates[gate + 3 * WIDTH]
        if kind == GROWING:
            # Rows of one head grow alike: one exponential serves all.
            if frequency != frequency_before:
                frequency_before, grown = frequency, math.exp(min(frequency * t, phase))
            value = amplitude * grown
        else:
            wave = math.sin(frequency * t + phase)
            value = amplitude * (abs(wave) if kind == ABSOLUTE else wave)
        for column in range(circuit.columns):
            place = (row * circuit.columns + column) * WIDTH + lane
            circuit.now[place] = value * circuit.matrix[place]


@function
def turn(lanes, times):
    """Take the circuits that depend on time at `times`, the address of one for each lane."""
    for lane in range(WIDTH):
        _turn_circuit(lanes.qk, lane, times[lane])
        _turn_circuit(lanes.ov, lane, times[lane])
        _turn_circuit(lanes.query, lane, times[lane])
        _turn_circuit(lanes.key, lane, times[lane])
