"""The vector field of eight systems: one attention loop for every mask, kind of weights and positions."""

from __future__ import annotations

import math

from tokendynamics.dynamics._field import SLOW
from tokendynamics.dynamics.engines.compiled._model import EXPONENTIAL, LINEAR, SOFTMAX
from tokendynamics.dynamics.engines.compiled.lanes import (
    absolute,
    added,
    any_of,
    at_least,
    broadcast,
    chosen,
    dot,
    exp,
    fma,
    function,
    inlined,
    load,
    load_row,
    matrix_times,
    scaled,
    select,
    sqrt,
    store,
    store_row,
    transpose_times,
    zeros,
)

_LARGEST = 700.0
"""The largest logit, less the offset, whose exponential is a number with room for a sum."""


@inlined
def inner(options, lanes, first, second):
    """Return ``x^T M y``."""
    if options.has_metric:
        return dot(first, matrix_times(lanes.metric, 0, second))
    return dot(first, second)


@inlined
def project(features, options, lanes, x, into):
    """Write the points of the space on the rays of the tokens x."""
    dim = len(features)
    for token in range(options.tokens):
        row = load_row(features, x, token * dim)
        if options.constrained:
            row = scaled(1.0 / sqrt(inner(options, lanes, row, row)), row)
        store_row(into, token * dim, row)


@function
def velocity(features, options, lanes, x, into):
    """Write the field at the projections of the tokens x, as the circuits are now."""
    project(features, options, lanes, x, lanes.points)
    placed = _placed(features, options, lanes)
    dim = len(features)
    for head in range(options.heads):
        circuit = head * dim * dim
        if options.rotates:
            _rotate_keys(features, options, lanes, placed, head)
        for token in range(options.tokens):
            query = transpose_times(lanes.qk.now, circuit, load_row(features, placed, token * dim))
            seen = token + 1 if options.causal else options.tokens
            top = _logits(features, lanes, placed, query, seen)
            if options.rotates:
                top = _with_rotary_logits(features, options, lanes, placed, head, token, seen)
            mean = _average(features, options, lanes, placed, top, seen)
            if options.relative:
                mean = added(-1.0, load_row(features, placed, token * dim), mean)
            output = matrix_times(lanes.ov.now, circuit, mean)
            if head > 0:
                output = added(1.0, output, load_row(features, into, token * dim))
            store_row(into, token * dim, output)
    _make_tangent(features, options, lanes, into)


@function
def refine(features, options, lanes, x, into):
    """Overwrite the field at x in slow tokens by ``Σ_j w_ij (x_j − x_i) / |x_j|_M``, where ov is a multiple of I.

    That is accurate to rounding of the velocity itself, however slow.
    """
    project(features, options, lanes, x, lanes.points)
    dim, fastest = len(features), broadcast(0.0)
    for head in range(options.heads):
        fastest = fastest + absolute(load(lanes.ov.now, head * dim * dim))
    for token in range(options.tokens):
        vector = load_row(features, into, token * dim)
        slow = sqrt(dot(vector, vector)) < SLOW * fastest
        # Of exponential weights no speed is the largest for all tokens.
        if options.weights == EXPONENTIAL:
            slow = slow | ~slow
        if any_of(slow):
            point = load_row(features, lanes.points, token * dim)
            pull = _pull_of_differences(features, options, lanes, x, token)
            pull = added(-inner(options, lanes, point, pull), point, pull)
            store_row(into, token * dim, chosen(slow, pull, vector))


@inlined
def _pull_of_differences(features, options, lanes, x, token):
    dim, pull = len(features), zeros(features)
    receiver = load_row(features, x, token * dim)
    seen = token + 1 if options.causal else options.tokens
    for head in range(options.heads):
        circuit = head * dim * dim
        query = transpose_times(lanes.qk.now, circuit, load_row(features, lanes.points, token * dim))
        top = _logits(features, lanes, lanes.points, query, seen)
        if options.rotates:
            _rotate_keys(features, options, lanes, lanes.points, head)
            top = _with_rotary_logits(features, options, lanes, lanes.points, head, token, seen)
        mean, total, anchor = zeros(features), broadcast(0.0), _anchor(options, top)
        for sender in range(seen):
            logit, other = load(lanes.logits, sender), load_row(features, x, sender * dim)
            weight = logit if options.weights == LINEAR else exp(logit - anchor)
            total = total + weight
            share = weight / sqrt(inner(options, lanes, other, other))
            mean = added(share, added(-1.0, receiver, other), mean)
        multiple = load(lanes.ov.now, circuit)
        pull = added(multiple * _share(options, top, total, seen), mean, pull)
    return pull


@inlined
def _anchor(options, top):
    """Return what is taken off the logits before they are exponentiated."""
    return top if options.weights == SOFTMAX else broadcast(options.offset)


@inlined
def _share(options, top, total, seen):
    """Return what multiplies the sum over the senders; NaN where an exponential weight is too large for a number."""
    if options.weights == SOFTMAX:
        return 1.0 / total
    if options.weights == LINEAR:
        return broadcast(1.0)
    return select(top - options.offset <= _LARGEST, broadcast(1.0 / seen), broadcast(math.nan))


@inlined
def _placed(features, options, lanes):
    """Return what attention reads: the points, plus absolute positions."""
    if not options.has_table:
        return lanes.points
    for entry in range(options.tokens * len(features)):
        store(lanes.placed, entry, load(lanes.points, entry) + load(lanes.table, entry))
    return lanes.placed


@inlined
def _logits(features, lanes, placed, query, seen):
    """Write the logits of the tokens that are seen and return the largest."""
    top = broadcast(-math.inf)
    for sender in range(seen):
        logit = dot(query, load_row(features, placed, sender * len(features)))
        store(lanes.logits, sender, logit)
        top = at_least(logit, top)
    return top


@inlined
def _average(features, options, lanes, placed, top, seen):
    """Return ``Σ_j w_j x_j`` over the tokens that are seen."""
    mean, total, anchor = zeros(features), broadcast(0.0), _anchor(options, top)
    if options.weights == LINEAR:
        for sender in range(seen):
            mean = added(load(lanes.logits, sender), load_row(features, placed, sender * len(features)), mean)
        return mean
    for sender in range(seen):
        weight = exp(load(lanes.logits, sender) - anchor)
        total = total + weight
        mean = added(weight, load_row(features, placed, sender * len(features)), mean)
    return scaled(_share(options, top, total, seen), mean)


@inlined
def _make_tangent(features, options, lanes, into):
    """Take ``y^T M v`` times y from the vectors at the points y."""
    if not options.constrained:
        return
    for token in range(options.tokens):
        place = token * len(features)
        point, vector = load_row(features, lanes.points, place), load_row(features, into, place)
        store_row(into, place, added(-inner(options, lanes, point, vector), point, vector))


@function
def _rotate(features, options, lanes, matrix, head, placed, token, start):
    """Write ``R_token B^T x_token`` from `start` on, B being a (dim, rank) matrix."""
    dim, rank, into = len(features), options.rotary, lanes.turned
    for column in range(rank):
        total = broadcast(0.0)
        for feature in range(dim):
            entry = load(matrix, (head * dim + feature) * rank + column)
            total = fma(entry, load(placed, token * dim + feature), total)
        store(into, start + column, total)
    for pair in range(rank // 2):
        turn = token * rank + 2 * pair
        cosine, sine = load(lanes.turns, turn), load(lanes.turns, turn + 1)
        even, odd = load(into, start + 2 * pair), load(into, start + 2 * pair + 1)
        store(into, start + 2 * pair, even * cosine - odd * sine)
        store(into, start + 2 * pair + 1, odd * cosine + even * sine)


@inlined
def _rotate_keys(features, options, lanes, placed, head):
    for token in range(options.tokens):
        _rotate(features, options, lanes, lanes.key.now, head, placed, token, token * options.rotary)


@function
def _with_rotary_logits(features, options, lanes, placed, head, token, seen):
    """Add to the logits of one receiver what rotary positions add, and return the largest sum."""
    rank, query = options.rotary, options.tokens * options.rotary
    _rotate(features, options, lanes, lanes.query.now, head, placed, token, query)
    top = broadcast(-math.inf)
    for sender in range(seen):
        logit = load(lanes.logits, sender)
        for column in range(rank):
            logit = fma(load(lanes.turned, query + column), load(lanes.turned, sender * rank + column), logit)
        store(lanes.logits, sender, logit)
        top = at_least(logit, top)
    return top
