"""What a gate does when the network is run with it, on prompts that did not choose it, with intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor, nn

from tokendynamics.diagnosis.gating.sensitivities import kappa_of, lengths_of, losses_of, sums_of, tokens_that_count
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.intervals import jackknife_interval
from tokendynamics.observables import relative_kappa
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.gates import GatedNetwork, GatedPass, Gates
from tokendynamics.pretrained.edits.variant import Variant, VariantLike
from tokendynamics.pretrained.not_finite import check_gated_pass
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress, tracked
from tokendynamics.words import estimate, places_for, signed

Loss: TypeAlias = Callable[[nn.Module], Any]
"""A function of a network, with its language head where there is one, that returns one number; lower is better."""

CONFIDENCE = 0.95
"""Of each interval by itself: several candidates are tried, so that a share of the lowered κ is asked for as well."""


_PLACES = 3
"""Decimal places of a change whose interval is narrower than 1; of a wider one those that show two digits of it."""

_REPEATED = 1e-4
"""Relative difference of two values of a loss for one network from which it is no function of the network."""

_SMALL = 0.05
"""Change without an interval, of any unit, below which these places would show fewer than two digits of it."""


@dataclass(frozen=True)
class EffectEstimate:
    """A number with its interval; NaN ends without one."""

    value: float
    low: float
    high: float

    @property
    def as_change(self) -> str:
        """The number with its sign and its interval, in words; alone where it has none, as a loss that was passed.

        >>> EffectEstimate(0.25, math.nan, math.nan).as_change, EffectEstimate(3.1e-5, math.nan, math.nan).as_change
        ('+0.250', '+3.1 × 10⁻⁵')
        """
        ends = (self.low, self.high)
        if math.isnan(self.low) and 0 < abs(self.value) < _SMALL:
            return signed(self.value)  # in its unit that may be much
        places = min(_PLACES, places_for(ends)) if self.high - self.low >= 1 else _PLACES
        return estimate(self.value, ends, CONFIDENCE, places=places, sign=True)


def columns_of(effects: Iterable[EffectEstimate]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of effects, (effect,), and their intervals, (effect, bound), as columns of a table."""
    numbers = np.array([(one.value, one.low, one.high) for one in effects], dtype=np.float64).reshape(-1, 3)
    return numbers[:, 0], numbers[:, 1:]


@dataclass(frozen=True)
class Trial:
    """One gate, tried.

    Attributes:
        layer: Counted from 1.
        part: 0 the attention, 1 the feed-forward part; of gates on heads the head, from 0.
        alpha: Its value.
        kappa_change: κ with it minus κ without.
        loss_change: Likewise the loss, in nats; NaN without a loss.
    """

    layer: int
    part: int
    alpha: float
    kappa_change: EffectEstimate
    loss_change: EffectEstimate

    @property
    def defined(self) -> bool:
        """Whether there is a κ with the gate."""
        return not math.isnan(self.kappa_change.value)

    @property
    def lowers(self) -> bool:
        """Whether the interval of the change of κ lies below 0."""
        return self.kappa_change.high < 0


@dataclass(frozen=True)
class Reading:
    """What the prompts leave at the depths that were asked for.

    Attributes:
        means: Mean unit rows.
        within: Mean products of different tokens.
        losses: NaN without a loss.
        dtype: Of the network.
    """

    means: Float64[Tensor, "prompt depth dim"]
    within: Float64[Tensor, "prompt depth"]
    losses: Float64[Tensor, " prompt"]
    dtype: torch.dtype

    def kappa(self, prompts: Int[Tensor, " some"]) -> Float64[Tensor, " depth"]:
        """Return κ of some of the prompts."""
        return kappa_of(self.means[prompts], self.within[prompts], self.dtype)


class Trials:
    """Runs the network with gates on the same prompts again and again; the tokens that count are those without gates.

    Attributes:
        plain: The reading without gates.
        where: Layer at which κ is read.

    Args:
        gated: The network with its gates, on parts, on heads or on both.
        packs: The prompts, at least three in all.
        where: Layer at which κ is read.
        ratio: See `tokendynamics.trace`, `sink_ratio`.
        sinks: Likewise.

    Raises:
        ArgumentValueError: κ is not defined there.
        CheckpointError: The network does not run.
    """

    def __init__(
        self, gated: Gates, packs: Sequence[Pack], where: int, ratio: float, sinks: str | Sequence[int] = "detect"
    ) -> None:
        self._every = self._gated = gated
        self._packs, self.where = packs, where
        self._counts: list[Bool[Tensor, "depth prompt token"]] = []
        self._ratio, self._sinks = ratio, sinks
        self._passes: list[tuple[Any, ...]] = []
        self._begins: dict[int, bool] = {}
        self._gated_last = [0]  # a list, which trials of some of the gates share
        self._tried = min((pack.of_one_prompt() for pack in packs), key=_size)
        self._tried_plain: list[GatedPass] = []
        self.plain = self.reading({})
        self._count = len(self.plain.losses)
        if math.isnan(self.kappa.value):
            wanted = f"tokens that point in more than one direction after layer {where}"
            raise ArgumentValueError("texts", wanted, "one direction of all tokens")

    def of_gates(self, gated: Gates) -> Trials:
        """Return trials with some of the gates alone, which share all passes without gates."""
        trials = copy(self)
        trials._gated = gated
        return trials

    @property
    def kappa(self) -> EffectEstimate:
        """κ without gates."""
        return jackknife_t(lambda prompts: float(self.plain.kappa(prompts)[1]), self._count)

    @property
    def relative_kappa(self) -> EffectEstimate:
        """κ' without gates."""

        def relative(prompts: Tensor) -> float:
            before, after = self.plain.kappa(prompts)
            return float(relative_kappa(after, before))

        return jackknife_t(relative, self._count)

    def of_each(self, gates: Sequence[tuple[int, int, float]], report: Progress, what: str) -> list[Trial]:
        """Run the network with one gate at a time, from the last layer to the first, which takes the fewest blocks.

        Args:
            gates: Layer from 1, gate and value of each; the trials are in this order.
            report: Told how far the work is.
            what: What the work is called.
        """
        trials = {gate: self._of(*gate) for gate in tracked(sorted(gates, reverse=True), report, what)}
        return [trials[gate] for gate in gates]

    def _of(self, layer: int, part: int, alpha: float) -> Trial:
        return Trial(layer, part, alpha, *self.change(self.reading({(layer, part): alpha}), self.plain))

    def change(self, reading: Reading, since: Reading) -> tuple[EffectEstimate, EffectEstimate]:
        """Return how κ and the loss differ between two readings, the same prompts left out of both."""

        def of_kappa(prompts: Tensor) -> float:
            return float(reading.kappa(prompts)[1] - since.kappa(prompts)[1])

        return jackknife_t(of_kappa, self._count), paired_t(reading.losses - since.losses)

    def reading(self, values: Mapping[tuple[int, int], float], changed: Gates | None = None) -> Reading:
        """Run all prompts with gates by (layer from 1, gate); the first time, without, say which tokens count.

        Args:
            values: Of the gates.
            changed: The same network under a variant, which runs instead; the tokens that count are the same.
        """
        gated = self._gated if changed is None else changed
        gates = torch.ones(gated.exists.shape, dtype=torch.float64)
        for (layer, gate), value in values.items():
            gates[layer - 1, gate] = value
        means, within, losses = [], [], []
        depths = (0, self.where)
        first = not self._counts
        unchanged = min((layer for layer, _ in values), default=1) - 1 if changed is None else 0
        for number, pack in enumerate(self._packs):
            with torch.no_grad():
                passed = self._run(gated, pack, gates, self._outputs(number, unchanged))
                if first:
                    check_gated_pass(gated, passed)
                    self._passes.append(passed.outputs)
                    lengths = lengths_of(passed, pack)
                    self._counts.append(tokens_that_count(passed.states, lengths, self._ratio, self._sinks))
                sums = [sums_of(passed.states[depth], self._counts[number][depth]) for depth in depths]
                loss = losses_of(passed.logits, pack, lengths_of(passed, pack))
            means.append(torch.stack([mean for mean, _ in sums], dim=1))
            within.append(torch.stack([product for _, product in sums], dim=1))
            missing = torch.full((len(pack.places),), torch.nan, dtype=torch.float64)
            losses.append(missing if loss is None else loss)
        return Reading(torch.cat(means), torch.cat(within), torch.cat(losses), gated.dtype)

    def _outputs(self, pack: int, blocks: int) -> Sequence[Any]:
        """Return what the first blocks return of a pack without gates; nothing where a pass cannot begin behind them.

        It can where a pass without gates that begins there equals the whole one to the last bit, seen on one prompt:
        blocks then pass on nothing but what they return. The last pass that ran these blocks has gates on all of them,
        so that nothing that modules may keep from pass to pass is that of a pass without.
        """
        if blocks < 1 or not self._passes[pack]:
            return ()
        if blocks not in self._begins:
            gates = torch.ones(self._every.exists.shape, dtype=torch.float64)
            try:
                if not self._tried_plain:
                    self._tried_plain.append(self._run(self._every, self._tried, gates, ()))
                plain = self._tried_plain[0]
                if self._gated_last[0] < blocks:
                    self._every.run(self._tried, gates / 2)
                    self._gated_last[0] = len(gates)
                again = self._run(self._every, self._tried, gates, plain.outputs[:blocks])
                self._begins[blocks] = len(plain.outputs) == len(gates) and again.equals(plain)
            except CheckpointError:
                self._begins[blocks] = False
        return self._passes[pack][:blocks] if self._begins[blocks] else ()

    def _run(self, gated: Gates, pack: Pack, gates: Tensor, known: Sequence[Any]) -> GatedPass:
        """Run the blocks behind those that are known, which are no longer among those that ran last with all gates."""
        self._gated_last[0] = min(self._gated_last[0], len(known))
        return gated.run(pack, gates, known=known)


def _size(pack: Pack) -> int:
    """Return how many numbers the largest input of a pass has."""
    return max((value.numel() for value in pack.arguments.values() if isinstance(value, torch.Tensor)), default=0)


class Costs:
    """What changes cost: by a loss that the user passes, called with a change in force, or by the cross-entropy.

    Attributes:
        given: Whether a loss was passed; `Trials` measures the cross-entropy of the next token.
        budget: Largest rise of the loss that a change may cost.
        unit: What follows a number of the loss: " nats", or nothing for one that was passed.
        of_loss: What follows an amount of it.

    Args:
        ckpt: The network.
        loss: The function; None for the cross-entropy.
        budget: See there.

    Raises:
        ArgumentTypeError: The loss is no function, or of the network as it is not one number.
        ArgumentValueError: It is not finite or differs when it is called again, or the budget is not a finite number of
            at least 0.
    """

    def __init__(self, ckpt: Checkpoint, loss: Loss | None, budget: float) -> None:
        if not 0 <= budget < math.inf:
            raise ArgumentValueError("budget", "a finite number of at least 0", budget)
        if loss is not None and (not callable(loss) or isinstance(loss, type)):
            raise ArgumentTypeError("loss", "a function of the network that returns one number", shown(loss))
        self.given, self.budget = loss is not None, float(budget)
        self.unit, self.of_loss = (" nats", " nats of loss") if loss is None else ("", " in the loss that was passed")
        self._ckpt, self._loss = ckpt, loss
        self._plain = self._of(Variant()) if self.given else math.nan
        if self.given and not math.isclose(again := self._of(Variant()), self._plain, rel_tol=_REPEATED):
            came, advice = f"{shown(self._plain)} and {shown(again)}", "fix its random seed and its batch"
            raise ArgumentValueError("loss", "the same number for the same network", came, advice)

    @property
    def why_unknown(self) -> str:
        """Why the cross-entropy of the network is not known where that is so, as a clause."""
        return why_without_loss(self._ckpt)

    def change(self, changes: VariantLike) -> EffectEstimate:
        """Return how much it rises with changes: one number, without an interval; NaN where none is given.

        Raises:
            ArgumentTypeError, ArgumentValueError: It is not one finite number.
        """
        value = self._of(Variant.of(changes)) - self._plain if self.given else math.nan
        return EffectEstimate(value, math.nan, math.nan)

    def charged(self, tried: Sequence[Trial], name: Callable[[Trial], str]) -> list[Trial]:
        """Return trials with what they cost by the loss that was passed; as they are without one.

        Args:
            tried: Of single gates.
            name: Returns the name of a trial's gate, as `Variant.of` reads it.
        """
        if not self.given:
            return list(tried)
        return [replace(trial, loss_change=self.change({name(trial): trial.alpha})) for trial in tried]

    def above(self, cost: EffectEstimate) -> str:
        """Return the end of a sentence on a cost that is shown to be above the budget; empty where it is not.

        From κ′ = 0.55 on, changes are named at any cost.

        Args:
            cost: Of a change; without an interval its value counts.
        """
        least = cost.value if math.isnan(cost.low) else cost.low
        return f", which is above the budget of {self.budget:g}{self.unit}" if least > self.budget else ""

    def allow(self, cost: float, much: bool) -> bool:
        """Return whether a change of the loss is within the budget; an unknown one has no cost.

        Args:
            cost: The change; NaN for an unknown one.
            much: Whether κ′ is so large that a change counts at any cost.
        """
        return much or not cost > self.budget

    def _of(self, variant: Variant) -> float:
        if self._loss is None:
            return math.nan
        with self._ckpt.as_varied(), self._ckpt.varied(variant), torch.no_grad():
            value = self._loss(self._ckpt.whole)
        if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ArgumentTypeError("loss", "a function that returns one number", shown(value))
        if not math.isfinite(value):
            what = "the network as it is" if variant == Variant() else variant.words
            raise ArgumentValueError("loss", f"a finite number for {what}", shown(value))
        return float(value)


def jackknife_t(statistic: Callable[[Int[Tensor, " some"]], float], count: int) -> EffectEstimate:
    """Return a statistic of all prompts with its interval from `jackknife_interval`: one prompt is left out at a time.

    Args:
        statistic: Of the prompts of these numbers.
        count: How many there are.

    >>> import torch
    >>> values = torch.tensor([1.0, 2.0, 3.0])
    >>> estimate = jackknife_t(lambda prompts: float(values[prompts].mean()), 3)
    >>> round(estimate.value, 3), round(estimate.high - estimate.value, 3)  # that of a mean is Student's
    (2.0, 2.484)
    """
    everything = torch.arange(count)
    whole = statistic(everything)
    left_out = [statistic(everything[everything != place]) for place in range(count)]
    known, without = (torch.tensor(values, dtype=torch.float64) for values in (whole, left_out))
    low, high = jackknife_interval(known, without, CONFIDENCE).tolist()
    return EffectEstimate(whole, low, high)


def paired_t(differences: Float64[Tensor, " prompt"]) -> EffectEstimate:
    """Return the mean of paired differences with Student's interval."""
    return jackknife_t(lambda prompts: float(differences[prompts].mean()), len(differences))


def why_without_loss(ckpt: Checkpoint) -> str:
    """Return why a network that gave no logits gave none, as a clause."""
    if ckpt.streamed:
        return "the blocks of the network are streamed from disk"
    causal = "the network is not known to predict the next token from earlier ones alone"
    if not ckpt.causal:
        return causal
    if ckpt.scores_last_place:
        return "the head of the network scores what follows the last token alone, not each token"
    return "no head that predicts the next token was found"


def read_losses(gated: GatedNetwork, packs: Sequence[Pack], gates: Tensor) -> Float64[Tensor, " prompt"] | None:
    """Return the loss of every prompt in the order of the prompts; None without logits."""
    by_prompt = torch.full((sum(len(pack.places) for pack in packs),), torch.nan, dtype=torch.float64)
    for pack in packs:
        passed = gated.run(pack, gates)
        if bool((gates == 1).all()):
            check_gated_pass(gated, passed)
        losses = losses_of(passed.logits, pack, lengths_of(passed, pack))
        if losses is None:
            return None
        by_prompt[list(pack.places)] = losses
    return by_prompt
