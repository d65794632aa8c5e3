"""Compare several networks: differences of their tokens, the first difference, and the part that causes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import torch
import xarray as xr
from torch import nn

from tokendynamics.diagnosis._compared_sentences import Measured, conventions_in, sentences_of
from tokendynamics.diagnosis._diagnose import describe
from tokendynamics.diagnosis._differences import paired_differences, side_by_side
from tokendynamics.diagnosis._feed_forward_differences import feed_forward_differences
from tokendynamics.diagnosis._first_difference import parting_of
from tokendynamics.diagnosis._norms_alone import with_norms_alone
from tokendynamics.diagnosis._tensor_differences import tensor_differences
from tokendynamics.diagnosis._together import Together, run_together
from tokendynamics.diagnosis._weight_differences import weight_differences
from tokendynamics.diagnosis.comparison import Comparison
from tokendynamics.diagnosis.halved_parts import halved_parts
from tokendynamics.diagnosis.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.tracing import named_prompts
from tokendynamics.diagnosis.verdict import judge
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.loading import Model, as_checkpoint, untrained_twin
from tokendynamics.provenance.manifest import manifest
from tokendynamics.provenance.progress import Progress, reporting


@typed_arguments
def compare(
    *models: Model,
    texts: Any = None,
    names: Sequence[str] | None = None,
    baseline: Literal["untrained"] | None = None,
    seed: int = 0,
    weights: bool = True,
    halved: bool = False,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    dtypes: Sequence[str] = ("float32",),
    device: str = "cpu",
    threads: int | None = None,
    allow_pickle: bool = False,
    command: str | None = None,
    progress: bool | Progress = False,
) -> Comparison:
    """Compare several models with the first on the same texts, and locate the first difference and its cause.

    Args:
        models: Anything `tokendynamics.load` takes, or checkpoints already loaded; at least two, counting the baseline
            and `dtypes`.
        texts: Prompts, see `tokendynamics.trace`; None for the fourteen default texts.
        names: Names of the models, in order; None for their own.
        baseline: "untrained" adds a model with the architecture of the first and initial weights.
        seed: Random seed of these weights.
        weights: Whether the weights are compared as well.
        halved: Whether each part of each layer is also halved and the changes of the loss are compared; one more pass
            per part and model.
        sinks: Which tokens are excluded; see `tokendynamics.trace`, also for `sink_ratio` and `truncate`.
        sink_ratio: Likewise.
        truncate: Likewise.
        dtypes: Of the forward passes: one for all, one for each model, or several for one; ignored for checkpoints.
        device: See `tokendynamics.load`, as for `allow_pickle`; ignored for checkpoints already loaded.
        threads: PyTorch threads for this call, None to leave them.
        allow_pickle: Likewise.
        command: Recorded as the command that reproduces this result; None for the Python call.
        progress: True for a progress bar, or a function; see `progress`.

    Raises:
        CheckpointError: A model cannot be found, read or trusted; a baseline of a network without a configuration.
        ArgumentTypeError, ArgumentValueError: Fewer than two models, names or dtypes that do not fit; see also `trace`.
        MemoryLimitError: The states of all texts in all models do not fit.

    >>> found = compare("random:distilgpt2", "random:distilgpt2:1", texts=[[5, 9], [12, 3, 4], [1, 2]], weights=False)
    >>> str(found.first_difference), found.models
    ('the embedding', ('random:distilgpt2:0', 'random:distilgpt2:1'))
    """
    started = datetime.now(UTC)
    _check_count(models, baseline, dtypes)
    with limited_threads(threads) as in_force, reporting(progress) as report:
        ckpts = _loaded(models, dtypes, device, allow_pickle, report)
        ckpts += [untrained_twin(ckpts[0], seed)] if baseline else []
        called, prompts = _names(ckpts, names), named_prompts(default_texts() if texts is None else texts, ckpts[0])
        found = run_together(ckpts, prompts, sinks, sink_ratio, truncate, report)
        measured = _measured(ckpts, found, weights, halved, report)
    parameters, drawn = _parameters(ckpts, found, truncate, baseline), seed if baseline else ckpts[0].random_seed
    record = manifest(command or _call(ckpts), parameters, seed=drawn, started=started, threads=in_force)
    return _comparison(ckpts, called, measured, record)


def _measured(ckpts: Sequence[Checkpoint], found: Together, weights: bool, halved: bool, report: Progress) -> Measured:
    different = found.traces[0].repeats.values < 0
    return Measured(
        found,
        weight_differences(ckpts, report) if weights else None,
        feed_forward_differences(ckpts, report) if weights else None,
        tensor_differences(ckpts, report) if weights else None,
        halved_parts(ckpts, found.given, found.tokens_shared, report, different) if halved else None,
        tuple(_coarser(ckpts[0].dtype, ckpt.dtype) for ckpt in ckpts[1:]),
    )


def _call(ckpts: Sequence[Checkpoint]) -> str:
    return f"td.compare({', '.join(repr(ckpt.name) for ckpt in ckpts)})"


def _parameters(ckpts: Sequence[Checkpoint], found: Together, truncate: bool, baseline: str | None) -> dict[str, Any]:
    trace = found.traces[0]
    return {
        "models": [ckpt.name for ckpt in ckpts],
        "prompts": trace.prompt.values.tolist(),
        "dtypes": [_dtype(ckpt) for ckpt in ckpts],
        "sinks": trace.attrs["sinks"],
        "truncate": truncate,
        "baseline": baseline,
    }


def _check_count(models: Sequence[Model], baseline: str | None, dtypes: Sequence[str]) -> None:
    if baseline not in (None, "untrained"):
        raise ArgumentValueError(expected("baseline", "None or 'untrained'", shown(baseline)))
    count = len(dtypes) if len(models) == 1 else len(models)
    if not models or count + (baseline is not None) < 2:
        advice = "pass another model, baseline='untrained', or several dtypes"
        raise ArgumentValueError(expected("models", "at least two to compare", len(models), advice))
    if len(models) > 1 and len(dtypes) not in (1, len(models)):
        raise ArgumentValueError(
            expected("dtypes", f"one for all, or one for each of {len(models)} models", len(dtypes))
        )
    if len(models) == 1 and len(dtypes) > 1 and isinstance(models[0], Checkpoint | nn.Module):
        came = f"a {type(models[0]).__name__}, which has its own"
        raise ArgumentTypeError(expected("models", "a name or a path to load in several dtypes", came))


def _loaded(
    models: Sequence[Model], dtypes: Sequence[str], device: str, allow_pickle: bool, report: Progress
) -> list[Checkpoint]:
    count = max(len(models), len(dtypes))
    several = list(models) * count if len(models) == 1 else list(models)
    formats = list(dtypes) * count if len(dtypes) == 1 else list(dtypes)
    found: list[Checkpoint] = []
    for model, dtype in zip(several, formats, strict=True):
        if isinstance(model, Checkpoint):
            found.append(model)
            continue
        # A live network has no tokenizer; next to a stored one it is usually a changed copy of that.
        lent = next((each.tokenizer for each in found if each.tokenizer is not None), None)
        tokenizer = lent if isinstance(model, nn.Module) else None
        options: dict[str, Any] = {"dtype": dtype, "device": device, "allow_pickle": allow_pickle, "progress": report}
        found.append(as_checkpoint(model, "models", tokenizer=tokenizer, **options))
    return found


def _names(ckpts: Sequence[Checkpoint], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a distinct name for each model."""
    if names is not None:
        if len(names) != len(ckpts) or len(set(names)) < len(names):
            raise ArgumentValueError(expected("names", f"{len(ckpts)} different names", shown(list(names))))
        return tuple(names)
    own = [ckpt.name for ckpt in ckpts]
    if len({ckpt.dtype for ckpt in ckpts}) > 1:
        own = [f"{name} ({_dtype(ckpt)})" for name, ckpt in zip(own, ckpts, strict=True)]
    return tuple(
        name if own.count(name) == 1 else f"{name} [{own[: place + 1].count(name)}]" for place, name in enumerate(own)
    )


def _dtype(ckpt: Checkpoint) -> str:
    return str(ckpt.dtype).removeprefix("torch.")


def _comparison(
    ckpts: Sequence[Checkpoint], names: tuple[str, ...], measured: Measured, record: dict[str, Any]
) -> Comparison:
    found = measured.together
    partings = tuple(
        with_norms_alone(None if gaps is None else parting_of(gaps, torch.finfo(dtype).eps), ckpts[0], other)
        for gaps, dtype, other in zip(found.gaps, measured.coarsest, ckpts[1:], strict=True)
    )
    differences = paired_differences(found.traces, found.estimates, names[1:])
    verdicts = tuple(judge(None, trace) for trace in found.traces)
    weights, halved = measured.weights, measured.halved
    labels = {"model": list(names), "other": list(names[1:])}
    prompts = found.traces[0].prompt.values.tolist()
    return Comparison(
        models=names,
        descriptions=tuple(describe(ckpt) for ckpt in ckpts),
        traces=tuple(found.traces),
        verdicts=verdicts,
        table=side_by_side(found.traces, names),
        difference=differences,
        gaps=_all_gaps(found, names[1:]),
        partings=partings,
        weights=None if weights is None else weights.assign_coords(labels),
        halved=None if halved is None else halved.table.assign_coords(labels | {"prompt": prompts}),
        sentences=sentences_of(names, measured, verdicts, partings, differences),
        conventions=conventions_in(measured),
        manifest=record,
    )


def _coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return max(one, other, key=lambda dtype: torch.finfo(dtype).eps)


def _all_gaps(found: Together, others: Sequence[str]) -> xr.Dataset | None:
    paired = {name: gaps for name, gaps in zip(others, found.gaps, strict=True) if gaps is not None}
    if not paired:
        return None
    return xr.concat(list(paired.values()), dim="other", join="outer").assign_coords(other=list(paired))
