"""Compares the outputs of a transformer with the targets of its task, and solutions 2 and 3 with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, chunk_length, shift
from tokendynamics.circuits.constructions.solutions import Selection, solution_2, solution_3
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.results import Result
from tokendynamics.words import count, number, plural

TOLERANCE = 1e-12
"""Largest error of an exact transformer, in units of the largest target (or of 1)."""

_LEAST_DRAWN = 100
_NAMED = 4
"""Most wrong pairs that a sentence names."""


@dataclass(frozen=True, eq=False)
class Answer:
    """One sequence.

    Attributes:
        x: Categories, (token,).
        targets: Y, (token,).
        outputs: Of the transformer, (token,).
    """

    x: Tensor
    targets: Tensor
    outputs: Tensor

    @property
    def largest_error(self) -> float:
        """Largest error from the second token on; 0 for a single token, infinite where an output is NaN."""
        return _largest(_errors(self.outputs[1:], self.targets[1:]))


@dataclass(frozen=True)
class WrongPair:
    """A pair of categories that is answered wrongly at least once.

    Attributes:
        previous: Category of the token before, from 1 on.
        current: Category of the token itself.
        target: q_true of the pair.
        output: The answer that is farthest off.
    """

    previous: int
    current: int
    target: float
    output: float

    def __str__(self) -> str:
        return f"({self.previous}, {self.current}): {number(self.output, 6)} instead of {number(self.target, 6)}"


@dataclass(frozen=True, eq=False, repr=False)
class TaskComparison(Result):
    """How far a transformer is from its task.

    Attributes:
        model: The transformer.
        answers: On the given sequences.
        largest_error: Over given and drawn sequences, tokens from the second on; infinite for an output that is NaN.
        relative_error: Root mean square error over the drawn sequences, tokens from the second on, over the standard
            deviation of q_true (of 1 where it has none); infinite where either is too large to be squared.
        tolerance: Largest error that counts as exact.
        wrong: Pairs beyond the tolerance, the farthest off first.
        first_token: The largest |Y_1|, whose target is 0 and which no loss counts.
        drawn: Number of sequences drawn in addition to the given ones.
        seed: Random seed of the draw.

    >>> from tokendynamics.circuits import PairTask
    >>> from tokendynamics.circuits.constructions import solution_3
    >>> comparison = compare(solution_3(PairTask([[1.0, -2.0], [3.0, 4.0]], positions=3)), [[1, 2, 1]])
    >>> comparison.exact, comparison.wrong, len(comparison.answers)
    (True, (), 1)
    """

    model: OneLayerTransformer
    answers: tuple[Answer, ...]
    largest_error: float
    relative_error: float
    tolerance: float
    wrong: tuple[WrongPair, ...]
    first_token: float
    drawn: int
    seed: int

    @property
    def headline(self) -> str:
        """Name, and whether it is exact."""
        return f"{self.model.name}: {'exact' if self.exact else 'not exact'}"

    @property
    def findings(self) -> tuple[str, ...]:
        """The result, in words."""
        return self.sentences

    @property
    def exact(self) -> bool:
        """Whether no answer from the second token on is off by more than the tolerance."""
        return self.largest_error <= self.tolerance

    @property
    def has_pairs(self) -> bool:
        """Whether there was a pair to check; a single token has no previous one."""
        return self.model.task.positions > 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result, in words."""
        sentences = [
            self._exact_or_not if self.has_pairs else "There is no pair to check: a single token has no previous one."
        ]
        if not self.exact:
            sentences += [self._largest, *self._rounding]
        if not self.first_token <= self.tolerance:
            largest = number(self.first_token, 4)
            sentences.append(f"The first token has no previous one and should give 0; here it gives up to {largest}.")
        return tuple(sentences + [self.model.note] * bool(self.model.note))

    @property
    def _exact_or_not(self) -> str:
        if self.exact:
            return f"It is exact: the largest error is {number(self.largest_error, 2)}, over {self._where}."
        more = f"; and {count(len(self.wrong) - _NAMED)} more" if len(self.wrong) > _NAMED else ""
        some = "; ".join(map(str, self.wrong[:_NAMED])) + more
        all_pairs = plural(self.model.task.categories**2, "pair")
        return f"It fails for {count(len(self.wrong))} of {all_pairs} of categories: {some}."

    @property
    def _largest(self) -> str:
        if math.isinf(self.largest_error):
            return "An error is not finite, because sums of numbers of this size overflow. Scale q_true down."
        return (
            f"The largest error is {number(self.largest_error, 4)}, over {self._where}; the root mean square error is "
            f"{number(self.relative_error)} times the standard deviation of q_true."
        )

    @property
    def _rounding(self) -> list[str]:
        """A sentence where rounding alone is more than the tolerance."""
        weight = float(self.model.C.abs().max())
        lost = weight * torch.finfo(torch.float64).eps
        if not self.tolerance < lost < math.inf:
            return []
        largest = float(self.model.task.q_true.abs().max())
        return [
            f"The largest weight of the output (K in solutions 2 and 3) is {number(weight)}. Rounding loses about "
            f"10⁻¹⁶ of it, {number(lost, 1)}, where values are at most {number(largest)}: take a smaller K."
        ]

    @property
    def _where(self) -> str:
        drawn = f"{plural(self.drawn, 'drawn sequence')} of {plural(self.model.task.positions, 'token')}"
        return f"the given and {drawn}, which contain every pair"

    def as_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "name": self.model.name,
            "exact": self.exact if self.has_pairs else None,
            "largest_error": self.largest_error,
            "relative_error": self.relative_error,
            "tolerance": self.tolerance,
            "wrong_pairs": [vars(pair) for pair in self.wrong],
            "first_token": self.first_token,
            "drawn": self.drawn,
            "seed": self.seed,
            "sequences": [
                {
                    "x": answer.x.tolist(),
                    "targets": answer.targets.tolist(),
                    "outputs": answer.outputs.tolist(),
                    "largest_error": answer.largest_error,
                }
                for answer in self.answers
            ],
        }


@typed_arguments
def compare(model: OneLayerTransformer, sequences: Sequence[Any], seed: int = 0) -> TaskComparison:
    """Run a transformer on given sequences, and on drawn ones in which every pair of categories occurs.

    Args:
        model: The transformer, with its task.
        sequences: Each a list of categories 1..N, at most M long.
        seed: Of the draw.

    Raises:
        ArgumentTypeError: A sequence that is not of integers.
        ArgumentValueError: A category outside 1..N, or more than M tokens.

    >>> from tokendynamics.circuits.constructions import solution_1
    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, 2.0], [3.0, 4.0]], positions=3)
    >>> compare(solution_1(task), [[1, 2]]).exact
    True
    >>> print(compare(solution_1(task, form="printed"), [[1, 2]]).wrong[0])
    (2, 2): 26 instead of 4
    """
    task = model.task
    given = [task.checked(x) for x in sequences]
    answers = tuple(Answer(x, task.targets(x), model(x)) for x in given)
    x = _with_every_pair(task, seed)
    outputs = torch.cat([model(part) for part in x.split(chunk_length(model, task.positions))])
    # Rows of different lengths: one list of pairs for all of them.
    previous = torch.cat([x[:, :-1].flatten(), *(one[:-1] for one in given)])
    current = torch.cat([x[:, 1:].flatten(), *(one[1:] for one in given)])
    answered = torch.cat([outputs[:, 1:].flatten(), *(answer.outputs[1:] for answer in answers)])
    tolerance = TOLERANCE * max(1.0, float(task.q_true.abs().max()))
    wrong = _wrong_pairs(task, previous, current, answered, tolerance)
    largest = _largest(_errors(answered, task.q_true[previous - 1, current - 1]))
    firsts = torch.cat([outputs[:, 0], *(answer.outputs[:1] for answer in answers)])
    errors, spread = (outputs - task.targets(x))[:, 1:], math.sqrt(task.variance) or 1.0
    error = float((errors / spread).square().mean().sqrt()) if errors.numel() else 0.0
    return TaskComparison(
        model,
        answers,
        largest,
        error if math.isfinite(error) and math.isfinite(spread) else math.inf,
        tolerance,
        wrong,
        float(firsts.abs().max()),
        len(x),
        seed,
    )


def _with_every_pair(task: PairTask, seed: int) -> Tensor:
    """Drawn sequences of M tokens into which all N² pairs are written, as many in a row as there is room for."""
    numbers = torch.arange(1, task.categories + 1)
    pairs, in_a_row = torch.cartesian_prod(numbers, numbers), task.positions // 2
    if in_a_row == 0:
        return task.sample(_LEAST_DRAWN, seed)
    rows = max(_LEAST_DRAWN, math.ceil(len(pairs) / in_a_row))
    x = task.sample(rows, seed)
    for place, part in enumerate(pairs.split(rows)):
        x[: len(part), 2 * place : 2 * place + 2] = part
    return x


def _wrong_pairs(
    task: PairTask, previous: Tensor, current: Tensor, answered: Tensor, tolerance: float
) -> tuple[WrongPair, ...]:
    """For each pair with an error beyond the tolerance its worst answer."""
    targets = task.q_true[previous - 1, current - 1]
    errors = _errors(answered, targets)
    worst: dict[tuple[int, int], tuple[float, WrongPair]] = {}
    for index in (errors > tolerance).nonzero()[:, 0].tolist():
        pair = int(previous[index]), int(current[index])
        if float(errors[index]) > worst.get(pair, (0.0,))[0]:
            wrong = WrongPair(*pair, float(targets[index]), float(answered[index]))
            worst[pair] = float(errors[index]), wrong
    return tuple(pair for _, pair in sorted(worst.values(), key=lambda entry: -entry[0]))


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return absolute differences; a NaN counts as infinitely wrong, so that every comparison sees it."""
    return (outputs - targets).abs().nan_to_num(nan=math.inf, posinf=math.inf)


def _largest(errors: Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0


_RELATIVE = 1e-15


@dataclass(frozen=True, eq=False)
class Equivalence:
    """`logical` 2.3.1 on given sequences.

    Attributes:
        second: Outputs of `solution_2`, (…, token).
        third: Outputs of `solution_3`, (…, token).
        second_diagonal: ``diag(S X_C^T A_2 X_C)``, (…, token), `logical` (2.29).
        third_diagonal: ``diag(X_C^T A_2^T X_C D_{−1})``, (…, token), `logical` (2.30).
        tolerance: 1e-15·K: outputs are sums of terms of size K.
    """

    second: Tensor
    third: Tensor
    second_diagonal: Tensor
    third_diagonal: Tensor
    tolerance: float

    @property
    def largest_difference(self) -> float:
        """Between the outputs of the two transformers, and between the two diagonals."""
        outputs = (self.second - self.third).abs().max()
        diagonals = (self.second_diagonal - self.third_diagonal).abs().max()
        return float(torch.maximum(outputs, diagonals))

    @property
    def holds(self) -> bool:
        """Whether the largest difference is within the tolerance."""
        return self.largest_difference <= self.tolerance


@typed_arguments
def check_equivalence(task: PairTask, x: Any, K: float | None = None) -> Equivalence:
    """Run solutions 2 and 3 side by side and compare them, `logical` 2.3.1, (2.29)–(2.32).

    Args:
        task: Any N, M and real q_true.
        x: Sequences (…, token) of categories 1..N.
        K: Of both; None for one that is enough. See `Selection.of`.

    Raises:
        ArgumentTypeError: `x` is not of integers.
        ArgumentValueError: A category outside 1..N, more than M tokens, or K too small (the least one is printed).

    >>> from tokendynamics.circuits import PairTask
    >>> result = check_equivalence(PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4), [1, 2, 2, 1])
    >>> result.holds, result.largest_difference
    (True, 0.0)
    """
    sequences = task.checked(x)
    chosen = Selection.of(task.q_true, "exact", K).K
    categories = task.embed(sequences)[..., : task.categories].mT
    step = shift(sequences.shape[-1])
    all_pairs = categories.mT @ task.q_true @ categories
    return Equivalence(
        second=solution_2(task, K=chosen)(sequences),
        third=solution_3(task, K=chosen)(sequences),
        second_diagonal=(step.mT @ all_pairs).diagonal(dim1=-2, dim2=-1),
        third_diagonal=(categories.mT @ task.q_true.mT @ categories @ step).diagonal(dim1=-2, dim2=-1),
        tolerance=_RELATIVE * chosen,
    )
