"""Diagnose one checkpoint: audit, trace, verdict, levers, and every choice that the numbers depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import xarray as xr

from tokendynamics.diagnosis.auditing._audit import Singular, ValueMap, audit
from tokendynamics.diagnosis.deepening._deeper import VARIANTS, checked_deeper
from tokendynamics.diagnosis.deepening._deeper import deeper as find_deeper
from tokendynamics.diagnosis.deepening.result import Deeper
from tokendynamics.diagnosis.gating._levers import levers as find_levers
from tokendynamics.diagnosis.gating._result import Levers, in_view_of
from tokendynamics.diagnosis.network import describe, parts_there
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.tracing._one_prompt import token_paths
from tokendynamics.diagnosis.tracing.layer_states import ANISOTROPIC, CONSENSUS, LINE_EXCESS, SPREAD
from tokendynamics.diagnosis.tracing.measure import trace
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import named_prompts, tokens_in_words
from tokendynamics.diagnosis.verdict import judge
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.architecture import as_layers
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.words import Convention, power_of_ten

_OTHERWISE = {
    "Value map": "W_V alone depends on the parameterisation of the network; Σ_h W_V W_O and W do not",
    "Norm folding": "unfolded, sizes and spectra depend on the parameterisation of a network with such a norm",
    "Singular value maps": "a pseudo-inverse gives A signs to which no statement of the theory applies",
    "Scaling": "eigenvalues would be √d_head times larger",
    "Near zero": "an absolute threshold counts more eigenvalues in a network with small weights; see also cond(V)",
    "Balance": "the two balances of ov differ where ov is far from symmetric",
    "Sinks": "with them, the raw effective rank is about 1 and E compares every token with the sink",
    "Consensus E": "without |·| an antipodal pair would not count as agreed",
    "Effective rank": "from the unsquared singular values (Roy and Vetterli) it is larger",
    "Contributions of parts": "with sinks, their few pairs would blur the sums",
    "States": "built collapsing and healthy networks leave gaps at these numbers, within which every threshold gives "
    "the same states",
    "Intervals": "drawing prompts with replacement pairs a prompt with itself and gives intervals that are too narrow",
    "Precision": f"half precision adds noise of about {power_of_ten(-3)} to each cosine",
    "Layers and parts": "a number for a part that does not exist or did not run would belong to another part",
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
        "States": f"rank collapse from a line excess of {LINE_EXCESS:g}, else consensus from κ′ {CONSENSUS:g}, drawing "
        f"together from {SPREAD:g}, else anisotropic from a common share of {ANISOTROPIC:g}, else spread",
        "Intervals": trace.attrs["intervals"],
        "Precision": trace.attrs["precision"],
        "Tokenization": tokens_in_words(trace.attrs),
    }
    otherwise = _OTHERWISE | {"Sites": _otherwise_than_these_sites(trace)}
    return tuple(Convention(name, choice, otherwise[name]) for name, choice in choices.items() if otherwise[name])


def _otherwise_than_these_sites(trace: xr.Dataset) -> str:
    """Say what other sites would change; with one attention per layer and no final norm there is only one state."""
    parts = parts_there(trace)["feed_forward"].any()
    last = "final norm" in trace.attrs["sites"]
    hidden = "one state per layer would hide which part changed it" if parts else ""
    mixed = "reading the last state after the final norm would include the effect of the norm" if last else ""
    return ", and ".join(filter(None, (hidden, mixed)))


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
    model: Model,
    texts: Any = None,
    *,
    value: ValueMap = "VO",
    fold_norms: bool | None = None,
    singular: Singular = "undefined",
    layers: Sequence[int] | None = None,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    allow_pickle: bool = False,
    levers: bool = True,
    passes: int | None = None,
    weights: str = "fixed",
    variants: Sequence[str] = VARIANTS,
    command: str | None = None,
    progress: bool | Progress = False,
) -> Diagnosis:
    """Audit the weights, trace real tokens, and return both with a verdict: what happens, why, and what to do.

    Args:
        model: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: Prompts, see `tokendynamics.trace`; None for the fourteen default texts of several kinds and languages.
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
        passes: Number of passes of the blocks on their own output, for each variant; None for none.
        weights: The weights of these passes; see `tokendynamics.deeper`.
        variants: Their variants; likewise.
        command: Recorded as the command that reproduces this result; None for the Python call.
        progress: True for a progress bar, or a function; see `progress`.

    Raises:
        CheckpointError: It cannot be found, read or trusted; without known factors only the audit is omitted.
        ArgumentTypeError, ArgumentValueError: An argument of a wrong type or value.
        MemoryLimitError: A network or a prompt larger than the memory.

    >>> diagnose("random:distilgpt2", "a short text", layers=[1]).verdict.state  # a state needs several texts
    'undetermined'
    """
    started = datetime.now(UTC)
    counting: dict[str, Any] = {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}
    further = None if passes is None else _Further(passes, weights, variants)
    with limited_threads(threads) as in_force, reporting(progress) as report:
        ckpt = as_checkpoint(model, "model", dtype=dtype, device=device, allow_pickle=allow_pickle, progress=report)
        found = _found(ckpt, texts, counting, _Auditing(value, fold_norms, singular, layers), further, levers, report)
    return _whole(ckpt, found, _record(ckpt, found, truncate, further, command, started, in_force))


def _whole(ckpt: Checkpoint, found: dict[str, Any], record: dict[str, Any]) -> Diagnosis:
    """Return the measurements with verdict and conventions."""
    verdict = judge(found["audit"], found["trace"], found["audit_refused"])
    if found["levers"] is not None:
        found |= {"levers": in_view_of(found["levers"], verdict)}
    conventions = conventions_of(found["audit"], found["trace"])
    return Diagnosis(describe(ckpt), verdict=verdict, conventions=conventions, manifest=record, **found)


@dataclass(frozen=True)
class _Auditing:
    """How the weights are audited; see `audit`."""

    value: ValueMap
    fold_norms: bool | None
    singular: Singular
    layers: Sequence[int] | None


@dataclass(frozen=True)
class _Further:
    """How the network is made deeper; see `deeper`."""

    passes: int
    weights: str
    variants: Sequence[str]


def _found(
    ckpt: Checkpoint,
    texts: Any,
    counting: dict[str, Any],
    auditing: _Auditing,
    further: _Further | None,
    levers: bool,
    report: Progress,
) -> dict[str, Any]:
    """Return all measurements by the fields of a `Diagnosis`; wrong arguments are refused before any work."""
    auditing = replace(
        auditing, layers=as_layers(auditing.layers, ckpt.architecture.layers, default=ckpt.layout.attending)
    )
    prompts = named_prompts(default_texts() if texts is None else texts, ckpt)
    if further is not None:
        checked_deeper(further.passes, further.variants, further.weights, len(prompts), "passes")
    measured = trace(ckpt, prompts, **counting, progress=report)
    weights, refused = _audited(ckpt, auditing, report)
    paths = token_paths(ckpt, next(iter(prompts.values())), **counting)
    tried, why_not = _tried(ckpt, prompts, counting, report) if levers else (None, "it was not requested")
    passed, why_no_deeper = (None, "") if further is None else _deeper(ckpt, prompts, further, counting, report)
    return {
        "audit": weights, "audit_refused": refused, "trace": measured, "paths": paths, "levers": tried,
        "levers_refused": why_not, "deeper": passed, "deeper_refused": why_no_deeper,
    }  # fmt: skip


def _audited(ckpt: Checkpoint, how: _Auditing, report: Progress) -> tuple[xr.Dataset | None, str]:
    """Return the audit, or None and why it was refused; only unknown attention factors are a reason.

    Called after the trace, which runs all weights and refuses damaged ones of any layout.
    """
    try:
        found = audit(ckpt, how.value, how.fold_norms, how.singular, layers=how.layers, progress=report)
        return found, ""
    except AttentionFactorsError as error:
        return None, error.reason


def _tried(ckpt: Checkpoint, texts: Any, counting: dict[str, Any], report: Progress) -> tuple[Levers | None, str]:
    """Return the levers, or None and the reason: too few or unsuitable prompts, or a streamed network."""
    try:
        return find_levers(ckpt, texts, **counting, progress=report), ""
    except (ArgumentValueError, CheckpointError) as error:
        # The argument name `texts` does not help a reader of the report, and would be wrong for images.
        return None, str(error).removeprefix("texts: ")


def _deeper(
    ckpt: Checkpoint, texts: Any, further: _Further, counting: dict[str, Any], report: Progress
) -> tuple[Deeper | None, str]:
    """Return variants made deeper, or None and the reason.

    Reasons are a network that cannot run on its own output, and choices that do not fit these prompts.
    """
    chosen: dict[str, Any] = {"weights": further.weights, "variants": further.variants}
    try:
        return find_deeper(ckpt, texts, further.passes, **chosen, truncate=counting["truncate"], progress=report), ""
    except (ArgumentValueError, CheckpointError) as error:
        return None, str(error)


def _record(
    ckpt: Checkpoint,
    found: dict[str, Any],
    truncate: bool,
    further: _Further | None,
    command: str | None,
    started: datetime,
    threads: int,
) -> dict[str, Any]:
    parameters = _parameters(ckpt, found["audit"], found["trace"], truncate)
    if further is not None:
        parameters |= asdict(further) | {"variants": list(further.variants)}
    made_by = command or f"td.diagnose({ckpt.name!r})"
    return manifest(made_by, parameters, seed=ckpt.random_seed, started=started, threads=threads)


def _parameters(ckpt: Checkpoint, weights: xr.Dataset | None, measured: xr.Dataset, truncate: bool) -> dict[str, Any]:
    choices = ("value_map", "fold_norms", "singular")
    audited = {} if weights is None else {"layers": weights.layer.values.tolist()}
    return {
        "model": ckpt.name,
        "prompts": measured.prompt.values.tolist(),
        **audited,
        "dtype": str(ckpt.dtype).removeprefix("torch."),
        "device": str(ckpt.device),
        **({} if weights is None else {name: weights.attrs[name] for name in choices}),
        "sinks": measured.attrs["sinks"],
        "truncate": truncate,
    }
