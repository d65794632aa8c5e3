"""Diagnose one checkpoint: audit, trace, verdict, levers, and every choice that the numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import xarray as xr

from tokendynamics.diagnosis.auditing._audit import Singular, ValueMap, audit
from tokendynamics.diagnosis.deepening._deeper import VARIANTS, checked_deeper
from tokendynamics.diagnosis.deepening._deeper import deeper as find_deeper
from tokendynamics.diagnosis.deepening.result import Deeper
from tokendynamics.diagnosis.gating._heads import head_effects, heads_findings, levers_and_heads, strongest_heads
from tokendynamics.diagnosis.gating._joint import joint_levers
from tokendynamics.diagnosis.gating._levers import levers as find_levers
from tokendynamics.diagnosis.gating._remedies import advised_in_view_of
from tokendynamics.diagnosis.gating._remedies import remedies as find_remedies
from tokendynamics.diagnosis.gating._result import CHEAP, Levers, advice_finding, in_view_of
from tokendynamics.diagnosis.gating.trials import Costs, Loss
from tokendynamics.diagnosis.network import describe, parts_there
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.tracing._directions import directions_of_traces
from tokendynamics.diagnosis.tracing._one_prompt import token_paths
from tokendynamics.diagnosis.tracing._source_tokens import directions_and_sources
from tokendynamics.diagnosis.tracing.direction_words import directions_findings, source_in_short
from tokendynamics.diagnosis.tracing.layer_states import (
    ANISOTROPIC,
    CONSENSUS,
    LINE_EXCESS,
    ONE_POINT,
    SPREAD,
    layer_states,
    worst_layers,
)
from tokendynamics.diagnosis.tracing.measure import traced
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO, PromptTrace
from tokendynamics.diagnosis.tracing.prompts import (
    checkpoint_for,
    named_prompts,
    noun_in,
    tokens_in_words,
    with_options,
)
from tokendynamics.diagnosis.verdict import judge
from tokendynamics.diagnosis.yardstick import (
    Baseline,
    measured_networks,
    unmeasured_finding,
    untrained_measures,
    yardstick_finding,
)
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.numerics.errors import why
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.architecture import as_layers
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.results import Refused
from tokendynamics.results.result import reason_of
from tokendynamics.words import Convention, power_of_ten

_OTHERWISE = {
    "Value map": "W_V alone depends on the parameterisation of the network; Σ_h W_V W_O and W do not",
    "Norm folding": "unfolded, sizes and spectra depend on the parameterisation of a network with such a norm",
    "Singular value maps": "a pseudo-inverse gives A signs to which no statement of the theory applies",
    "Scaling": "eigenvalues would be √d_head times as large",
    "Near zero": "an absolute threshold counts more eigenvalues in a network with small weights; see also cond(V)",
    "Balance": "the two balances of ov differ where ov is far from symmetric",
    "Sinks": "with them, the raw effective rank is about 1 and E compares every token with the sink",
    "Consensus E": "without |·| an antipodal pair would not count as agreed",
    "Effective rank": "from the unsquared singular values (Roy and Vetterli) it is larger",
    "Contributions of parts": "with sinks, their few pairs would blur the sums",
    "States": "built collapsing and healthy networks leave gaps at these numbers, within which every threshold gives "
    "the same states",
    "Intervals": "drawing {noun}s with replacement pairs one with itself and gives intervals that are too narrow",
    "Precision": f"half precision adds noise of about {power_of_ten(-3)} to each cosine",
    "Layers and parts": "a number for a part that does not exist or did not run would belong to another part",
    "Files": "read otherwise, the same files would give another network",
    "Tokenization": "other tokens give other particles",
}

_VALUE_MAP = {"V": "V is W_V, each group's repeated for the heads that share it", "VO": "V is Σ_h W_V W_O"}

_SINGULAR = {
    "undefined": "A is reported as undefined where V is singular",
    "pinv": "A uses the pseudo-inverse where V is singular",
}


def conventions_of(audit: xr.Dataset | None, trace: xr.Dataset) -> tuple[Convention, ...]:
    """Return the conventions recorded in two datasets.

    Args:
        audit: From `tokendynamics.audit`; None where it was refused.
        trace: From `tokendynamics.trace`.
    """
    choices = {
        **({} if audit is None else _choices_of_the_audit(audit.attrs)),
        "Sinks": trace.attrs["sinks"],
        "Consensus E": trace.attrs["consensus"],
        "Effective rank": trace.attrs["effective_rank"],
        "Sites": trace.attrs["sites"],
        **({"Layers and parts": trace.attrs["notes"]} if "notes" in trace.attrs else {}),
        "Contributions of parts": trace.attrs["component_change"],
        "States": f"one point where 1 − common share is below {ONE_POINT:g}; else consensus from κ′ {CONSENSUS:g}; "
        f"else rank collapse from a line excess of {LINE_EXCESS:g}; else drawing together from κ′ {SPREAD:g}; "
        f"else anisotropic from a common share of {ANISOTROPIC:g}; else spread",
        "Intervals": trace.attrs["intervals"],
        "Precision": trace.attrs["precision"],
        **({"Files": trace.attrs["files"]} if "files" in trace.attrs else {}),
        "Tokenization": tokens_in_words(trace.attrs),
    }
    # Say what other sites would change; with one attention per layer and no final norm there is only one state.
    parts = parts_there(trace)["feed_forward"].any()
    last = "final norm" in trace.attrs["sites"]
    hidden = "one state per layer would hide which part changed it" if parts else ""
    mixed = "reading the last state after the final norm would include the effect of the norm" if last else ""
    otherwise = {name: text.format(noun=noun_in(trace)) for name, text in _OTHERWISE.items()}
    otherwise["Sites"] = ", and ".join(filter(None, (hidden, mixed)))
    return tuple(Convention(name, choice, otherwise[name]) for name, choice in choices.items() if otherwise[name])


def _choices_of_the_audit(attrs: dict[Any, Any]) -> dict[str, str]:
    return {
        "Value map": _VALUE_MAP[attrs["value_map"]],
        "Norm folding": f"the gain of the norm before attention is {attrs['fold_norms']}",
        "Singular value maps": _SINGULAR[attrs["singular"]],
        "Scaling": attrs["scaling"],
        "Near zero": attrs["near_zero_threshold"],
        "Balance": attrs["balance"],
    }


@typed_arguments
def diagnose(
    model: Model, texts: Any = None, *,
    chat: bool = False, window: int | None = None, special_tokens: bool = True, layers: Sequence[int] | None = None,
    value: ValueMap = "VO", fold_norms: bool | None = None, singular: Singular = "undefined",
    sinks: str | Sequence[int] = "detect", sink_ratio: float = SINK_RATIO, truncate: bool = False,
    dtype: str = "float32", device: str = "cpu", threads: int | None = None, allow_pickle: bool = False,
    levers: bool = True, heads: bool = True, directions: bool = True, remedies: bool = False, joint: bool = False,
    loss: Loss | None = None, budget: float = CHEAP, baseline: Baseline | None = "auto",
    passes: int | None = None, weights: str = "fixed", variants: Sequence[str] = VARIANTS,
    command: str | None = None, progress: bool | Progress = False,
) -> Diagnosis:  # fmt: skip
    """Audit the weights, trace real tokens, and return both with a verdict: what happens, why, and what to do.

    Args:
        model: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: Prompts, see `tokendynamics.trace`; None for the fourteen default texts of several kinds and languages.
        chat: Whether prompts are conversations; see `tokendynamics.Texts`, also for the next two.
        window: Most tokens of a prompt: longer texts are cut into windows that overlap by half.
        special_tokens: Whether the tokenizer adds its special tokens.
        value: The value map; see `tokendynamics.audit`, also for the next two.
        fold_norms: Whether the gain of the norm before attention is folded in; None folds where there is such a norm.
        singular: The treatment of A where V is singular.
        layers: Layers to audit, counted from 1; the trace covers all layers.
        sinks: Which tokens "removed" excludes; see `tokendynamics.trace`.
        sink_ratio: See `tokendynamics.trace`.
        truncate: Whether prompts longer than the context are truncated; otherwise they are refused.
        dtype: Of the forward pass, see `tokendynamics.load`; ignored for a checkpoint already loaded.
        device: Likewise.
        threads: PyTorch threads for this call, None to leave them.
        allow_pickle: See `tokendynamics.load`.
        levers: Whether parts are turned down as well, about 15 passes per text; see `tokendynamics.levers`.
        heads: Whether heads are removed as well, about 9 passes per text; see `tokendynamics.head_effects`.
        directions: Whether shared directions and their sources are measured as well; see `tokendynamics.source_tokens`.
        remedies: Whether remedies are tried as well, about 8 passes per text; see `tokendynamics.remedies`.
        joint: Whether sets of parts and heads are, about 40 passes per text; see `tokendynamics.joint_levers`.
        loss: Function of the network that says what all these cost; None for the cross-entropy. See `levers`.
        budget: Largest rise of the loss at which any of these is recommended; likewise.
        baseline: "untrained" also traces the same architecture with initial weights; "auto" only where that can be.
        passes: Number of passes of the blocks on their own output, for each variant; None for none.
        weights: The weights of these passes; see `tokendynamics.deeper`.
        variants: Their variants; likewise.
        command: Recorded as what made this result; None for the Python call.
        progress: True for a progress bar, or a function; see `progress`.

    Raises:
        CheckpointError: It cannot be found, read or trusted; or "untrained" of what has no configuration.
        ArgumentTypeError, ArgumentValueError, MemoryLimitError: A wrong argument or table, or not enough memory.

    >>> assert diagnose("random:gpt2-tiny", "one text", layers=[1]).verdict.state == "undetermined"
    """
    started, tokens = datetime.now(UTC), {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}
    texts = with_options(default_texts() if texts is None else texts, chat, window, special_tokens)
    checked_deeper(1 if passes is None else passes, variants, weights, 1, "passes")
    further = None if passes is None else {"passes": passes, "weights": weights, "variants": variants}
    requested = {"levers": levers, "heads": heads, "directions": directions, "remedies": remedies, "joint": joint}
    chosen = (further, requested, baseline, {"loss": loss, "budget": budget})
    with limited_threads(threads) as in_force, reporting(progress) as report:
        ckpt = checkpoint_for(model, texts, "model", report, dtype=dtype, device=device, allow_pickle=allow_pickle)
        parts = _parts(ckpt, texts, tokens, (value, fold_norms, singular, layers), chosen, report)
    return _judged(ckpt, parts, truncate, further, command, started, in_force)


def _judged(
    ckpt: Checkpoint,
    parts: dict[str, Any],
    truncate: bool,
    further: dict[str, Any] | None,
    command: str | None,
    started: datetime,
    threads: int,
) -> Diagnosis:
    """Return the measurements with verdict, conventions and manifest."""
    parameters = _parameters(ckpt, parts) | {"truncate": truncate}
    if isinstance(parts["baseline"], xr.Dataset):
        parameters["baseline_seed"] = parts["baseline"].attrs["random_seed"]
    if further is not None:
        parameters |= further | {"variants": list(further["variants"])}
    made_by = command or f"td.diagnose({ckpt.name!r}, …)"
    record = manifest(made_by, parameters, seed=ckpt.random_seed, started=started, threads=threads)
    weights = None if isinstance(parts["audit"], Refused) else parts["audit"]
    unmeasured = unmeasured_finding(parts["baseline"])
    of_heads = heads_findings(parts["heads"], parts["levers"], weights, noun_in(parts["trace"]))
    of_directions = directions_findings(parts["directions"], parts["sources"])
    of_strongest = strongest_heads(parts["heads"], worst_layers(parts["trace"], layer_states(parts["trace"])))
    verdict = judge(
        weights,
        parts["trace"],
        reason_of(parts["audit"]),
        usual=yardstick_finding(parts["trace"], parts["baseline"], ckpt, measured_networks()),
        causes=" ".join(filter(None, (of_strongest, source_in_short(parts["sources"])))),
        further=(*(() if unmeasured is None else (unmeasured,)), *of_heads, *of_directions),
    )
    if isinstance(parts["levers"], Levers):
        parts["levers"] = in_view_of(parts["levers"], verdict, sets=isinstance(parts["joint"], xr.Dataset))
    for name in ("remedies", "joint"):
        if isinstance(parts[name], xr.Dataset):
            parts[name] = advised_in_view_of(parts[name], verdict)
    verdict = verdict.advised(advice_finding(parts["levers"], verdict, noun_in(parts["trace"])))
    conventions = conventions_of(weights, parts["trace"])
    return Diagnosis(describe(ckpt), verdict=verdict, conventions=conventions, manifest=record, **parts)


def _parts(
    ckpt: Checkpoint,
    texts: Any,
    counting: dict[str, Any],
    auditing: tuple[ValueMap, bool | None, Singular, Sequence[int] | None],
    chosen: tuple[dict[str, Any] | None, dict[str, bool], Baseline | None, dict[str, Any]],
    report: Progress,
) -> dict[str, Any]:
    """Return all measurements by the fields of a `Diagnosis`; wrong arguments are refused before any work."""
    (*how, layers), (further, requested, baseline, charging) = auditing, chosen
    layers = as_layers(layers, ckpt.architecture.layers, default=ckpt.layout.attending)
    prompts = named_prompts(texts, ckpt, report)
    if further is not None:
        checked_deeper(further["passes"], further["variants"], further["weights"], len(prompts), "passes")
    if not ckpt.streamed:
        Costs(ckpt, **charging)  # what is no loss is refused, not reported
    measured_networks()  # a damaged table is refused before the work
    with ckpt.packing_kept():
        # The trace comes first: it runs all weights and refuses damaged ones of any layout.
        directions = requested.pop("directions")
        table, given, rows = traced(ckpt, prompts, report, (*counting.values(),), calls=directions)
        shared = _shared(ckpt, prompts, given, rows, directions, report)
        del rows  # all states
        return {
            "trace": table,
            **shared,
            "audit": _audited(ckpt, how, layers, report),
            "paths": token_paths(ckpt, next(iter(prompts.values())), **counting),
            **_gated(ckpt, prompts, counting, requested, charging, report),
            "baseline": untrained_measures(ckpt, prompts, table, baseline, counting, report),
            "deeper": None if further is None else _deeper(ckpt, prompts, further, counting, report),
        }


def _audited(ckpt: Checkpoint, how: list[Any], layers: list[int], report: Progress) -> xr.Dataset | Refused:
    """Return the audit; only unknown attention factors are a reason to refuse it."""
    try:
        return audit(ckpt, *how, layers=layers, progress=report)
    except AttentionFactorsError as error:
        return Refused(error.reason)


def _shared(
    ckpt: Checkpoint,
    prompts: Mapping[str, Any],
    given: Sequence[Prepared],
    rows: Sequence[PromptTrace],
    wanted: bool,
    report: Progress,
) -> dict[str, xr.Dataset | Refused]:
    """Return shared directions and source tokens; refused for fewer than two different prompts."""
    refused = Refused("it was not requested")
    if wanted:
        try:
            shared = directions_of_traces(prompts, given, rows)
            return dict(zip(("directions", "sources"), directions_and_sources(ckpt, shared, report), strict=True))
        except ArgumentValueError as error:
            refused = Refused(why(error, "texts", ckpt.name))
    return {"directions": refused, "sources": refused}


_STREAMED = Refused(
    "the network is streamed from disk, and all of it must be in memory; load it where it fits, or with device_map"
)


def _gated(
    ckpt: Checkpoint,
    texts: Any,
    counting: dict[str, Any],
    requested: dict[str, bool],
    charging: dict[str, Any],
    report: Progress,
) -> dict[str, Any]:
    """Return what changes of the network do; refused for too few or unsuitable prompts, and for a streamed network."""
    measured: dict[str, Any] = dict.fromkeys(requested, Refused("it was not requested"))
    if ckpt.streamed:
        return measured | dict.fromkeys((name for name, wanted in requested.items() if wanted), _STREAMED)
    both = requested["levers"] and requested["heads"]
    try:
        if both:
            measured["levers"], measured["heads"] = levers_and_heads(ckpt, texts, **counting, **charging, report=report)
        elif requested["levers"]:
            measured["levers"] = find_levers(ckpt, texts, **counting, **charging, progress=report)
        elif requested["heads"]:
            measured["heads"] = head_effects(ckpt, texts, **counting, loss=charging["loss"], progress=report)
        if requested["remedies"]:
            measured["remedies"] = find_remedies(ckpt, texts, **counting, **charging, progress=report)
        if requested["joint"]:
            measured["joint"] = joint_levers(ckpt, texts, **counting, **charging, progress=report).table
    except (ArgumentValueError, CheckpointError) as error:
        refused = Refused(why(error, "texts", ckpt.name))
        missing = {name for name, wanted in requested.items() if wanted and isinstance(measured[name], Refused)}
        measured |= dict.fromkeys(missing, refused)
    return measured


def _deeper(
    ckpt: Checkpoint, texts: Any, further: dict[str, Any], counting: dict[str, Any], report: Progress
) -> Deeper | Refused:
    """Return variants made deeper; a network may not run on its own output, and choices may not fit these prompts."""
    chosen = {"n" if name == "passes" else name: value for name, value in further.items()}
    try:
        return find_deeper(ckpt, texts, **chosen, truncate=counting["truncate"], progress=report)
    except (ArgumentValueError, CheckpointError) as error:
        return Refused(why(error, "passes", ckpt.name))


def _parameters(ckpt: Checkpoint, parts: dict[str, Any]) -> dict[str, Any]:
    weights, trace = parts["audit"], parts["trace"]
    audited = {} if isinstance(weights, Refused) else {"layers": weights.layer.values.tolist()}
    choices = {} if isinstance(weights, Refused) else weights.attrs
    return {
        "model": ckpt.name,
        "prompts": trace.prompt.values.tolist(),
        **audited,
        "dtype": str(ckpt.dtype).removeprefix("torch."),
        "device": str(ckpt.device),
        **{name: choices[name] for name in ("value_map", "fold_norms", "singular") if name in choices},
        "sinks": trace.attrs["sinks"],
        **{name: trace.attrs[name] for name in ("special_tokens", "window") if name in trace.attrs},
    }
