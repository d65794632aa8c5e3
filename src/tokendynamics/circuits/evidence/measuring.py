"""Which part of a one-layer transformer does the logic: attention, the feed-forward part, or both."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokendynamics.circuits.evidence.instrument import Instrument
from tokendynamics.circuits.evidence.interventions import ablation, patching
from tokendynamics.circuits.evidence.probe import probing
from tokendynamics.circuits.evidence.trial import Trial
from tokendynamics.circuits.evidence.verdict import TAKES_PART, THRESHOLDS, Findings, Verdict, decide
from tokendynamics.circuits.evidence.weights import correlation, variance_shares
from tokendynamics.circuits.task import PairTask
from tokendynamics.circuits.transformer import OneLayerTransformer
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.memory import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.plain import plain

_BYTES = 32
"""Of each token of a sample: its category, its target, its answer and one that was changed."""
_DECIDING = ("path patching", "ablation")


@dataclass(frozen=True)
class Evidence:
    """What five instruments say, and the verdict that the two causal ones give.

    Attributes:
        verdict: "attention", "feed-forward", "both", "either" (each part does the logic when the other does not), or
            "undecided".
        sentence: Why.
        instruments: Variance shares, correlation, path patching, ablation, probing.
        loss: Mean squared error over tokens i ≥ 2.
        interaction_variance: Of q_true: the loss of the best prediction without any logic.
        samples: Sequences that the model was run on.
        seed: Of all draws.
        confidence: Of all intervals.
        name: Of the model.
        by_threshold: The verdict at other shares from which a part counts than the one that was chosen.
    """

    verdict: Verdict
    sentence: str
    instruments: tuple[Instrument, ...]
    loss: float | None
    interaction_variance: float
    samples: int
    seed: int
    confidence: float
    name: str = "transformer"
    by_threshold: Mapping[float, Verdict] = field(default_factory=dict)

    def instrument(self, name: str) -> Instrument:
        """Return the instrument of that name.

        Raises:
            ArgumentValueError: There is none.
        """
        found = [instrument for instrument in self.instruments if instrument.name == name]
        if not found:
            names = ", ".join(repr(instrument.name) for instrument in self.instruments)
            raise ArgumentValueError(expected("name", f"one of {names}", repr(name)))
        return found[0]

    def agrees(self, instrument: Instrument) -> bool | None:
        """Return whether an instrument speaks for the verdict; None if there is none, or if it says nothing."""
        # One side exchanged at a time cannot show a part that the other stands in for.
        hidden = self.verdict == "either" and instrument.name == "path patching"
        if self.verdict == "undecided" or hidden:
            return None
        two = self.verdict in ("both", "either")
        return instrument.agrees(two or self.verdict == "attention", two or self.verdict == "feed-forward")

    def as_json(self) -> dict[str, Any]:
        """Return plain types, without NaN."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "threshold": TAKES_PART,
            "verdict_by_threshold": [
                {"threshold": share, "verdict": verdict} for share, verdict in self.by_threshold.items()
            ],
            "loss": plain(self.loss),
            "interaction_variance": plain(self.interaction_variance),
            "samples": self.samples,
            "seed": self.seed,
            "confidence": self.confidence,
            "instruments": [
                instrument.as_json() | {"agrees": self.agrees(instrument), "decides": instrument.name in _DECIDING}
                for instrument in self.instruments
            ],
        }

    def __str__(self) -> str:
        loss = "not finite" if self.loss is None else f"{self.loss:.3g}"
        lines = [
            f"{self.name}: {self.verdict}",
            f"  {self.sentence}",
            f"  mean squared error {loss}; variance of the interaction {self.interaction_variance:.3g} (the part of "
            "q_true that no sum f(previous) + g(current) gives)",
            f"  {self.samples} sequences, seed {self.seed}, {self.confidence:.0%} intervals",
            f"  with another threshold: {self.thresholds}",
        ]
        for number, instrument in enumerate(self.instruments, start=1):
            lines += [
                f"  {number} {instrument.name:<16} {instrument.reading:<26} {self._standing(instrument)}",
                f"      {instrument.sentence}",
            ]
        return "\n".join(lines)

    @property
    def thresholds(self) -> str:
        """The verdict by threshold in one line, thresholds of one verdict together."""
        together = itertools.groupby(self.by_threshold.items(), key=lambda entry: entry[1])
        spans = [(verdict, [f"{share * 100:g} %" for share, _ in entries]) for verdict, entries in together]
        return "; ".join(
            f"{shares[0]}{' to ' + shares[-1] if shares[1:] else ''}: {verdict}" for verdict, shares in spans
        )

    def _standing(self, instrument: Instrument) -> str:
        role = "decides" if instrument.name in _DECIDING else "supports"
        return {True: f"{role}, agrees", False: f"{role}, DISAGREES", None: role}[self.agrees(instrument)]


@typed_arguments
def evidence(
    model: OneLayerTransformer,
    task: PairTask,
    *,
    samples: int = 2000,
    seed: int = 0,
    resamples: int = 200,
    confidence: float = 0.95,
) -> Evidence:
    """Measure which part of a transformer does the logic of a pair task.

    Path patching and ablation decide, because they change the model and watch the answer. Attention takes part if
    logic is lost when what it writes becomes a sum of one-category functions, and when its keys, and its queries, see
    other categories, or if logic is left with linear hidden units (and a linear norm); the feed-forward part if logic
    is left without the attention's, and some is lost with linear units. Where one part stands in for the other, what
    both lose together shows it. The rule in full stands at `verdict.decide`. What the weights look like and what can
    be read from the stream supports or questions it, and is always shown beside.

    Args:
        model: The transformer.
        task: q_true and the law of the categories; the same categories and positions as the model's.
        samples: Sequences, at least 50.
        seed: Of every draw: the same seed gives the same evidence.
        resamples: Of each interval, at least 20.
        confidence: Of each interval, between 0 and 1.

    Returns:
        Verdict, instruments and intervals.

    Raises:
        ArgumentValueError: A task that does not fit the model, a task of one position, too few samples or resamples,
            or a confidence outside (0, 1).
        MemoryLimitError: More samples or resamples than fit into memory.

    >>> from tokendynamics.circuits.constructions import solution_2
    >>> from tokendynamics.circuits.functionals import random_functional
    >>> task = PairTask(random_functional(4, seed=0), positions=6)
    >>> evidence(solution_2(task), task, samples=200).verdict
    'attention'
    """
    check_measurable(model, task, samples, resamples, confidence)
    trial = Trial.drawn(model, task, samples, seed, resamples, confidence)
    patched, ablated, probed = patching(trial, TAKES_PART), ablation(trial, TAKES_PART), probing(trial)
    instruments = (
        variance_shares(model, task, resamples, confidence, trial.seed),
        correlation(model, task, resamples, confidence, trial.seed),
        patched,
        ablated,
        probed,
    )
    found = Findings.of(trial, patched, ablated, probed)
    decision = decide(found)
    return Evidence(
        decision.verdict,
        decision.sentence,
        instruments,
        found.loss.value,
        task.interaction_variance,
        samples,
        seed,
        confidence,
        model.name,
        {threshold: decide(found, threshold).verdict for threshold in THRESHOLDS},
    )


def check_measurable(
    model: OneLayerTransformer, task: PairTask, samples: int, resamples: int, confidence: float
) -> None:
    """Refuse what `evidence` would refuse, before anything is said or trained.

    Raises:
        ArgumentValueError, MemoryLimitError: See `evidence`.
    """
    wanted, came = (model.task.categories, model.task.positions), (task.categories, task.positions)
    if wanted != came:
        fit = f"the model's {wanted[0]} categories and {wanted[1]} positions"
        raise ArgumentValueError(expected("task", fit, f"{came[0]} and {came[1]}"))
    if task.positions < 2:
        raise ArgumentValueError(expected("task", "at least 2 positions, so that there is a pair", task.positions))
    for argument, count, least in (("samples", samples, 50), ("resamples", resamples, 20)):
        if count < least:
            raise ArgumentValueError(expected(argument, f"at least {least}", count))
    check_fits(_BYTES * samples * task.positions, "samples")
    check_fits(_BYTES * resamples, "resamples")
    if not 0.0 < confidence < 1.0:
        raise ArgumentValueError(expected("confidence", "a share between 0 and 1, such as 0.95", confidence))
