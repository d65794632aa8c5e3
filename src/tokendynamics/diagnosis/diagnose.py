"""The main job: one checkpoint in, a whole diagnosis out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokendynamics.diagnosis.audit import audit
from tokendynamics.diagnosis.conventions import conventions_of
from tokendynamics.diagnosis.layer_audit import Singular, ValueMap
from tokendynamics.diagnosis.paths import token_paths
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.sinks import SINK_RATIO
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.trace import trace
from tokendynamics.diagnosis.verdict import judge
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.numerics.threads import limited_threads
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.layers import as_layers
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting


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
        progress: True for a progress bar, or a function; see `tokendynamics.provenance.progress`.

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
