"""What a transformer answers beside what the task asks for: on given sequences, and for every pair of categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer

TOLERANCE = 1e-12
"""Largest error of an exact transformer, in units of the largest target (or of 1)."""

_MOST_DRAWN, _CHUNK = 2000, 100


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
        """Over the tokens from the second on; 0 for a single token."""
        errors = (self.outputs - self.targets)[1:].abs()
        return float(errors.max()) if errors.numel() else 0.0


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
        return f"({self.previous}, {self.current}): {self.output:.6g} instead of {self.target:.6g}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far a transformer is from its task.

    Attributes:
        model: The transformer.
        answers: On the given sequences.
        largest_error: Over given and drawn sequences, tokens from the second on.
        tolerance: Up to which this counts as exact.
        wrong: Pairs beyond the tolerance, the farthest off first.
        first_token: The largest |Y_1|, whose target is 0 and which no loss counts.
        drawn: How many sequences were drawn beside the given ones.
        seed: Of the draw.
    """

    model: OneLayerTransformer
    answers: tuple[Answer, ...]
    largest_error: float
    tolerance: float
    wrong: tuple[WrongPair, ...]
    first_token: float
    drawn: int
    seed: int

    @property
    def exact(self) -> bool:
        """Whether no answer from the second token on is off by more than the tolerance."""
        return self.largest_error <= self.tolerance

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, in words."""
        task = self.model.task
        every = " that hold every pair" if self.drawn >= task.categories**2 and task.positions > 1 else ""
        where = f"{self.drawn} drawn sequences of {task.positions} tokens{every}"
        if self.exact:
            said = [f"It is exact: the largest error is {self.largest_error:.2g}, over the given and {where}."]
        else:
            some = "; ".join(map(str, self.wrong[:4])) + ("; …" if len(self.wrong) > 4 else "")
            said = [
                f"It fails for {len(self.wrong)} of {task.categories**2} pairs of categories: {some}.",
                f"The largest error is {self.largest_error:.4g}, over the given and {where}.",
            ]
        if self.first_token > self.tolerance:
            said.append(
                f"The first token has no previous one and should give 0; here it gives up to {self.first_token:.4g}."
            )
        return tuple(said)

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "name": self.model.name,
            "exact": self.exact,
            "largest_error": self.largest_error,
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


def compare(model: OneLayerTransformer, sequences: Sequence[Any], seed: int = 0) -> Comparison:
    """Run a transformer on given sequences, and on drawn ones in which every pair of categories occurs.

    Args:
        model: The transformer; its task says what is right.
        sequences: Each a list of categories 1..N, at most M long.
        seed: Of the draw.

    Raises:
        ArgumentTypeError: A sequence that is not of integers.
        ArgumentValueError: A category outside 1..N, or more than M tokens.

    >>> from tokendynamics.circuits.hand_built import solution_1
    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, 2.0], [3.0, 4.0]], positions=3)
    >>> compare(solution_1(task), [[1, 2]]).exact
    True
    >>> print(compare(solution_1(task, form="printed"), [[1, 2]]).wrong[0])
    (2, 2): 26 instead of 4
    """
    task = model.task
    given = [task.checked(x) for x in sequences]
    answers = tuple(Answer(x, task.targets(x), model(x)) for x in given)
    x = _with_every_pair(model, seed)
    outputs = torch.cat([model(part) for part in x.split(_CHUNK)])
    # Rows of different lengths: one list of pairs for all of them.
    previous = torch.cat([x[:, :-1].flatten(), *(one[:-1] for one in given)])
    current = torch.cat([x[:, 1:].flatten(), *(one[1:] for one in given)])
    answered = torch.cat([outputs[:, 1:].flatten(), *(answer.outputs[1:] for answer in answers)])
    tolerance = TOLERANCE * max(1.0, float(task.q_true.abs().max()))
    wrong = _wrong_pairs(model, previous, current, answered, tolerance)
    errors = (answered - task.q_true[previous - 1, current - 1]).abs()
    firsts = torch.cat([outputs[:, 0], *(answer.outputs[:1] for answer in answers)])
    largest = float(errors.max()) if errors.numel() else 0.0
    return Comparison(model, answers, largest, tolerance, wrong, float(firsts.abs().max()), len(x), seed)


def _with_every_pair(model: OneLayerTransformer, seed: int) -> Tensor:
    task = model.task
    pairs = torch.cartesian_prod(torch.arange(1, task.categories + 1), torch.arange(1, task.categories + 1))
    x = task.sample(min(max(100, len(pairs)), _MOST_DRAWN), seed)
    if task.positions > 1:
        x[: len(pairs), :2] = pairs[: len(x)]
    return x


def _wrong_pairs(
    model: OneLayerTransformer, previous: Tensor, current: Tensor, answered: Tensor, tolerance: float
) -> tuple[WrongPair, ...]:
    """For each pair with an error beyond the tolerance its worst answer."""
    targets = model.task.q_true[previous - 1, current - 1]
    errors = (answered - targets).abs()
    worst: dict[tuple[int, int], tuple[float, WrongPair]] = {}
    for index in (errors > tolerance).nonzero()[:, 0].tolist():
        pair = int(previous[index]), int(current[index])
        if float(errors[index]) > worst.get(pair, (0.0,))[0]:
            found = WrongPair(*pair, float(targets[index]), float(answered[index]))
            worst[pair] = float(errors[index]), found
    return tuple(pair for _, pair in sorted(worst.values(), key=lambda entry: -entry[0]))
