"""Compare several networks: differences of their tokens, the first difference, and the part that causes it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64
from torch import nn

from tokendynamics.diagnosis.comparing._first_difference import (
    JUMP,
    NEIGHBOURS,
    ROUNDINGS,
    TIMES_NEIGHBOURS,
    Parting,
    behind_attention_alone,
    by_weights,
    parting_of,
    weights_standing_out,
    with_heads,
    with_norms_alone,
    with_rewritten,
    without_layers,
)
from tokendynamics.diagnosis.comparing._outliers import FALSE_ALARMS, TIMES_OTHERS
from tokendynamics.diagnosis.comparing._tensors import (
    NOT_SHOWN,
    MissingLayers,
    TensorDifferences,
    missing_layers,
    tensor_differences,
    tensors_of_layer,
)
from tokendynamics.diagnosis.comparing._weight_words import (
    feed_forward_finding,
    not_compared,
    tensors_finding,
    weights_finding,
)
from tokendynamics.diagnosis.comparing._weights import (
    CIRCUITS,
    LEADING,
    WEIGHTS_DIFFER,
    FeedForwardDifferences,
    feed_forward_differences,
    weight_differences,
)
from tokendynamics.diagnosis.comparing.effects import (
    HalvedParts,
    HeadEffects,
    halved_convention,
    halved_finding,
    halved_parts,
    head_effects_of,
    heads_convention,
    heads_finding,
)
from tokendynamics.diagnosis.comparing.result import Comparison
from tokendynamics.diagnosis.comparing.words import (
    NEGLIGIBLE,
    chance_finding,
    end_finding,
    missing_finding,
    parting_finding,
    tokens_finding,
    updates_finding,
)
from tokendynamics.diagnosis.gating._what_if import paired_differences, side_by_side
from tokendynamics.diagnosis.network import describe, passes_differ
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.tracing._together import Together, run_together
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for, named_prompts, noun_in, with_options
from tokendynamics.diagnosis.verdict import Verdict, judge
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import check_open
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.loading import Model, untrained_twin
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.words import Convention, Finding, factor, number, power_of_ten


@dataclass(frozen=True)
class Measured:
    """Measurements on several networks.

    Attributes:
        together: The traces of their tokens.
        products: Differences of their attention weights, and reasons where there are none; None if not requested.
        feed_forward: Likewise of their feed-forward weights.
        tensors: Likewise of the stored tensors of their blocks, for all but the first.
        missing: For all but the first, the layers that it or the first lacks; None where that is unknown.
        halved: The effect of halving each part on their losses; None if not requested.
        differences: From `paired_differences`.
        heads: First-order effects of heads where κ′ differs significantly; None if not requested.
        coarsest: For all but the first, the coarser of its dtype and the first's.
    """

    together: Together
    products: tuple[xr.Dataset, tuple[str, ...]] | None
    feed_forward: FeedForwardDifferences | None
    tensors: tuple[TensorDifferences, ...] | None
    missing: tuple[MissingLayers | None, ...]
    halved: HalvedParts | None
    differences: xr.Dataset
    heads: HeadEffects | None
    coarsest: tuple[torch.dtype, ...]

    @property
    def weights(self) -> xr.Dataset | None:
        """The differences of the weights, in one dataset."""
        if self.products is None or self.feed_forward is None:
            return None
        return xr.merge([self.products[0], self.feed_forward.table])


@typed_arguments
def compare(
    *models: Model,
    texts: Any = None, chat: bool = False, window: int | None = None, special_tokens: bool = True,
    names: Sequence[str] | None = None,
    baseline: Literal["untrained"] | None = None, seed: int = 0,
    weights: bool = True, halved: bool = False, heads: bool = True,
    sinks: str | Sequence[int] = "detect", sink_ratio: float = SINK_RATIO, truncate: bool = False,
    dtypes: Sequence[str] = ("float32",), device: str = "cpu",
    threads: int | None = None, allow_pickle: bool = False,
    command: str | None = None,
    progress: bool | Progress = False,
) -> Comparison:  # fmt: skip
    """Compare several models with the first on the same texts, and locate the first difference and its cause.

    Args:
        models: Anything `tokendynamics.load` takes, or checkpoints; at least two, counting the baseline and `dtypes`.
        texts: Prompts, see `tokendynamics.trace`; None for the fourteen default texts.
        chat: Whether prompts are conversations; see `tokendynamics.Texts`, also for the next two.
        window: Most tokens of a prompt; models of different tokenizers need whole texts.
        special_tokens: Whether each tokenizer adds its special tokens.
        names: Names of the models, in order; None for their own.
        baseline: "untrained" adds a model with the architecture of the first and initial weights.
        seed: Random seed of these weights.
        weights: Whether the weights are compared as well.
        halved: Whether each part is also halved and the loss compared; one more pass per part and model.
        heads: Whether to name the heads that bring a model closer to collapse; two more passes where κ′ differs.
        sinks: Which tokens are excluded; see `tokendynamics.trace`, also for `sink_ratio` and `truncate`.
        sink_ratio: Likewise.
        truncate: Likewise.
        dtypes: Of the forward passes: one for all, one for each model, or several for one; ignored for checkpoints.
        device: See `tokendynamics.load`, as for `allow_pickle`; ignored for checkpoints already loaded.
        threads: PyTorch threads for this call, None to leave them.
        allow_pickle: Likewise.
        command: Recorded as what made this result; None for the Python call.
        progress: True for a progress bar, or a function; see `progress`.

    Raises:
        CheckpointError: A model cannot be found, read or trusted; a baseline of a network without a configuration.
        ArgumentTypeError, ArgumentValueError: Fewer than two models, names or dtypes that do not fit; see also `trace`.
        MemoryLimitError: The states of all texts in all models do not fit.

    >>> models, texts = ("random:gpt2-tiny", "random:gpt2-tiny:1"), [[5, 9], [12, 3, 4], [1, 2]]
    >>> comparison = compare(*models, texts=texts, weights=False)
    >>> str(comparison.first_difference), comparison.models
    ('the embedding', ('random:gpt2-tiny:0', 'random:gpt2-tiny:1'))
    """
    started = datetime.now(UTC)
    _check_count(models, baseline, dtypes)
    with limited_threads(threads) as in_force, reporting(progress) as report, ExitStack() as kept:
        ckpts = _loaded(models, dtypes, texts, report, seed if baseline else None, device, allow_pickle)
        for ckpt in ckpts:
            kept.enter_context(ckpt.packing_kept())
        texts = with_options(default_texts() if texts is None else texts, chat, window, special_tokens)
        called, prompts = _names(ckpts, names), [named_prompts(texts, ckpt, report) for ckpt in ckpts]
        together = run_together(ckpts, prompts, sinks, sink_ratio, truncate, report)
        measured = _measured(ckpts, together, called, (weights, halved, (sink_ratio, sinks) if heads else None), report)
    parameters, drawn = _parameters(ckpts, together, truncate, baseline), seed if baseline else ckpts[0].random_seed
    command = command or f"td.compare({', '.join(repr(ckpt.name) for ckpt in ckpts)}, …)"
    record = manifest(command, parameters, seed=drawn, started=started, threads=in_force)
    return _comparison(ckpts, called, measured, record)


def _measured(
    ckpts: Sequence[Checkpoint],
    together: Together,
    names: Sequence[str],
    options: tuple[bool, bool, tuple[float, str | Sequence[int]] | None],
    report: Progress,
) -> Measured:
    weights, halved, sinks = options
    differences = paired_differences(together.traces, together.estimates, names[1:])
    different = together.traces[0].repeats.values < 0
    heads = None
    if sinks is not None:
        given = [list(compress(inputs, different)) for inputs in together.given]
        significant = ~np.isnan(_significant_gaps(differences))
        heads = head_effects_of(ckpts, given, significant.tolist(), sinks, report)
    products = weight_differences(ckpts, report) if weights else None
    feed_forward = feed_forward_differences(ckpts, report) if weights else None
    tensors = tensor_differences(ckpts, report) if weights else None
    if products is not None and feed_forward is not None and tensors is not None:
        pairs = xr.merge([products[0], feed_forward.table])
        tensors = tuple(
            with_rewritten(of_other, pairs.isel(other=place), ckpts[0]) for place, of_other in enumerate(tensors)
        )
    return Measured(
        together,
        products,
        feed_forward,
        tensors,
        tuple(missing_layers(ckpts[0], ckpt) if weights else None for ckpt in ckpts[1:]),
        halved_parts(ckpts, together.given, together.tokens_shared, report, different) if halved else None,
        differences,
        heads,
        tuple(max(ckpts[0].dtype, ckpt.dtype, key=lambda dtype: torch.finfo(dtype).eps) for ckpt in ckpts[1:]),
    )


def _significant_gaps(differences: xr.Dataset) -> Float64[np.ndarray, " other"]:
    """Return the difference of κ′ after the last layer, NaN where it is not significant or negligible."""
    end = differences.sel(site="feed_forward").isel(layer=-1)
    low, high = (end.consensus_relative_interval.sel(bound=bound).values for bound in ("low", "high"))
    matters = np.fmax(np.abs(low), np.abs(high)) >= NEGLIGIBLE
    return np.where(matters & ((low > 0) | (high < 0)), end.consensus_relative.values, np.nan)


def _parameters(
    ckpts: Sequence[Checkpoint], together: Together, truncate: bool, baseline: str | None
) -> dict[str, Any]:
    trace = together.traces[0]
    return {
        "models": [ckpt.name for ckpt in ckpts],
        "prompts": trace.prompt.values.tolist(),
        "dtypes": [_dtype(ckpt) for ckpt in ckpts],
        "sinks": trace.attrs["sinks"],
        "truncate": truncate,
        **{name: trace.attrs[name] for name in ("special_tokens", "window") if name in trace.attrs},
        "baseline": baseline,
    }


def _check_count(models: Sequence[Model], baseline: str | None, dtypes: Sequence[str]) -> None:
    if baseline not in (None, "untrained"):
        raise ArgumentValueError("baseline", "None or 'untrained'", shown(baseline))
    count = len(dtypes) if len(models) == 1 else len(models)
    if not models or count + (baseline is not None) < 2:
        advice = "pass another model, baseline='untrained', or several dtypes"
        raise ArgumentValueError("models", "at least two to compare", len(models), advice)
    if len(models) > 1 and len(dtypes) not in (1, len(models)):
        raise ArgumentValueError("dtypes", f"one for all, or one for each of {len(models)} models", len(dtypes))
    if len(models) == 1 and len(dtypes) > 1 and isinstance(models[0], Checkpoint | nn.Module):
        came = f"a {type(models[0]).__name__}, which has its own"
        raise ArgumentTypeError("models", "a name or a path to load in several dtypes", came)


def _loaded(
    models: Sequence[Model],
    dtypes: Sequence[str],
    texts: Any,
    report: Progress,
    seed: int | None,
    device: str,
    allow_pickle: bool,
) -> list[Checkpoint]:
    """Return the networks, and with a seed an untrained twin of the first."""
    count = max(len(models), len(dtypes))
    several = list(models) * count if len(models) == 1 else list(models)
    formats = list(dtypes) * count if len(dtypes) == 1 else list(dtypes)
    ckpts: list[Checkpoint] = []
    for model, dtype in zip(several, formats, strict=True):
        check_open(model, "models")
        if isinstance(model, Checkpoint):
            ckpts.append(model)
            continue
        # A live network has no tokenizer; next to a stored one it is usually a changed copy of that.
        lent = next((ckpt.tokenizer for ckpt in ckpts if ckpt.tokenizer is not None), None)
        tokenizer = lent if isinstance(model, nn.Module) else None
        options: dict[str, Any] = {"dtype": dtype, "device": device, "allow_pickle": allow_pickle}
        ckpts.append(checkpoint_for(model, texts, "models", report, tokenizer=tokenizer, **options))
    return ckpts if seed is None else [*ckpts, untrained_twin(ckpts[0], seed)]


def _names(ckpts: Sequence[Checkpoint], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a distinct name for each model."""
    if names is not None:
        if len(names) != len(ckpts) or len(set(names)) < len(names):
            raise ArgumentValueError("names", f"{len(ckpts)} different names", shown(list(names)))
        return tuple(names)
    ckpt_names = [ckpt.name for ckpt in ckpts]
    if len({ckpt.dtype for ckpt in ckpts}) > 1:
        ckpt_names = [f"{name} ({_dtype(ckpt)})" for name, ckpt in zip(ckpt_names, ckpts, strict=True)]
    return tuple(
        name if ckpt_names.count(name) == 1 else f"{name} [{ckpt_names[: place + 1].count(name)}]"
        for place, name in enumerate(ckpt_names)
    )


def _dtype(ckpt: Checkpoint) -> str:
    return str(ckpt.dtype).removeprefix("torch.")


def _comparison(
    ckpts: Sequence[Checkpoint], names: tuple[str, ...], measured: Measured, record: dict[str, Any]
) -> Comparison:
    together = measured.together
    partings = tuple(_parting(ckpts[0], other, measured, place) for place, other in enumerate(ckpts[1:]))
    differences = measured.differences
    verdicts = tuple(judge(None, trace) for trace in together.traces)
    paired = {name: gaps for name, gaps in zip(names[1:], together.gaps, strict=True) if gaps is not None}
    gaps = xr.concat(list(paired.values()), dim="other", join="outer") if paired else None
    weights, halved = measured.weights, measured.halved
    if weights is not None:
        weights = weights.drop_vars([f"head_{circuit}_scale_error" for circuit in CIRCUITS])
    effects = None if measured.heads is None else measured.heads.table
    labels = {"model": list(names), "other": list(names[1:])}
    prompts = together.traces[0].prompt.values.tolist()
    named = zip(names[1:], measured.tensors or (), strict=False)
    tables = {name: compared.table.drop_vars(NOT_SHOWN) for name, compared in named if not compared.why}
    return Comparison(
        models=names,
        descriptions=tuple(describe(ckpt) for ckpt in ckpts),
        traces=tuple(together.traces),
        verdicts=verdicts,
        table=side_by_side(together.traces, names),
        difference=differences,
        gaps=None if gaps is None else gaps.assign_coords(other=list(paired)),
        partings=partings,
        weights=None if weights is None else weights.assign_coords(labels),
        tensors=xr.concat(list(tables.values()), dim="other", join="outer").assign_coords(other=list(tables))
        if tables
        else None,
        halved=None if halved is None else halved.table.assign_coords(labels | {"prompt": prompts}),
        heads=None if effects is None else effects.assign_coords(model=list(names)),
        sentences=sentences_of(names, measured, verdicts, partings),
        conventions=conventions_in(measured),
        manifest=record,
    )


def _parting(first: Checkpoint, other: Checkpoint, measured: Measured, place: int) -> Parting | None:
    """Return how one network parts from the first: by the states, by the weights where those do not show it."""
    gaps, weights = measured.together.gaps[place], measured.weights
    if gaps is None:
        return None
    eps = torch.finfo(measured.coarsest[place]).eps
    behind = set[int]() if measured.tensors is None else behind_attention_alone(measured.tensors[place], first)
    parting, missing = parting_of(gaps, eps, behind), measured.missing[place]
    if missing is not None:
        return without_layers(parting, gaps, eps, missing.layers)
    if weights is None or measured.tensors is None:
        return with_norms_alone(parting, first, other)
    pair = weights.isel(other=place)
    tensors = measured.tensors[place]
    parting = by_weights(parting, gaps, eps, weights_standing_out(tensors, pair, first))
    return with_heads(with_norms_alone(parting, first, other, tensors), pair)


def sentences_of(
    names: tuple[str, ...], measured: Measured, verdicts: Sequence[Verdict], partings: Sequence[Parting | None]
) -> tuple[Finding, ...]:
    """Return the sentences of a comparison, those on one network after those on another.

    Args:
        names: Of the networks.
        measured: On them.
        verdicts: Of each.
        partings: Of all but the first; see `parting_of`.
    """
    together = measured.together
    depths = [trace.sizes["layer"] - 1 for trace in together.traces]
    ends = [float(trace.consensus_relative.sel(site="feed_forward")[-1]) for trace in together.traces]
    trace = together.traces[0]
    counts = trace.token_count  # of excluded tokens over all prompts, in the layer where they are most
    left_out = int(np.max((counts.sel(sinks="kept") - counts.sel(sinks="removed")).sum("prompt").values))
    of_networks = zip(names, together.traces, strict=True)
    sentences = [chance_finding([name for name, of_network in of_networks if passes_differ(of_network)])]
    for place, other in enumerate(names[1:]):
        pair, dtype = (names[0], other), measured.coarsest[place]
        difference = measured.differences.isel(other=place)
        both = (verdicts[0], verdicts[place + 1])
        sentences.append(end_finding(pair, both, (ends[0], ends[place + 1]), difference, noun_in(trace)))
        if measured.heads is not None:
            gap = float(_significant_gaps(measured.differences)[place])
            sentences.append(heads_finding(pair, measured.heads, place, gap))
        in_words = str(dtype).removeprefix("torch.")
        parting, through = partings[place], []
        if parting is not None and parting.first is not None and parting.first.layer >= 1 and measured.tensors:
            through = tensors_of_layer(measured.tensors[place], parting.first.layer)
        weights = None if measured.products is None else measured.products[0].isel(other=place)
        if missing := measured.missing[place]:
            sentences.append(missing_finding(pair if depths[0] > depths[place + 1] else (other, names[0]), missing))
        else:
            depth = None if depths[0] == depths[place + 1] else min(depths[0], depths[place + 1])
            of_states = pair, parting, together.unpaired[place], in_words, through, weights
            equal = bool(measured.tensors and measured.tensors[place].blocks_equal)
            text = parting_finding(*of_states, left_out=left_out, depth=depth, blocks_equal=equal)
            sentences.append(text)
        # Behind a missing layer, layers of one relative depth are different ones.
        sentences.append(None if missing else updates_finding(pair, difference))
        if measured.halved is not None:
            sentences.append(halved_finding(pair, measured.halved, place, torch.finfo(dtype).eps, noun_in(trace)))
        sentences += _weights_findings(pair, measured, place)
    repeated = [str(name) for name, first in zip(trace.prompt.values, trace.repeats.values, strict=True) if first >= 0]
    shared = together.tokens_shared, left_out, depths, repeated
    sentences.append(tokens_finding(*shared, counts_shared=together.counts_shared, noun=noun_in(trace)))
    return tuple(finding for finding in sentences if finding is not None)


def _weights_findings(pair: tuple[str, str], measured: Measured, place: int) -> list[Finding]:
    if measured.products is None or measured.feed_forward is None or measured.tensors is None:
        text = f"The weights of {pair[1]} and {pair[0]} were not compared because this was not requested."
        return [Finding(text, "weights", {"why": "not requested"})]
    (products, unlike), parts = measured.products, measured.feed_forward
    if unlike[place] and unlike[place] == parts.reasons[place]:
        # Which layers are missing follows from the weights of all others: these were compared, and that has been said.
        return [] if measured.missing[place] else [not_compared("The weights", pair, unlike[place])]
    table = parts.table.isel(other=place)
    return [
        weights_finding(pair, products.isel(other=place), unlike[place]),
        feed_forward_finding(pair, table, parts.reasons[place], parts.unmatched[place]),
        tensors_finding(pair, measured.tensors[place]),
    ]


def conventions_in(measured: Measured) -> tuple[Convention, ...]:
    """Return every choice that the numbers of a comparison depend on.

    Args:
        measured: On the networks.
    """
    attrs = measured.together.traces[0].attrs
    chosen = [
        Convention("Sinks", attrs["sinks"], "each model would be measured on different tokens"),
        Convention(
            "First difference",
            f"the first part whose updates differ by more than {factor(ROUNDINGS)} rounding although all earlier parts "
            f"agree; or that on identical inputs differs by {factor(TIMES_NEIGHBOURS)} the median of the same part in "
            f"{NEIGHBOURS} layers on either side plus as many median deviations. If blocks of one model cannot run on "
            f"states of the other: by {factor(JUMP)} the difference of its input, relative to the median of others; "
            "if none does, the part whose weights differ unlike those of other layers",
            "relative to zero, layer 1 is the first difference of any two networks with the same embedding",
        ),
        Convention(
            "Intervals",
            f"{attrs['intervals']}; the same one is left out of both models",
            "unpaired intervals are wider",
        ),
        Convention(
            "Precision", attrs["precision"], f"half precision adds noise of about {power_of_ten(-3)} to each cosine"
        ),
    ]
    if measured.weights is not None:
        chosen += [
            Convention(
                "Weights",
                "QK and OV products of matched heads with the norm's gain folded in; relative Frobenius norm, "
                f"different from {number(WEIGHTS_DIFFER)}; angles between the {LEADING} leading directions",
                "the factors may differ although the network computes the same",
            ),
            Convention(
                "Feed-forward weights",
                "matrices of the same name and shape, with the gain of the preceding norm folded in and hidden units "
                f"in matching order; angles between the {LEADING} leading directions that they read or write; experts "
                "as stored",
                "experts in another order, or a factor moved from one matrix to the next, count as a difference",
            ),
            Convention(
                "Stored tensors",
                "all tensors of a block compared by name, with biases and norms, as stored; one stands out from "
                f"{factor(TIMES_OTHERS)} the median over the same tensor of the other layers plus as many deviations; "
                "or if its scale or its noise differs by more than noise of one size on all weights explains, in "
                f"{number(FALSE_ALARMS, 1)} of comparisons by chance",
                "stored tensors may differ although the network computes the same",
            ),
        ]
    if measured.halved is not None:
        chosen.append(Convention(*halved_convention(attrs["prompt_noun"])))
    if measured.heads is not None and measured.heads.table is not None:
        chosen.append(Convention(*heads_convention(attrs["prompt_noun"])))
    return tuple(chosen)
