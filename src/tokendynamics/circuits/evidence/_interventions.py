"""Instruments 3 and 4: feed one side of the attention other sequences, or take the logic out of a part.

A part without logic is an attention that writes sums, or hidden units that are affine in their own input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import FeatureBlock, OneLayerTransformer, chunk_length
from tokendynamics.circuits.evidence._trial import EvidenceTrial, pairs, root
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument, all_of, any_of
from tokendynamics.circuits.evidence.weights import QK_BLOCKS, block_name, double_centred, weights_of

# A sum that leaves the range of what was written by less than this share of its own spread does so by rounding.
_OUT_OF_RANGE = 1e-9

# Variance of an input, relative to its mean square, below which it is constant up to rounding.
_CONSTANT = 1e-24


@dataclass(frozen=True, eq=False)
class AdditiveAttention:
    """Writes ``Σ_j f_ij(X_j)`` at token i, the f_ij fitted by least squares to what a model's attention wrote.

    The fit, on sequences drawn apart, takes away all that attention makes of two categories or more: pairs weighed by
    qk, products of weights that depend on one category and values that depend on another, and what the sum in a
    softmax mixes. An attention that only carries categories, one by one, is reproduced exactly. Unlike exchanged keys,
    and unlike a block of qk on its own, the hidden units still see streams like those that they were made for.

    Where the sums of a feature leave the range of what attention ever wrote there, they are drawn towards their mean
    until they fit: hidden units that clip what they never had to carry would make logic out of the ablation itself.
    Drawing towards the mean keeps a sum a sum.

    Attributes:
        model: Whose attention is replaced.
        terms: The functions f_ij, (token j · category, token i · feature).
        mean: Of what was written, (token i · feature).
        share: How much of the distance from the mean is kept, 0 … 1, (token i · feature).
    """

    model: OneLayerTransformer
    terms: Tensor
    mean: Tensor
    share: Tensor

    @classmethod
    def fitted(cls, trial: EvidenceTrial) -> AdditiveAttention:
        """Return the sums that are nearest to what the trial's model wrote on its sequences for fits."""
        terms, low, high, mean = _fit_terms(trial)
        most, least = torch.full_like(mean, -torch.inf), torch.full_like(mean, torch.inf)
        for chunk in _chunks(trial):
            sums = _one_hots(trial.model, chunk) @ terms
            most, least = torch.maximum(most, sums.amax(dim=0)), torch.minimum(least, sums.amin(dim=0))
        share = torch.minimum(_fitting(most - mean, high - mean), _fitting(mean - least, mean - low))
        return cls(trial.model, terms, mean, share)

    def __call__(self, x: Tensor) -> Tensor:
        """Return what is written for sequences (sequence, token), shape (sequence, token, width)."""
        sums = _one_hots(self.model, x) @ self.terms
        return (self.mean + self.share * (sums - self.mean)).reshape(*x.shape, self.model.width)

    def stream(self, x: Tensor) -> Tensor:
        """Return the stream behind it, with the model's skip connection."""
        return self(x) + self.model.skip * self.model.embed(x)


def _fit_terms(trial: EvidenceTrial) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the functions f_ij, and the least, largest and mean of what attention wrote, each (token · feature)."""
    gram, moment, written = torch.zeros(()), torch.zeros(()), []
    for chunk in _chunks(trial):
        seen, wrote = _one_hots(trial.model, chunk), trial.model.attend(chunk).flatten(1)
        gram = gram + seen.mT @ seen
        moment = moment + seen.mT @ wrote
        written.append((wrote.amin(dim=0), wrote.amax(dim=0), wrote.sum(dim=0) / len(trial.fitting)))
    low, high, mean = (torch.stack(kind) for kind in zip(*written, strict=True))
    # The one-hots of each token sum to one, so the system is singular and consistent.
    terms = torch.linalg.pinv(gram, hermitian=True) @ moment
    return terms, low.amin(dim=0), high.amax(dim=0), mean.sum(dim=0)


def _fitting(reach: Tensor, room: Tensor) -> Tensor:
    """Return the share of `reach` that fits into `room`."""
    exceeds = reach > room * (1.0 + _OUT_OF_RANGE)
    return torch.where(exceeds, room / torch.where(exceeds, reach, torch.ones_like(reach)), torch.ones_like(reach))


def _chunks(trial: EvidenceTrial) -> tuple[Tensor, ...]:
    return trial.fitting.split(chunk_length(trial.model, trial.fitting.shape[1]))


def _one_hots(model: OneLayerTransformer, x: Tensor) -> Tensor:
    """One-hots of all categories of a sequence side by side, (sequence, token · category)."""
    return one_hot(x - 1, model.task.categories).double().flatten(1)


@dataclass(frozen=True, eq=False)
class LinearUnits:
    """The feed-forward part with each hidden unit, at each position, an affine function of its own input.

    The functions are fitted by least squares on sequences drawn apart. Units that only select (always on or always
    off at a position, as in an attention that has done the logic) are reproduced exactly; units that decide are not.
    A best linear readout of the whole stream would not do: it finds whatever is decodable, also what the model does
    not use, and would rebuild q_true from a part of it.

    Attributes:
        model: Whose units are replaced.
        slope: (token, hidden).
        intercept: (token, hidden).
        norm: Whether the layer norm's division is made linear as well (the input is then taken before it).
    """

    model: OneLayerTransformer
    slope: Tensor
    intercept: Tensor
    norm: bool

    @classmethod
    def fitted(cls, trial: EvidenceTrial, norm: bool = False) -> LinearUnits:
        """Return the affine functions that are nearest to what the trial's units did on its sequences for fits."""
        return cls(trial.model, *_fit_units(trial, norm), norm)

    def read(self, stream: Tensor) -> Tensor:
        """Return the outputs for a stream (sequence, token, width), shape (sequence, token).

        The functions stay those of the model as it was, also for the stream of another attention.
        """
        inputs = _inputs(self.model, stream, self.norm)
        hidden = self.slope[: inputs.shape[-2]] * inputs + self.intercept[: inputs.shape[-2]]
        return hidden @ self.model.C + self.model.offset

    def outputs(self, trial: EvidenceTrial) -> Tensor:
        """Return the outputs after the model's own attention, (sequence, token from 2 on)."""
        return trial.run(lambda x: self.read(self.model.stream(x)), trial.x)


def _inputs(model: OneLayerTransformer, stream: Tensor, norm: bool) -> Tensor:
    """Return what each unit's ReLU sees, or (up to a constant) what it would see if the norm only centred."""
    if model.norm is None:
        return stream @ model.B.mT + model.bias
    if not norm:
        return model.norm(stream) @ model.B.mT + model.bias
    # The norm without its division: the same features, centred and scaled.
    first, last, _ = model.norm.features.indices(stream.shape[-1])
    part = stream[..., first:last]
    centred = (part - part.mean(dim=-1, keepdim=True)) * model.norm.gain + model.norm.shift
    return torch.cat([stream[..., :first], centred, stream[..., last:]], dim=-1) @ model.B.mT + model.bias


def _fit_units(trial: EvidenceTrial, norm: bool) -> tuple[Tensor, Tensor]:
    """Slopes and intercepts, (token, hidden), by two passes: means first, so that nothing cancels."""
    model, count = trial.model, trial.fitting.shape[0]
    chunks = trial.fitting.split(chunk_length(model, trial.fitting.shape[1]))

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        stream = model.stream(x)
        return _inputs(model, stream, norm), model.hidden(stream)

    zero = torch.zeros(trial.fitting.shape[1], model.C.shape[0], dtype=torch.float64)
    mean_in, mean_out, square, variance, covariance = (zero.clone() for _ in range(5))
    for chunk in chunks:
        inputs, hidden = both(chunk)
        mean_in += inputs.sum(dim=0) / count
        mean_out += hidden.sum(dim=0) / count
        square += inputs.square().sum(dim=0) / count
    for chunk in chunks:
        inputs, hidden = both(chunk)
        variance += (inputs - mean_in).square().sum(dim=0) / count
        covariance += ((inputs - mean_in) * (hidden - mean_out)).sum(dim=0) / count
    moves = variance > _CONSTANT * square
    slope = torch.where(moves, covariance / torch.where(moves, variance, torch.ones_like(variance)), zero)
    return slope, mean_out - slope * mean_in


def patching(trial: EvidenceTrial, threshold: float) -> Instrument:
    """Patch the paths of categories, one side of the attention at a time; everything else sees the true sequence.

    The headline of a side is the share of the interaction that no longer follows the own pair (a, b) once that side
    sees another sequence, where the pair is (a', b'). (Before − after) is regressed on the interaction at (a, b),
    (a', b), (a, b') and (a', b') at once, beside one-hots of the four categories; the share is the slope on that of
    (a, b). So it does not matter whether the side brings the previous category, the current one or both, and additive
    terms of the task, which need no logic, do not count. A path that carries α·q_true reads α. The other three slopes,
    the share that now follows another pair, are in the details; a model that is merely thrown off follows none.

    Attention weighs pairs of categories only if they matter in the keys AND in the queries, so it may do the logic
    only where both shares exceed the threshold; keys alone, or keys and queries in a sum, can also serve hidden units
    that do the logic. Interaction that comes by the values is not in the weights: the instrument then points at the
    feed-forward part; without any it says nothing of that part, which may have the categories from the keys.

    "Rise" is √(rise of the loss / E[(q(a', b) − q(a, b))²]), where additive terms count too.
    """
    outputs = _exchanged(trial)
    slopes = {side: _slopes(trial, side, changed) for side, changed in outputs.items()}
    keys, values, queries = (estimate for estimate, *_ in slopes.values())
    shares = (estimate.written(trial.bootstrap.confidence) for estimate in (keys, values, queries))
    sentence = "Of the interaction, {} comes through the keys and {} through the values; {} depends on the queries."
    previous, current, fed_previous, fed_current = _categories(trial)
    rises = []
    for side, changed in outputs.items():
        pair = (previous, fed_current) if side == "queries" else (fed_previous, current)
        reference = (pairs(trial.task.q_true, *pair) - trial.targets).square().sum(dim=1)
        rises.append(trial.ratio(side, trial.rise(changed), reference, root))
    return Instrument(
        "path patching",
        "Other categories fed to one side of the attention",
        all_of(keys.beyond(threshold), queries.beyond(threshold)),
        values.beyond(threshold) or None,
        (keys, values, queries),
        sentence.format(*shares) if trial.has_logic else "q_true has no interaction to follow.",
        {
            "rise of the loss": rises,
            "share that follows another pair": {side: others for side, (_, *others) in slopes.items()},
        },
    )


def _exchanged(trial: EvidenceTrial) -> dict[str, Tensor]:
    """Return the outputs when one side sees the other sequences."""
    model, x, other = trial.model, trial.x, trial.other

    def asked(received: Tensor, asking: Tensor) -> Tensor:
        return model.read(model.attend(asking, received, received) + model.skip * model.embed(received))

    return {
        "keys": trial.run(lambda true, fed: model.read(model.stream(true, keys=fed)), x, other),
        "values": trial.run(lambda true, fed: model.read(model.stream(true, values=fed)), x, other),
        "queries": trial.run(asked, x, other),
    }


def _slopes(trial: EvidenceTrial, side: str, changed: Tensor) -> list[Estimate]:
    """How much less the answer follows the own pair, and how much more each of three others."""
    previous, current, fed_previous, fed_current = _categories(trial)
    table = trial.task.interaction
    contrasts = {
        side: trial.interaction,
        "previous exchanged": -pairs(table, fed_previous, current),
        "current exchanged": -pairs(table, previous, fed_current),
        "both exchanged": -pairs(table, fed_previous, fed_current),
    }
    return trial.slopes(trial.outputs - changed, contrasts, previous, current, fed_previous, fed_current)


def _categories(trial: EvidenceTrial) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Previous and current category of each token from 2 on, and those fed in."""
    return trial.x[:, :-1], trial.x[:, 1:], trial.other[:, :-1], trial.other[:, 1:]


def ablation(trial: EvidenceTrial, threshold: float) -> Instrument:
    """Measure what is lost, and what is left, when a part keeps all it does except the logic.

    - "whole attention": what attention writes becomes additive in the categories; see `AdditiveAttention`. What is
      "left without it" is made after the attention.
    - "hidden units": they become affine in their own inputs; see `LinearUnits`. Where there is a norm, also "norm and
      hidden units": section 8 of mathematics counts it with the feed-forward part. What is "left with linear units"
      (and a linear norm) is made by the attention.
    - "both at once": an additive attention before linear units. "Made twice" is what this loses beyond what the two
      lose one by one: logic that either part makes when the other does not. It is negative where the two only make
      it together.
    - each block of qk, in every head, becomes its additive part (row + column + mean). Without the
      position–position block a transformer that routes by position loses its way, which says nothing about logic.

    A part is pointed at if it makes more than the threshold with the other one ablated. The attention also if more is
    lost without its own: hidden units may bend what it made, and then linear ones make nothing of it.

    Shares are slopes on the interaction (see `EvidenceTrial.lost`). "Rise" is
    √(rise of the loss / variance of the interaction), which also counts additive terms that are spoilt on the way;
    "interaction of any shape" (see `EvidenceTrial.any_interaction`) counts logic that is not along q_true's.
    """
    model, attention, units = trial.model, AdditiveAttention.fitted(trial), {"hidden units": LinearUnits.fitted(trial)}
    if model.norm is not None:
        units["norm and hidden units"] = LinearUnits.fitted(trial, norm=True)
    bends = {name: one.outputs(trial) for name, one in units.items()}
    last = next(reversed(units))
    without = trial.run(lambda x: model.read(attention.stream(x)), trial.x)
    neither = trial.run(lambda x: units[last].read(attention.stream(x)), trial.x)
    blocks = {
        block_name(block): trial.run(without_interaction(model, trial.task, block), trial.x) for block in QK_BLOCKS
    }
    changed = {"whole attention": without, **bends, "both at once": neither, **blocks}
    lost = {name: trial.lost(name, outputs) for name, outputs in changed.items()}
    left = trial.left("left without it", without), trial.left("left with linear units", bends[last])
    twice = trial.left("made twice", without + bends[last] - trial.outputs - neither)
    attended = lost.pop("whole attention")
    heads, categories = model.qk.shape[0], QK_BLOCKS[0]
    by_head = []
    for head in range(heads) if heads > 1 else ():
        outputs = trial.run(without_interaction(model, trial.task, categories, head), trial.x)
        by_head.append(trial.lost(f"head {head + 1}", outputs))
    return Instrument(
        "ablation",
        "Interaction removed from the attention or a block of kᵗq, hidden units made linear, or both",
        any_of(attended.beyond(threshold), left[1].beyond(threshold)),
        left[0].beyond(threshold),
        (attended, *left, twice, *lost.values()),
        _sentence(trial, attended, left[0], lost, twice) if trial.has_logic else "q_true has no interaction to lose.",
        {
            "rise of the loss": [trial.rise_share(name, outputs) for name, outputs in changed.items()],
            "interaction of any shape": [
                trial.any_interaction("whole attention", trial.outputs - without),
                trial.any_interaction("left without it", without),
            ],
            "category–category by head": by_head,
        },
    )


def _sentence(
    trial: EvidenceTrial, attended: Estimate, left: Estimate, lost: dict[str, Estimate], twice: Estimate
) -> str:
    estimates = (attended, left, lost["hidden units"], lost["both at once"], twice_or_together(twice))
    additive, rest, linear, both, shared = (estimate.written(trial.bootstrap.confidence) for estimate in estimates)
    how = "needs both parts" if _below_zero(twice) else "is computed by either part alone"
    return (
        f"An additive attention loses {additive} of the interaction; {rest} is left. Linear hidden units lose "
        f"{linear}, both together {both}. {shared} {how}."
    )


def twice_or_together(twice: Estimate) -> Estimate:
    """Return the share that either part computes alone; where that is below 0, the share that needs both, renamed.

    >>> twice_or_together(Estimate("made twice", -0.31, -0.33, -0.29))
    Estimate(name='needs the two together', value=0.31, low=0.29, high=0.33)
    """
    if not _below_zero(twice):
        return twice
    value, low, high = (None if number is None else -number for number in (twice.value, twice.high, twice.low))
    return Estimate("needs the two together", value, low, high)


def _below_zero(share: Estimate) -> bool:
    """Whether it is, with its whole interval, as far as two digits show."""
    return share.high is not None and round(share.high, 2) < 0


def without_interaction(
    model: OneLayerTransformer, task: PairTask, block: tuple[FeatureBlock, FeatureBlock], head: int | None = None
) -> OneLayerTransformer:
    """Replace one block (receiver, sender) of qk by its additive part, in one head or in all."""
    heads = slice(None) if head is None else slice(head, head + 1)
    receiver, sender = block
    where = heads, model.block(receiver), model.block(sender)
    changed: Tensor = model.qk.clone()
    changed[where] -= double_centred(changed[where], weights_of(task, receiver), weights_of(task, sender))
    return model.with_qk(changed)
