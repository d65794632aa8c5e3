"""The single part of a network that causes consensus, and the cost of turning it down: proposed, then measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.gating._result import (
    CHEAP,
    EVEN_SHARE,
    LITTLE,
    NOTHING,
    Answer,
    Halves,
    Levers,
    LeverWords,
    contributing_layers,
    qualified,
)
from tokendynamics.diagnosis.gating._what_if import what_if
from tokendynamics.diagnosis.gating.sensitivities import HIGHEST, LOWEST, Sensitivities, sensitivities
from tokendynamics.diagnosis.gating.trials import CONFIDENCE, Costs, EffectEstimate, Loss, Trial, Trials, columns_of
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import NamedPrompts, checkpoint_for, named_prompts, noun_of
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_no_padding
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress, reporting, tracked_if_many
from tokendynamics.words import Convention, indefinite, percent, plural

ALPHAS = (0.5, 0.0)
"""Gates that are tried: at 0.5 a part still acts, at 0 its whole effect shows. First order predicts neither."""

MUCH = 0.55
"""κ′ from which the tokens of each prompt are near one point, which was seen in no healthy network: over 31 networks κ′
left a gap from 0.366 to 0.75. From here a lever counts at any cost; below, only a cheap one does, since parts work
together for a reason."""

SHARE = 0.5
"""Share of κ, or of its rise since the embedding where that is more, that turning down one part must remove for it to
be the cause: of two equal parts, neither passes."""

CANDIDATES = 5
"""Parts that are tried, the most promising first."""

AT_LEAST = 5
"""Number of texts: κ needs two to find candidates, and three others to verify them with an interval."""

HOW_SPLIT = "of every two neighbours one, the first or the second in a fixed irregular order,"
"""Which texts find candidates, as the subject of a sentence."""

_FINDING = (0, 1, 1, 1, 0, 0, 1, 0)
"""Which one of two neighbours finds candidates, pair after pair and over again. Of 5 to 48 texts both halves have some
of every kind, where two, three or four kinds take turns or come in blocks; one of four kinds of 11 texts is an
exception. Of twelve texts of two or three kinds both halves have equally many of each."""


@typed_arguments
def levers(
    ckpt: Model,
    texts: Any,
    *,
    candidates: int = CANDIDATES,
    loss: Loss | None = None,
    budget: float = CHEAP,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    packed: bool = True,
    progress: bool | Progress = False,
) -> Levers:
    """Find the part of a network that causes consensus of its tokens, if there is one, and the cost of turning it down.

    A gate α = 1 multiplies the update of each part of each layer, y = x + α c(x) (`mathematics` 10). The derivatives of
    consensus κ and of the loss by all gates, on half of the texts, propose candidates: those that lower κ most when
    turned down. The derivatives do not predict larger changes, so each candidate is run at α = 0.5 and 0 on the other
    texts, and only these measurements are reported, with intervals over texts.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded; a network in memory.
        texts: At least five different prompts of one kind, as `tokendynamics.trace` takes them; those of one token are
            left out.
        candidates: Number of parts that are tried, the most promising first.
        loss: Function of the network, with its language head where there is one, that returns one number; lower is
            better. It is called with each gate in force. None for the cross-entropy of the next token, in nats.
        budget: Largest rise of the loss at which a part is named. It does not count where κ′ ≥ 0.55.
        sinks: Which tokens are excluded; see `tokendynamics.trace`. Detection by norm uses the network without gates.
        sink_ratio: Likewise.
        truncate: Whether a prompt longer than the context is cut.
        packed: Whether prompts may share a forward pass: faster, the same to rounding.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Levers. The cross-entropy is NaN where the network is not known to be causal, or has no language head; a loss
        that was passed has neither derivatives nor intervals.

    Raises:
        ArgumentTypeError, ArgumentValueError: Too few texts, equal ones, or some that this network does not read; a
            loss that is not one finite number.
        CheckpointError: The parts of a layer are not found, or the network is streamed.

    >>> from tokendynamics.pretrained import load
    >>> texts = ["one fish", "two red birds", "it rains again", "who goes there", "a long way home"]
    >>> trials = levers(load("random:gpt2-tiny:2"), texts, candidates=1)
    >>> trials.where, trials.table.consensus_sensitivity.shape, round(trials.kappa, 1)
    (6, (6, 2), 0.1)
    """
    ckpt = checkpoint_for(ckpt, texts)
    prompts, halves, find, measure = halves_of(
        ckpt, texts, candidates, sink_ratio, truncate=truncate, packed=packed, progress=progress
    )
    costs = Costs(ckpt, loss, budget)
    with reporting(progress) as report, ckpt.gated() as gated:
        first = sensitivities(gated, find, sink_ratio, report, sinks=sinks)
        trials = Trials(gated, measure, first.where, sink_ratio, sinks)
        tried = try_parts(ckpt, first, trials, halves, costs, report, candidates)
    counting = {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}
    return with_effect(tried, ckpt, prompts, halves, counting)


def try_parts(
    ckpt: Checkpoint,
    first: Sensitivities,
    trials: Trials,
    halves: Halves,
    costs: Costs,
    report: Progress,
    candidates: int = CANDIDATES,
) -> Levers:
    """Measure the parts that lower κ most to first order, and answer; `with_effect` adds the effect on all measures.

    Args:
        ckpt: The network.
        first: What the gates on its parts do to first order.
        trials: Of the same gates, on other prompts.
        halves: Which prompts are which.
        costs: Of changes.
        report: Told how far the work is.
        candidates: Number of parts that are tried.
    """
    chosen = [(*part, alpha) for part in first.parts_to_try(len(PARTS), candidates) for alpha in ALPHAS]
    tried = trials.of_each(chosen, report, "trying candidates")
    tried = costs.charged(tried, lambda trial: f"layer {trial.layer} {PARTS[trial.part]}")
    first = replace(first, loss=np.full_like(first.loss, np.nan)) if costs.given else first
    kappa, relative = trials.kappa, trials.relative_kappa
    answer, best = _answer(kappa, relative, tried, costs, first.rising_layer)
    layers = contributing_layers(first.consensus, first.where)
    answer = qualified(answer, best, layers, first.where)
    normed = any(layer.norms for layer in ckpt.layout.layers)
    words = LeverWords(first.where, kappa, relative, tried, halves, normed, layers, costs)
    table, conventions = _as_dataset(ckpt, first, tried, halves, costs), _conventions(first, halves, costs)
    named = answer != NOTHING or relative.value >= LITTLE
    index = tried.index(best) if best is not None and named else None
    text, advice = words.of(answer, best), words.advice(answer, best)
    return Levers(table, kappa.value, first.where, answer, text, conventions, index, advice=advice)


def with_effect(
    tried: Levers, ckpt: Checkpoint, prompts: Mapping[str, Any], halves: Halves, counting: dict[str, Any]
) -> Levers:
    """Add the effect of the gate that the answer names on every measure; its gates must no longer be in the network."""
    if not tried.changes:
        return tried
    measuring = NamedPrompts({name: prompts[name] for name in halves.measuring})
    return replace(tried, effect=what_if(ckpt, measuring, tried.changes, **counting))


def halves_of(
    ckpt: Checkpoint,
    texts: Any,
    candidates: int,
    sink_ratio: float,
    *,
    truncate: bool,
    packed: bool,
    progress: bool | Progress = False,
) -> tuple[Mapping[str, Any], Halves, list[Pack], list[Pack]]:
    """Check the arguments, and split the prompts: those of one half find candidates, the others measure them.

    Args:
        ckpt: The network.
        texts: Its prompts, as they were passed.
        candidates: Number of changes that are tried.
        sink_ratio: From which norm a token is a sink.
        truncate: Whether a prompt longer than the context is cut.
        packed: Whether prompts may share a forward pass.
        progress: True for a progress bar, or a function; while many texts are tokenized.

    Returns:
        The prompts by name, which of them are in which half, and the forward passes of both halves.
    """
    as_count(candidates, "candidates")
    if not 1 < sink_ratio < float("inf"):
        raise ArgumentValueError("sink_ratio", "a number above 1", sink_ratio)
    with reporting(progress) as report:
        prompts = named_prompts(texts, ckpt, report)
        given = _different_prompts(ckpt, prompts, truncate, report)
    check_no_padding(ckpt, [prompt.inputs for prompt in given.values()])
    finding, measuring = ([list(given)[place] for place in half] for half in split_in_halves(len(given)))
    halves = Halves(finding, measuring, noun_of(prompts), [name for name in prompts if name not in given])
    find, measure = (
        ckpt.packs([given[name].inputs for name in names], packed=packed) for names in (finding, measuring)
    )
    return prompts, halves, find, measure


def split_in_halves(count: int) -> tuple[list[int], list[int]]:
    """Return the places of the texts that find candidates, and of those that measure them; the count alone decides.

    Of two neighbours each half has one, so that kinds of texts in blocks are in both halves. Which one it is changes
    from pair to pair, so that kinds that take turns, as two languages may, are in both halves as well.

    Args:
        count: Number of texts; of an odd number the last one measures.

    >>> split_in_halves(5), split_in_halves(7)
    (([0, 3], [1, 2, 4]), ([0, 3, 5], [1, 2, 4, 6]))
    """
    finding = [2 * pair + _FINDING[pair % len(_FINDING)] for pair in range(count // 2)]
    return finding, sorted(set(range(count)) - set(finding))


def _different_prompts(
    ckpt: Checkpoint, prompts: Mapping[str, Any], truncate: bool, report: Progress
) -> dict[str, Prepared]:
    """Return prompts of two tokens or more as arguments of a forward pass; refuse too few, and equal ones."""
    noun, wanted = noun_of(prompts), "(half of them propose candidates, the others verify them)"
    if len(prompts) < AT_LEAST:
        raise ArgumentValueError("texts", f"at least {AT_LEAST} {noun}s {wanted}", len(prompts))
    named = tracked_if_many(prompts.items(), report, "reading the prompts")
    all_given = {name: prepared(ckpt, item, truncate=truncate, argument=name) for name, item in named}
    # One token shares nothing with others of its prompt, and predicts none.
    given = {name: prompt for name, prompt in all_given.items() if prompt.tokens is None or len(prompt.tokens) >= 2}
    if len(given) < AT_LEAST:
        came = f"{len(given)} besides {plural(len(all_given) - len(given), noun)} of one token"
        raise ArgumentValueError("texts", f"at least {AT_LEAST} {noun}s of two tokens or more {wanted}", came)
    first_of: dict[tuple[object, ...], str] = {}
    for name, prompt in given.items():
        if (other := first_of.setdefault(prompt.content, name)) != name:
            wanted = f"{indefinite(noun)} different from {other}"
            advice = f"candidates must be verified on {noun}s that did not propose them"
            raise ArgumentValueError(name, wanted, "the same one", advice)
    return given


def _answer(
    kappa: EffectEstimate, relative: EffectEstimate, tried: Sequence[Trial], costs: Costs, rising: int | None = None
) -> tuple[Answer, Trial | None]:
    """Return the answer and its trial: the part that is the cause, or else the most effective affordable one.

    Of several parts without which κ falls by most of it, the cause is one of the layer in which it rises. Where no
    change is needed, a significant effect comes before a larger one that is not.
    """
    much = relative.value >= MUCH
    fair = [trial for trial in tried if trial.defined and costs.allow(trial.loss_change.value, much)]
    best = min(fair, key=lambda trial: trial.kappa_change.value, default=None)
    # Where κ is below 0 at the embedding, as in very short texts, its rise is more than κ.
    whole = max(kappa.value, relative.value * (1 - kappa.value) / (1 - relative.value) if relative.value < 1 else 0.0)
    helping = [trial for trial in fair if trial.lowers and -trial.kappa_change.value >= SHARE * whole]
    if relative.value >= LITTLE and helping:
        return "one part does it", min(helping, key=lambda trial: (trial.layer != rising, trial.kappa_change.value))
    if much:
        return "all layers do it and no single part helps", best
    lowering = [trial for trial in fair if trial.lowers]
    return NOTHING, min(lowering, key=lambda trial: trial.kappa_change.value, default=best)


def _as_dataset(
    ckpt: Checkpoint, first: Sensitivities, tried: Sequence[Trial], halves: Halves, costs: Costs
) -> xr.Dataset:
    kappa, kappa_interval = columns_of(trial.kappa_change for trial in tried)
    loss, loss_interval = columns_of(trial.loss_change for trial in tried)
    layers = len(first.kappa)
    variables: dict[str, Any] = {
        "consensus_sensitivity": (("layer", "component"), first.kappa),
        "loss_sensitivity": (("layer", "component"), first.loss),
        "consensus": ("depth", first.consensus),
        "candidate_layer": ("candidate", np.array([trial.layer for trial in tried], dtype=np.int64)),
        "candidate_part": ("candidate", np.array([PARTS[trial.part] for trial in tried], dtype=np.str_)),
        "alpha": ("candidate", np.array([trial.alpha for trial in tried], dtype=np.float64)),
        "kappa_change": ("candidate", kappa),
        "kappa_interval": (("candidate", "bound"), kappa_interval),
        "loss_change": ("candidate", loss),
        "loss_interval": (("candidate", "bound"), loss_interval),
        "found_on": ("finding", np.array(halves.finding, dtype=np.str_)),
        "measured_on": ("measuring", np.array(halves.measuring, dtype=np.str_)),
        "verified": ("candidate", np.array([trial.lowers for trial in tried], dtype=np.bool_)),
    }
    coords = {
        "layer": np.arange(1, layers + 1),
        "component": list(PARTS),
        "depth": np.arange(layers + 1),
        "bound": ["low", "high"],
    }
    attrs = {"model": ckpt.name, "where": first.where, "loss_unit": costs.unit.strip()}
    if np.isnan(first.loss).all() and not costs.given:
        attrs["no_loss"] = costs.why_unknown
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _conventions(first: Sensitivities, halves: Halves, costs: Costs) -> tuple[Convention, ...]:
    nouns = f"{halves.noun}s"
    last = first.where == len(first.consensus) - 1
    largest = f"where κ′ is largest on the {nouns} that propose candidates"
    why = "the last" if last else f"{largest}, because κ at the end is outside {LOWEST:g} … {HIGHEST:g} on them"
    return (
        Convention(
            "gate",
            "α multiplies the update of one part, before the norm in post-norm blocks",
            "behind that norm, or on single heads, other parts may stand out",
        ),
        Convention(
            "where κ is read",
            f"after layer {first.where}, {why}",
            "other layers are preceded by other parts and have other levers",
        ),
        Convention(
            nouns,
            f"{HOW_SPLIT} proposes candidates ({len(halves.finding)}), the others measure them "
            f"({len(halves.measuring)})"
            + (f"; {len(halves.left_out)} of one token left out" if halves.left_out else ""),
            f"κ depends on the {nouns}; candidates measured on the {nouns} that proposed them look too good",
        ),
        Convention(
            "tokens that count",
            "those of the network without gates",
            "if selected again for each gate, a changed selection would change κ although no token moved",
        ),
        Convention(
            "intervals",
            f"{percent(CONFIDENCE)} over {nouns}: Student's t of paired differences for the loss, jackknife-t for κ; "
            "each by itself",
            "corrected for the number of candidates they would be wider",
        ),
        Convention(
            "all measures",
            "of the network without gates and with the gate that the answer names, by what_if: tokens excluded in "
            "either are excluded in both; 90 % intervals",
            "where the gate changes which tokens count, κ here differs slightly from that of the trials",
        ),
        Convention(
            "verdict",
            f"one part does it: κ′ ≥ {LITTLE:g}, κ falls by at least {percent(SHARE)}, and for κ′ < {MUCH:g} the loss "
            f"rises by at most {costs.budget:g}{costs.unit}",
            "other thresholds change the answers, not the numbers",
        ),
        Convention(
            "layers that contribute",
            f"those up to layer {first.where} in which log(1 − κ) falls by at least {EVEN_SHARE:g} of the mean fall, "
            f"on the {nouns} that propose candidates",
            "a smaller share would include layers that hardly change κ",
        ),
    )
