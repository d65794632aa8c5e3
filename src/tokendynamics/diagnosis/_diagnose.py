"""The main job: one checkpoint in, a whole diagnosis out, with each choice that its numbers hang on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xarray as xr

from tokendynamics.diagnosis._audit import Singular, ValueMap, audit
from tokendynamics.diagnosis._prompt_trace import SINK_RATIO
from tokendynamics.diagnosis._result import Convention, Diagnosis
from tokendynamics.diagnosis._token_paths import token_paths
from tokendynamics.diagnosis._trace import trace
from tokendynamics.diagnosis._verdict import COLLAPSED, NEUTRAL, judge
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.numerics._resources import limited_threads
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained._architecture import as_layers
from tokendynamics.provenance._manifest import manifest
from tokendynamics.provenance._progress import Progress, reporting


def conventions_of(audit: xr.Dataset, trace: xr.Dataset) -> tuple[Convention, ...]:
    """Return the conventions recorded in two datasets, in words.

    Args:
        audit: From `tokendynamics.diagnosis.audit`.
        trace: From `tokendynamics.diagnosis.trace`.
    """
    return (
        Convention(
            "Value map",
            {"V": "V is W_V, each group's repeated for the heads that share it", "VO": "V is Σ_h W_V W_O"}[
                audit.attrs["value_map"]
            ],
            "the other choice changes A, and with it the regime, but not W",
        ),
        Convention(
            "Norm folding",
            f"the gain of the norm before attention is {audit.attrs['fold_norms']}",
            "folding it rescales rows of W_Q, W_K and W_V: signs per head stay nearly all the same, sizes do not",
        ),
        Convention(
            "Singular value maps",
            {
                "undefined": "A is reported as undefined where V is singular",
                "pinv": "A uses the pseudo-inverse where V is singular",
            }[audit.attrs["singular"]],
            "a pseudo-inverse gives signs for A that no statement of the theory is about",
        ),
        Convention("Scaling", audit.attrs["scaling"], "eigenvalues would be √d_head times larger"),
        Convention(
            "Near zero",
            audit.attrs["near_zero_threshold"],
            "an absolute threshold counts more in a network with small weights; cond(V) stands beside it",
        ),
        Convention("Balance", audit.attrs["balance"], "the two balances of ov differ where ov is far from symmetric"),
        Convention(
            "Sinks",
            trace.attrs["sinks"],
            "with them, the raw effective rank reads about 1 and E compares every token with the sink",
        ),
        Convention("Consensus E", trace.attrs["consensus"], "without |·| an antipodal pair would not count as agreed"),
        Convention(
            "Effective rank",
            trace.attrs["effective_rank"],
            "from the singular values themselves (Roy and Vetterli) it is larger",
        ),
        Convention(
            "Sites",
            trace.attrs["sites"],
            "one state a layer would hide which part moved it, and reading the last one after a final norm mixes in "
            "the norm's effect",
        ),
        Convention("Who does it", trace.attrs["component_change"], "with sinks, their few pairs would blur the sums"),
        Convention(
            "Layer badges",
            f"neutral when the mean pair cosine changes by at most {NEUTRAL:g}; collapsed from {COLLAPSED:g}",
            "a wider band calls more layers neutral",
        ),
        Convention("Precision", trace.attrs["precision"], "half precision adds noise of about 1e-3 to each cosine"),
        Convention(
            "Tokenization",
            "the model's own tokenizer" if trace.attrs["tokenization"] == "own" else trace.attrs["tokenization"],
            "other tokens are other particles",
        ),
    )


@typed_arguments
def diagnose(
    model: str | Path | Checkpoint,
    texts: str | Sequence[str] | Mapping[str, str] | None = None,
    *,
    value: ValueMap = "V",
    fold_norms: bool = False,
    singular: Singular = "undefined",
    layers: Sequence[int] | None = None,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    allow_pickle: bool = False,
    command: str | None = None,
    progress: bool | Progress = False,
) -> Diagnosis:
    """Audit the weights, trace real tokens, and say in sentences where they go and why.

    Args:
        model: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: Prompts; None for the project's own five (prose, code, dialogue, a list, German).
        value: The value map; see `tokendynamics.audit`.
        fold_norms: See `tokendynamics.audit`.
        singular: See `tokendynamics.audit`.
        layers: Layers to audit, counted from 1; the trace covers every layer, since tokens pass through all of them.
        sinks: See `tokendynamics.trace`.
        sink_ratio: See `tokendynamics.trace`.
        truncate: Whether prompts longer than the context are cut; otherwise they are refused.
        dtype: Precision of the forward pass, "float32" or "float64" (or half precisions); ignored for a checkpoint.
        device: Where the forward pass runs; ignored for a checkpoint.
        threads: PyTorch threads for this call, None to leave them.
        allow_pickle: See `tokendynamics.load`.
        command: What to record as the command that makes this again; None for the Python call.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Diagnosis: datasets, verdict, conventions and manifest.

    Raises:
        CheckpointError: The model cannot be found, read or trusted.
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: An impossible argument or prompt.
        MemoryLimitError: A network or a prompt that is larger than the memory.

    >>> found = diagnose("random:distilgpt2", "a short text", layers=[1])
    >>> found.verdict.layers[0] in ("contracts", "neutral", "expands")
    True
    """
    started = datetime.now(UTC)
    with limited_threads(threads) as in_force, reporting(progress) as report:
        ckpt = (
            model
            if isinstance(model, Checkpoint)
            else load(model, dtype=dtype, device=device, allow_pickle=allow_pickle, progress=report)
        )
        # Wrong arguments are found before the work begins.
        chosen = as_layers(layers, ckpt.architecture.layers)
        prompts = default_texts() if texts is None else texts
        measured = trace(ckpt, prompts, sinks=sinks, sink_ratio=sink_ratio, truncate=truncate, progress=report)
        weights = audit(ckpt, value, fold_norms, singular, layers=chosen, progress=report)
        paths = token_paths(ckpt, str(measured.text.values[0]), sinks=sinks, sink_ratio=sink_ratio, truncate=truncate)
    parameters = {
        "model": ckpt.name,
        "prompts": measured.prompt.values.tolist(),
        "layers": weights.layer.values.tolist(),
        "dtype": str(ckpt.dtype).removeprefix("torch."),
        "device": str(ckpt.device),
        **{name: weights.attrs[name] for name in ("value_map", "fold_norms", "singular")},
        "sinks": measured.attrs["sinks"],
        "truncate": truncate,
    }
    return Diagnosis(
        model=describe(ckpt),
        audit=weights,
        trace=measured,
        paths=paths,
        verdict=judge(weights, measured),
        conventions=conventions_of(weights, measured),
        manifest=manifest(
            command or f"td.diagnose({ckpt.name!r})",
            parameters,
            seed=ckpt.random_seed,
            started=started,
            threads=in_force,
        ),
    )


def describe(ckpt: Checkpoint) -> dict[str, Any]:
    """Return name, source and architecture of a checkpoint as plain values."""
    return {
        "name": ckpt.name,
        "source": ckpt.source.name if ckpt.source else None,
        "random_seed": ckpt.random_seed,
        **asdict(ckpt.architecture),
    }
