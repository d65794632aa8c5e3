"""Transformers set by hand, by name: solutions 1, 2 and 3 of `logical`, with softmax, without logic, and a mixture.

They differ in where they decide which pair they read. With softmax, solutions 1 and 3 are exact in the limit of sharp
attention, 2 is right up to about 1/√M.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, on_categories, on_positions, shift, to_scratch
from tokendynamics.circuits.functionals import pair_numbers
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count, as_number, as_square
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments

SelectionForm = Literal["exact", "printed"]

_PAPERS_K = 100.0
# A K that was written down with 15 digits may lie below the least one by that rounding; the bias absorbs it.
_ROUNDING = 1e-14


@dataclass(frozen=True)
class Selection:
    """``K·ReLU(e + values/K + bias) + offset`` is the value where e is 1, and K·ReLU is 0 where e is 0.

    Attributes:
        K: Larger than the values.
        bias: Of every hidden unit that can be selected.
        offset: Added to the output.
    """

    K: float
    bias: float
    offset: float

    @property
    def shrink(self) -> float:
        """1/K, by which attention's output is multiplied."""
        return 1.0 / self.K

    @classmethod
    @typed_arguments
    def of(cls, values: Tensor, form: SelectionForm, K: float | None = None) -> Selection:
        """Return the constants that select one of `values`.

        "exact": ``c = max(0, −min values)``, bias ``−(1 − c/K)``, offset ``−c``, for ``K ≥ max(max values, 0) + c``;
        corrects `logical` (2.21), whose bias −1 (form "printed") turns every negative value into 0.

        Args:
            values: All that can occur, any shape.
            form: "exact" or "printed".
            K: None for a power of two above the least that works ("printed": 100 as in the paper where that is enough).
                The rounding error of the output is about 1e-16·K.

        Raises:
            ArgumentValueError: K is not positive and finite or too small (the least K is printed), values whose range
                overflows, or an unknown form.
        """
        if form not in ("exact", "printed"):
            raise ArgumentValueError("form", "'exact' or 'printed'", repr(form))
        lowered = max(0.0, -float(values.min())) if form == "exact" else 0.0
        least = max(float(values.max()), 0.0) + lowered
        chosen = _checked(K, least) if K is not None else _sufficient(least, form)
        if form == "printed":
            return cls(chosen, -1.0, 0.0)
        # The middle one is mathematically the largest. The others keep what must be silent at 0 when K is at its least.
        silence = max(0.0, 1.0 - lowered / chosen, float((values * (1.0 / chosen)).max()))
        # Not −c: this cancels to the last digit what the selected unit adds, so that Y_1 is 0 and not nearly 0.
        return cls(chosen, -silence, -max(0.0, 1.0 - silence) * chosen)


def selecting(task: PairTask, attention: Attention, selected: Selection, read: slice, name: str) -> OneLayerTransformer:
    """Return the transformer whose hidden units are its features, ``Y = K·read·ReLU(X + ATT + bias) + offset``.

    Args:
        task: What it reads.
        attention: Its output must already be divided by K.
        selected: K, bias and offset.
        read: The features whose one-hot part selects.
        name: Of the transformer.
    """
    identity = torch.eye(task.width, dtype=torch.float64)
    bias, C = torch.full((task.width,), selected.bias, dtype=torch.float64), torch.zeros(task.width).double()
    C[read] = selected.K
    return OneLayerTransformer(attention, identity, bias, C, task, offset=selected.offset, name=name)


def _sufficient(least: float, form: SelectionForm) -> float:
    if not math.isfinite(least) or least > 2.0**1022:
        advice = "scale q_true down"
        raise ArgumentValueError("q_true", "a range of values below 2^1022", f"a range of {least:g}", advice)
    if form == "printed" and least < _PAPERS_K:
        return _PAPERS_K
    # Below 2^−1000 the reciprocal of K would overflow.
    return 2.0 ** (math.frexp(least)[1]) if least > 2.0**-1000 else 1.0


def _checked(K: float, least: float) -> float:
    chosen = as_number(K, "K")
    if not (math.isfinite(chosen) and chosen > 0.0 and math.isfinite(1.0 / chosen)):
        raise ArgumentValueError("K", "a positive finite number with a finite reciprocal", K)
    if chosen < least * (1.0 - _ROUNDING):
        raise ArgumentValueError("K", f"at least {least!r}", K, "it must exceed every value that is to be kept silent")
    return chosen


Form = Literal["rows", "uniform", "indicators", "printed"]

_NAMES_1 = {
    "rows": "solution 1",
    "uniform": "solution 1, one bias for all rows",
    "indicators": "solution 1, previous category in a block of its own",
    "printed": "solution 1 as printed (wrong)",
}

_NAMES_2 = {"exact": "solution 2", "printed": "solution 2 as printed (right for targets ≥ 0)"}

_NAMES_3 = {"exact": "solution 3", "printed": "solution 3 as printed (right for targets ≥ 0)"}

_BYTES = 48
"""Of each pair: two integers, three times while they are put in order."""


@typed_arguments
def solution_1(task: PairTask, form: Form = "rows", causal: bool = False) -> OneLayerTransformer:
    """Add twice the previous category by attention and tell the pair by N² hidden units, `logical` 2.1.

    With ``2e_a + e_b`` in the stream no single ReLU can indicate an off-diagonal pair (it is a convex combination of
    3e_a and 3e_b), so C = q_true as in (2.11) adds up several units. The other forms correct `logical` (2.11):

    * "rows": off-diagonal rows ``2e_a + e_b`` with bias −4, diagonal rows ``3e_a`` with bias −8, ``C_ab = q_ab``,
      ``C_aa = q_aa − 2 Σ_{b≠a} q_ab``;
    * "uniform": bias −4 everywhere, ``C_aa = (q_aa − 2 Σ_{b≠a} q_ab)/(9 − 4N)``, ``C_ab = q_ab − 2 C_aa``;
    * "indicators": the previous category goes to a block of its own (width 2N + M), rows ``e_a + e_b`` with bias −1,
      so each hidden unit is the indicator of its pair and C = q_true;
    * "printed": bias −4 and C = q_true. It is WRONG, and here to show how: (0, 5, 32, 70) for (0, 3, 10, 6).

    Args:
        task: Any N, M and real q_true.
        form: See above.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with one head of linear attention whose hidden units stand in the order of `pair_order`.

    Raises:
        ArgumentValueError: An unknown form, or a q_true so large that sums over a row of it overflow.

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> solution_1(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    >>> solution_1(task, form="printed")([1, 2, 2, 1]).tolist()
    [0.0, 0.0, 26.0, 11.0]
    """
    if form not in _NAMES_1:
        raise ArgumentValueError("form", " or ".join(map(repr, _NAMES_1)), repr(form))
    if form == "indicators":
        return _indicators(task, causal)
    qk = on_positions(task, 2.0 * shift(task.positions).mT)
    v = on_categories(task, torch.eye(task.categories, dtype=torch.float64))
    attention = Attention(qk, v, causal=causal, weights="linear")
    bias, C = bias_and_output(task.q_true, form)
    return OneLayerTransformer(attention, recognisers(task), bias, C, task, name=_NAMES_1[form])


def recognisers(task: PairTask) -> Tensor:
    """Return rows ``2e_a + e_b`` (``3e_a`` for equal categories), zeros on positions, `logical` (2.10), (N², N + M)."""
    previous, current = _one_hot_pairs(task.categories)
    return torch.nn.functional.pad(2.0 * previous + current, (0, task.positions))


def bias_and_output(q_true: Tensor, form: Literal["rows", "uniform", "printed"]) -> tuple[Tensor, Tensor]:
    """Return the bias (N²,) and C (N²,) that go with `recognisers`; see `solution_1`.

    Raises:
        ArgumentValueError: A q_true so large that a C, which adds up a row of it, is not finite.
    """
    categories = q_true.shape[0]
    diagonal = q_true.diagonal()
    bias = torch.full((categories**2,), -4.0, dtype=torch.float64)
    # A diagonal pair wakes all rows that begin with its category, each by 2.
    corrected = diagonal - 2.0 * (q_true - torch.diag(diagonal)).sum(dim=1)
    weights = q_true
    if form == "rows":
        bias[:categories] = -8.0
        weights = q_true - torch.diag(diagonal - corrected)
    elif form == "uniform":
        corrected = corrected / (9 - 4 * categories)  # odd, so never zero
        weights = (q_true - 2.0 * corrected[:, None]).diagonal_scatter(corrected)
    if not bool(weights.isfinite().all()):
        largest = float(q_true.abs().max())
        wanted = "values whose sums over a row are finite"
        raise ArgumentValueError("q_true", wanted, f"values up to {largest:g}", "scale q_true down")
    return bias, by_pair(weights)


def _indicators(task: PairTask, causal: bool) -> OneLayerTransformer:
    categories = task.categories
    qk = on_positions(task, shift(task.positions).mT, scratch=categories)
    v = to_scratch(task, torch.eye(categories, dtype=torch.float64))
    previous, current = _one_hot_pairs(categories)
    B = torch.cat([current, torch.zeros(categories**2, task.positions, dtype=torch.float64), previous], dim=1)
    bias = -torch.ones(categories**2, dtype=torch.float64)
    attention = Attention(qk, v, causal=causal, weights="linear")
    return OneLayerTransformer(attention, B, bias, by_pair(task.q_true), task, name=_NAMES_1["indicators"])


def _one_hot_pairs(categories: int) -> tuple[Tensor, Tensor]:
    one_hot = torch.nn.functional.one_hot(pair_order(categories) - 1, categories).double()
    return one_hot[:, 0], one_hot[:, 1]


@typed_arguments
def solution_2(
    task: PairTask, form: SelectionForm = "exact", K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """Compute the functional of all pairs as logits: the logic is in attention, `logical` 2.2.

    ``qk = q_true^T`` on categories (2.16), (2.17); ``v = S/K`` moves what sender j says to position j + 1; there the
    one-hot position of the skip connection selects the diagonal (2.21). B is the identity.

    Args:
        task: Any N, M and real q_true.
        form: "exact" for any sign: ``Y = K·C·ReLU(X + ATT/K − (1 − c/K)) − c`` with ``c = max(0, −min q_true)`` and
            C = 1 on positions only, which corrects `logical` (2.21). "printed": bias −1 and C = K everywhere, whose
            outputs are ``max(q_true, 0)``.
        K: At least ``max(max q_true, 0) + c``; None for one that is enough. See `Selection.of`.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with one head of linear attention and N + M hidden units.

    Raises:
        ArgumentValueError: An unknown form, or a K that is too small (the least one is printed).

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> solution_2(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    >>> solution_2(task, form="printed", K=8.0)([1, 2, 2, 1]).tolist()
    [0.0, 0.0, 4.0, 3.0]
    """
    selected = Selection.of(task.q_true, form, K)
    v = on_positions(task, shift(task.positions).mT * selected.shrink)
    attention = Attention(on_categories(task, task.q_true).mT, v, causal=causal, weights="linear")
    read = slice(task.categories if form == "exact" else None, None)
    return selecting(task, attention, selected, read, _NAMES_2[form])


@typed_arguments
def solution_3(
    task: PairTask, form: SelectionForm = "exact", K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """Fetch row X_{i−1} of q_true by attention and select its entry X_i by the feed-forward part, `logical` 2.3.

    ``qk = S`` on positions, ``v = A_2^T/K`` on categories; the one-hot category of the skip connection selects
    (2.27). B is the identity.

    Args:
        task: Any N, M and real q_true.
        form: "exact" for any sign, with C = 1 on categories only, which corrects `logical` (2.27); "printed": bias −1
            and C = K everywhere, whose outputs are ``max(q_true, 0)``.
        K: At least ``max(max q_true, 0) + c``, ``c = max(0, −min q_true)``; None for one that is enough.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with one head of linear attention and N + M hidden units.

    Raises:
        ArgumentValueError: An unknown form, or a K that is too small (the least one is printed).

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> solution_3(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    """
    selected = Selection.of(task.q_true, form, K)
    qk = on_positions(task, shift(task.positions).mT)
    v = on_categories(task, task.q_true.mT * selected.shrink)
    attention = Attention(qk, v, causal=causal, weights="linear")
    read = slice(None, task.categories if form == "exact" else None)
    return selecting(task, attention, selected, read, _NAMES_3[form])


@typed_arguments
def pair_order(categories: int) -> Tensor:
    """Return all pairs (previous, current): (1,1) … (N,N) first, then the others row by row, `logical` (2.11).

    Args:
        categories: N.

    Returns:
        Shape (N², 2), int64, values 1..N.

    >>> pair_order(2).tolist()
    [[1, 1], [2, 2], [1, 2], [2, 1]]
    """
    check_fits(_BYTES * as_count(categories, "categories") ** 2, "categories")
    numbers = torch.arange(1, categories + 1)
    pairs = torch.cartesian_prod(numbers, numbers)
    equal = pairs[:, 0] == pairs[:, 1]
    return torch.cat([pairs[equal], pairs[~equal]])


@typed_arguments
def by_pair(q_true: Tensor) -> Tensor:
    """Return the entries of `q_true` (previous, current) in the order of `pair_order`, shape (N²,)."""
    q_true = as_square(q_true, "q_true")
    previous, current = (pair_order(q_true.shape[0]) - 1).unbind(-1)
    return q_true[previous, current]


_SHARPEST = math.log(sys.float_info.max)

# Column means that were made equal differ by rounding.
_EQUAL = 1e-9
_NEVER_EXACT = (
    "This construction is never exact: softmax divides by a sum over the text, which is near its expectation only in "
    "long texts. The error decreases as one over the square root of the number of tokens."
)
_SHORTER = "Outputs on texts of fewer than M tokens are too large, by the factor M over their length."


@typed_arguments
def softmax_solution_1(task: PairTask, sharpness: float = 40.0, causal: bool = False) -> OneLayerTransformer:
    """Return `solution_1` ("rows") with softmax attention, ``qk = β S``, v doubled; corrects `logical` (2.12).

    With n senders the previous token gets the weight ``e^β/(e^β + n − 1)``, so for i ≥ 2 the error decays like
    ``(n − 1) e^{−β}``. Token 1 has no previous one and attends to all alike: Y_1 means nothing.

    Args:
        task: Any N, M and real q_true.
        sharpness: β ≥ 0.
        causal: Whether attention is masked; then n = i.

    Raises:
        ArgumentValueError: A sharpness that is negative or not finite, or whose exponential overflows.

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> [round(y, 12) for y in softmax_solution_1(task)([1, 2, 2, 1]).tolist()[1:]]
    [-2.0, 4.0, 3.0]
    """
    v = on_categories(task, 2.0 * torch.eye(task.categories, dtype=torch.float64))
    bias, C = bias_and_output(task.q_true, "rows")
    attention = _attending_to_previous(task, v, sharpness, causal)
    return OneLayerTransformer(attention, recognisers(task), bias, C, task, name="solution 1 with softmax")


@typed_arguments
def softmax_solution_3(
    task: PairTask, sharpness: float = 40.0, K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """Return `solution_3` with softmax attention, ``qk = β S``; corrects `logical` (2.27).

    ``Y_i = Σ_j w_ij q_true[X_j, X_i]`` exactly: a mean over the senders j, of which j = i − 1 has the weight
    ``e^β/(e^β + n − 1)``. So for i ≥ 2 the error is below ``(n − 1) e^{−β} (max q_true − min q_true)``; Y_1 is the
    mean over all.

    Args:
        task: Any N, M and real q_true.
        sharpness: β ≥ 0.
        K: As in `solution_3`.
        causal: Whether attention is masked; then n = i.

    Raises:
        ArgumentValueError: A sharpness that is negative or not finite, or whose exponential overflows; K too small.

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> [round(y, 12) for y in softmax_solution_3(task)([1, 2, 2, 1]).tolist()[1:]]
    [-2.0, 4.0, 3.0]
    """
    selected = Selection.of(task.q_true, "exact", K)
    v = on_categories(task, task.q_true.mT * selected.shrink)
    attention = _attending_to_previous(task, v, sharpness, causal)
    return selecting(task, attention, selected, slice(None, task.categories), "solution 3 with softmax")


def _attending_to_previous(task: PairTask, v: Tensor, sharpness: float, causal: bool) -> Attention:
    if not 0.0 <= as_number(sharpness, "sharpness") <= _SHARPEST:
        wanted = f"a number from 0 to {_SHARPEST:.5f}, beyond which its exponential overflows"
        raise ArgumentValueError("sharpness", wanted, sharpness, "at 40 softmax attention is sharp to the last digit")
    return Attention(on_positions(task, sharpness * shift(task.positions).mT), v, causal=causal, weights="softmax")


@typed_arguments
def softmax_solution_2(task: PairTask, causal: bool = False) -> OneLayerTransformer:
    """Return `solution_2` with softmax attention and ``qk = ln q_true^T`` on categories, `logical` section 4.

    The exponential undoes the logarithm, and the softmax divides by the sum over the n senders, so that

        Y_i = n m q_true[X_{i−1}, X_i] / Σ_j q_true[X_j, X_i],   m = Σ_a p_a q_true[a, b], the same for every b:

    the sum is n m up to the luck of the text, and the error, over the standard deviation of q_true, is about 1/√n
    where q_true varies little (0.32, 0.14 and 0.07 at M = 10, 50, 200). It does not vanish for any weights. Y_1 is 0.

    Args:
        task: q_true positive, with equal column means under the law; `equal_column_means` makes them so.
        causal: Whether attention is masked; then n = i, so that early tokens are far off. Else n = M, and texts of
            fewer tokens have outputs that are too large by the factor M over their length.

    Returns:
        A transformer with one head of softmax attention and N + M hidden units.

    Raises:
        ArgumentValueError: A q_true that is not positive, whose logarithm no logit can be, or column means that differ.

    >>> from tokendynamics.circuits.functionals import positive_functional
    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask(positive_functional(4, seed=0), positions=200)
    >>> x = task.sample(100, seed=0)
    >>> error = (softmax_solution_2(task)(x) - task.targets(x))[:, 1:].square().mean().sqrt()
    >>> f"{float(error) / task.variance**0.5:.2f}"
    '0.07'
    """
    mean = _column_mean(task)
    senders = torch.full((task.positions,), float(task.positions), dtype=torch.float64)
    if causal:
        senders = torch.arange(1, task.positions + 1, dtype=torch.float64)
    attention = Attention(
        on_categories(task, task.q_true.log()).mT,
        on_positions(task, shift(task.positions).mT),
        causal=causal,
        weights="softmax",
    )
    # A weight is at most 1: where the one-hot position is 0, the bias of −1 keeps the unit silent.
    C = torch.cat([torch.zeros(task.categories, dtype=torch.float64), mean * senders])
    identity, bias = torch.eye(task.width, dtype=torch.float64), torch.full_like(C, -1.0)
    note = _NEVER_EXACT if causal else f"{_NEVER_EXACT} {_SHORTER}"
    return OneLayerTransformer(attention, identity, bias, C, task, name="solution 2 with softmax", note=note)


def _column_mean(task: PairTask) -> Tensor:
    """Return the mean that all columns have."""
    lowest = int(task.q_true.argmin())
    if float(task.q_true.flatten()[lowest]) <= 0.0:
        previous, current = divmod(lowest, task.categories)
        came = f"{float(task.q_true.min()):g} for the pair ({previous + 1}, {current + 1})"
        advice = "positive_functional draws some, and a constant that is added changes the task by that constant only"
        raise ArgumentValueError("q_true", "positive numbers, whose logarithm is the logit", came, advice)
    means = task.law @ task.q_true
    if float(means.max() - means.min()) > _EQUAL * float(means.max()):
        came = f"means from {float(means.min()):g} to {float(means.max()):g}"
        advice = "equal_column_means(q_true, law) scales the columns"
        raise ArgumentValueError("q_true", "columns of one mean under the law", came, advice)
    return means.mean()


@typed_arguments
def linear_solution(task: PairTask, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """Return `linear_case` for a task that is `pair_numbers` of that base.

    Raises:
        ArgumentValueError: The task asks for another functional.

    >>> from tokendynamics.circuits.functionals import pair_numbers
    >>> from tokendynamics.circuits import PairTask
    >>> linear_solution(PairTask(pair_numbers(3), positions=2))([3, 1]).tolist()
    [3.0, 31.0]
    """
    numbers = pair_numbers(task.categories, base)
    difference = float((task.q_true - numbers).abs().max())
    if difference > 0.0:
        wanted = f"pair_numbers({task.categories}, base={base:g}), which is linear in the two categories"
        advice = "take a solution for any functional, such as solution-1"
        raise ArgumentValueError("q_true", wanted, f"values that differ by up to {difference:g}", advice)
    return linear_case(task.categories, task.positions, base, causal)


@typed_arguments
def linear_case(categories: int, positions: int, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """Compute ``Y_i = base·X_{i−1} + X_i`` without ReLU or B, `logical` (2.13): attention adds, the readout is linear.

    The first token has no previous one, so ``Y_1 = X_1`` and not 0.

    Args:
        categories: N.
        positions: M.
        base: 10 in the paper.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with the identity as activation; its task is `pair_numbers`.

    Raises:
        ArgumentValueError: No category or no position, or a base that is not finite.

    >>> linear_case(categories=4, positions=4)([1, 3, 2, 2]).tolist()
    [1.0, 13.0, 32.0, 22.0]
    """
    task = PairTask(pair_numbers(categories, base), positions)
    qk = on_positions(task, base * shift(positions).mT)
    v = on_categories(task, torch.eye(categories, dtype=torch.float64))
    C = torch.zeros(task.width, dtype=torch.float64)
    C[:categories] = torch.arange(1, categories + 1, dtype=torch.float64)
    return OneLayerTransformer(
        Attention(qk, v, causal=causal, weights="linear"),
        torch.eye(task.width, dtype=torch.float64),
        torch.zeros(task.width, dtype=torch.float64),
        C,
        task,
        activation="identity",
        name="linear case",
    )


@typed_arguments
def mixture(task: PairTask, attention_share: float = 0.5, causal: bool = False) -> OneLayerTransformer:
    """Compute one share of q_true as `solution_2` does and the rest as `solution_3` does, side by side.

    Head 1 has ``qk = share·q_true^T`` on categories and writes on positions; head 2 has ``qk = S`` and writes
    ``(1 − share)·q_true^T`` on categories. Each has its own K and c, since they use different features.

    Args:
        task: Any N, M and real q_true.
        attention_share: The part that attention decides, from 0 to 1.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with two heads of linear attention and N + M hidden units, exact for any sign.

    Raises:
        ArgumentValueError: A share outside 0..1.

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> mixture(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    """
    if not 0.0 <= as_number(attention_share, "attention_share") <= 1.0:
        raise ArgumentValueError("attention_share", "a number from 0 to 1", attention_share)
    decided, looked_up = attention_share * task.q_true, (1.0 - attention_share) * task.q_true
    positions, categories = Selection.of(decided, "exact"), Selection.of(looked_up, "exact")
    step = shift(task.positions).mT
    qk = torch.stack([on_categories(task, decided), on_positions(task, step.mT)]).mT
    v = torch.stack(
        [on_positions(task, step * positions.shrink), on_categories(task, looked_up.mT * categories.shrink)]
    )
    per_category = torch.ones(task.categories, dtype=torch.float64)
    per_position = torch.ones(task.positions, dtype=torch.float64)
    return OneLayerTransformer(
        Attention(qk, v, causal=causal, weights="linear"),
        torch.eye(task.width, dtype=torch.float64),
        torch.cat([categories.bias * per_category, positions.bias * per_position]),
        torch.cat([categories.K * per_category, positions.K * per_position]),
        task,
        offset=positions.offset + categories.offset,
        name=f"mixture, {attention_share:.0%} in attention",
    )


HAND_BUILT: Mapping[str, Callable[..., OneLayerTransformer]] = MappingProxyType(
    {
        "solution-1": solution_1,
        "solution-1-uniform": partial(solution_1, form="uniform"),
        "solution-1-indicators": partial(solution_1, form="indicators"),
        "solution-1-printed": partial(solution_1, form="printed"),
        "solution-2": solution_2,
        "solution-2-printed": partial(solution_2, form="printed"),
        "solution-3": solution_3,
        "solution-3-printed": partial(solution_3, form="printed"),
        "linear": linear_solution,
        "softmax-1": softmax_solution_1,
        "softmax-2": softmax_solution_2,
        "softmax-3": softmax_solution_3,
        "mixture": mixture,
    }
)
"""Name → constructor of a `PairTask` and options."""
