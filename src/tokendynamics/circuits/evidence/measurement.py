"""Which part of a one-layer transformer does the logic: attention, the feed-forward part, or both.

Instrument 5 asks how much of the interaction a linear readout finds in what the attention writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, chunk_length
from tokendynamics.circuits.evidence._interventions import ablation, patching
from tokendynamics.circuits.evidence._trial import EvidenceTrial
from tokendynamics.circuits.evidence.instrument import Found, Instrument
from tokendynamics.circuits.evidence.verdict import TAKES_PART, THRESHOLDS, Findings, Verdict, decide
from tokendynamics.circuits.evidence.weights import correlation, variance_shares
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.results import Result
from tokendynamics.words import number, percent, plural

Features = Callable[[Tensor], Tensor]

# Ridge on standardized features: settles collinear ones, and moves no other coefficient by more than this share.
_RIDGE = 1e-9
# Relative size below which a feature's spread is rounding.
_CONSTANT = 1e-12


# The attention holds the interaction from the first R² on, and does not below the second.
_HOLDS, _LACKS = 0.5, 0.1


def probing(trial: EvidenceTrial) -> Instrument:
    """Measure R² of Y_i from the attention's output beyond additive one-hots, before the layer norm and after it.

    At each position a least-squares readout of Y_i sees the one-hots of X_{i−1} and X_i, without and with the
    attention's output as further features; the fall of the squared error, as a share of what it was, is the R² (the
    one-hots alone leave the interaction). Readouts are made position by position because an attention may write its
    answer to a feature of the position. They are fitted on sequences drawn apart and judged on the trial's; intervals
    are over those, for the readouts as fitted.

    A readout finds what is there, used or not, and a path that carries a tenth of q_true gives 1 as well. So it says
    nothing of the feed-forward part where it finds the interaction; where it finds less than half, the rest is made
    later. The norm divides by a number that depends on both categories: what is found after it is partly its own doing.
    """
    model = trial.model
    probes: dict[str, Features] = {"before the norm": lambda x: model.attend(x)}
    norm = model.norm
    if norm is not None:
        probes["after the norm"] = lambda x: norm(model.stream(x))
    additive = _residuals(trial, lambda x: torch.zeros(*x.shape, 0, dtype=torch.float64))
    left = additive * float(trial.has_logic)
    estimates = [trial.ratio(name, additive - _residuals(trial, features), left) for name, features in probes.items()]
    before = estimates[0]
    holds, some = before.above(_HOLDS), before.above(_LACKS)
    share, *rest = (estimate.written(trial.bootstrap.confidence) for estimate in estimates)
    sentence = f"A linear readout of the attention's output finds {share} of the interaction."
    if rest:
        sentence += f" After the norm it finds {rest[0]}, in part because of the norm."
    attention: Found = True if holds else False if some is False else None
    feed_forward: Found = True if holds is False else None
    return Instrument(
        "probing",
        "R² of the interaction in the attention's output (decodable, which does not mean used)",
        attention,
        feed_forward,
        tuple(estimates),
        sentence if trial.has_logic else "q_true has no interaction to read out.",
        {"readouts": "one for each position", "fitted on": trial.fitting.shape[0]},
    )


def _residuals(trial: EvidenceTrial, features: Features) -> Tensor:
    """Squared errors on the trial's sequences, summed over tokens from 2 on, of readouts fitted apart, (sequence,)."""
    coefficients, centre = _fit(trial, features)

    def errors(x: Tensor) -> Tensor:
        seen = _with_one_hots(trial, features, x) - centre
        return trial.task.targets(x) - (seen[..., None, :] @ coefficients)[..., 0, 0] - trial.task.q_true.mean()

    return trial.run(errors, trial.x).square().sum(dim=1)


def _with_one_hots(trial: EvidenceTrial, features: Features, x: Tensor) -> Tensor:
    """Return a constant, one-hots of the previous and the current category, and the features, (sequence, token, …)."""
    current = one_hot(x - 1, trial.task.categories).double()
    previous = pad(current[:, :-1], (0, 0, 1, 0))
    return torch.cat([torch.ones(*x.shape, 1, dtype=torch.float64), previous, current, features(x)], dim=-1)


def _fit(trial: EvidenceTrial, features: Features) -> tuple[Tensor, Tensor]:
    """Coefficients (token, feature, 1) and the features' means (token, feature)."""
    x, task = trial.fitting, trial.task
    chunks = x.split(chunk_length(trial.model, x.shape[1]))
    centre = sum((_with_one_hots(trial, features, chunk).sum(dim=0) for chunk in chunks), torch.zeros(())) / len(x)
    centre[:, 0] = 0.0  # the constant stays one
    gram, moment = torch.zeros(()), torch.zeros(())
    for chunk in chunks:
        seen = (_with_one_hots(trial, features, chunk) - centre).transpose(0, 1)  # (token, sequence, feature)
        wanted = (task.targets(chunk) - task.q_true.mean()).T[..., None]
        gram = gram + seen.mT @ seen / len(x)
        moment = moment + seen.mT @ wanted / len(x)
    spread = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    size = (spread.square() + centre.square()).sqrt()
    scale = torch.where(spread > _CONSTANT * size, 1.0 / spread, torch.zeros_like(spread))
    standard = gram * scale[:, :, None] * scale[:, None, :]
    ridge = _RIDGE * torch.eye(standard.shape[-1], dtype=torch.float64)
    return scale[..., None] * torch.linalg.solve(standard + ridge, scale[..., None] * moment), centre


_BYTES = 32
"""Of each token of a sample: its category, its target, its answer and one that was changed."""
_DECIDING = ("path patching", "ablation")


@dataclass(frozen=True, repr=False)
class Evidence(Result):
    """The results of five instruments, and the verdict of the two causal ones.

    Attributes:
        verdict: "attention", "feed-forward", "both", "either" (each part does the logic when the other does not), or
            "undecided".
        sentence: The reason, with the numbers.
        instruments: Variance shares, correlation, path patching, ablation, probing.
        loss: Mean squared error over tokens i ≥ 2.
        interaction_variance: Of q_true: the loss of the best prediction without any logic.
        samples: Sequences that the model was run on.
        seed: Of all draws.
        confidence: Of all intervals.
        name: Of the model.
        by_threshold: The verdict at other shares from which a part counts than the one that was chosen.
        model: What was measured.

    >>> from tokendynamics.circuits.constructions import solution_2
    >>> from tokendynamics.circuits.functionals import random_functional
    >>> task = PairTask(random_functional(4, seed=0), positions=6)
    >>> measurement = evidence(solution_2(task), task, samples=200)
    >>> measurement.verdict, len(measurement.instruments)
    ('attention', 5)
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
    model: OneLayerTransformer | None = field(default=None, compare=False)

    @property
    def headline(self) -> str:
        """Name and verdict."""
        return f"{self.name}: {self.verdict}"

    @property
    def findings(self) -> list[str]:
        """The reason of the verdict, and the result of each instrument."""
        names = (f"{instrument.name[0].upper()}{instrument.name[1:]}" for instrument in self.instruments)
        sentences = zip(names, self.instruments, strict=True)
        return [self.sentence, *(f"{name}: {instrument.sentence}" for name, instrument in sentences)]

    def instrument(self, name: str) -> Instrument:
        """Return the instrument of that name.

        Raises:
            ArgumentValueError: It does not exist.
        """
        named = [instrument for instrument in self.instruments if instrument.name == name]
        if not named:
            names = ", ".join(repr(instrument.name) for instrument in self.instruments)
            raise ArgumentValueError("name", f"one of {names}", repr(name))
        return named[0]

    def agrees(self, instrument: Instrument) -> bool | None:
        """Return whether an instrument supports the verdict; None if either is undecided."""
        # Exchanging one side at a time cannot show a part whose work the other can do.
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
        loss = "not finite" if self.loss is None else number(self.loss)
        lines = [
            f"{self.name}: {self.verdict}",
            f"  {self.sentence}",
            f"  Mean squared error {loss}; variance of the interaction {number(self.interaction_variance)} (the part "
            "of q_true that is no sum f(previous) + g(current)).",
            f"  {plural(self.samples, 'sequence')}, seed {self.seed}, {percent(self.confidence)} confidence intervals.",
            f"  Verdict by threshold: {self.thresholds}.",
        ]
        for place, instrument in enumerate(self.instruments, start=1):
            lines += [
                f"  {place} {instrument.name:<16} {instrument.reading:<26} {self._standing(instrument)}",
                f"      {instrument.sentence}",
            ]
        return "\n".join(lines)

    @property
    def thresholds(self) -> str:
        """The verdict by threshold in one line, thresholds of one verdict together."""
        together = itertools.groupby(self.by_threshold.items(), key=lambda entry: entry[1])
        spans = [(verdict, [percent(share) for share, _ in entries]) for verdict, entries in together]
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
    is left without the attention's, and some is lost with linear units. Where one part can do the other's work, the
    loss with both ablated shows it. The complete rule is in `verdict.decide`. The other instruments (weights, readouts)
    support or question the verdict, and are always shown.

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
    trial = EvidenceTrial.drawn(model, task, samples, seed, resamples, confidence)
    patched, ablated, probed = patching(trial, TAKES_PART), ablation(trial, TAKES_PART), probing(trial)
    looked_at = [see(model, task, resamples, confidence, trial.seed) for see in (variance_shares, correlation)]
    findings = Findings.of(trial, patched, ablated, probed)
    decision = decide(findings)
    return Evidence(
        decision.verdict,
        decision.sentence,
        (*looked_at, patched, ablated, probed),
        findings.loss.value,
        task.interaction_variance,
        samples,
        seed,
        confidence,
        model.name,
        {threshold: decide(findings, threshold).verdict for threshold in THRESHOLDS},
        model,
    )


def check_measurable(
    model: OneLayerTransformer, task: PairTask, samples: int, resamples: int, confidence: float
) -> None:
    """Refuse what `evidence` would refuse, before anything is printed or trained.

    Raises:
        ArgumentValueError, MemoryLimitError: See `evidence`.
    """
    wanted, came = (model.task.categories, model.task.positions), (task.categories, task.positions)
    if wanted != came:
        fit = f"the model's {wanted[0]} categories and {wanted[1]} positions"
        raise ArgumentValueError("task", fit, f"{came[0]} and {came[1]}")
    if task.positions < 2:
        raise ArgumentValueError("task", "at least 2 positions, so that there is a pair", task.positions)
    for argument, count, least in (("samples", samples, 50), ("resamples", resamples, 20)):
        if count < least:
            raise ArgumentValueError(argument, f"at least {least}", count)
    check_fits(_BYTES * samples * task.positions, "samples")
    check_fits(_BYTES * resamples, "resamples")
    if not 0.0 < confidence < 1.0:
        raise ArgumentValueError("confidence", "a share between 0 and 1, such as 0.95", confidence)
