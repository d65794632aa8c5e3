"""Several networks side by side: what differs in what their tokens do, where it begins, and which part does it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import nn

from tokendynamics.diagnosis._compared_words import (
    WEIGHTS_DIFFER,
    end_finding,
    parting_finding,
    tokens_finding,
    updates_finding,
    weights_finding,
)
from tokendynamics.diagnosis._comparison import Comparison
from tokendynamics.diagnosis._diagnose import describe
from tokendynamics.diagnosis._differences import paired_differences, side_by_side
from tokendynamics.diagnosis._finding import Finding
from tokendynamics.diagnosis._first_difference import JUMP, ROUNDINGS, Parting, parting_of
from tokendynamics.diagnosis._halved_parts import HalvedParts, halved_parts
from tokendynamics.diagnosis._halved_words import halved_convention, halved_finding
from tokendynamics.diagnosis._prompt_trace import SINK_RATIO
from tokendynamics.diagnosis._result import Convention
from tokendynamics.diagnosis._together import Together, run_together
from tokendynamics.diagnosis._trace import named_prompts
from tokendynamics.diagnosis._verdict import Verdict, judge
from tokendynamics.diagnosis._weight_differences import LEADING, weight_differences
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected, shown
from tokendynamics.numerics._resources import limited_threads
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained._untrained_twin import untrained_twin
from tokendynamics.provenance._manifest import manifest
from tokendynamics.provenance._progress import Progress, reporting

Model = str | Path | nn.Module | Checkpoint


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
    """Run texts through several models, and say what differs from the first, where it begins and which part does it.

    Args:
        models: Anything `tokendynamics.load` takes, or checkpoints already loaded; at least two, if the baseline and
            `dtypes` count.
        texts: Prompts, see `tokendynamics.trace`; None for our own.
        names: What to call the models, in order; None for their own names.
        baseline: "untrained" for one more model: the first one's architecture with its initial weights.
        seed: Of these weights.
        weights: Whether the weights are compared too.
        halved: Whether each part of each layer is also run at a half, and what that does to the loss is compared:
            twice as many passes as there are layers, and one more, of every model.
        sinks: Which tokens are left out; see `tokendynamics.trace`, also for `sink_ratio` and `truncate`.
        sink_ratio: Likewise.
        truncate: Likewise.
        dtypes: Of the forward passes: one for all, one for each model, or several for one; ignored for checkpoints.
        device: See `tokendynamics.load`, as for `allow_pickle`; ignored for checkpoints already loaded.
        threads: PyTorch threads for this call, None to leave them.
        allow_pickle: Likewise.
        command: What to record as the command that makes this again; None for the Python call.
        progress: True for a progress bar, or a function; see `progress`.

    Raises:
        CheckpointError: A model cannot be found, read or trusted; a baseline of a network without a configuration.
        ArgumentTypeError, ArgumentValueError: Fewer than two models, names or dtypes that do not fit; see also `trace`.
        MemoryLimitError: The states of all texts in all models do not fit.

    >>> found = compare("random:distilgpt2", "random:distilgpt2:1", texts=[[5, 9, 33, 21], [12, 3, 44], [1, 2, 3]])
    >>> str(found.first_difference), found.models
    ('the embedding', ('random:distilgpt2:0', 'random:distilgpt2:1'))
    """
    started = datetime.now(UTC)
    _check_count(models, baseline, dtypes)
    with limited_threads(threads) as in_force, reporting(progress) as report:
        ckpts = _loaded(models, dtypes, device, allow_pickle, report)
        ckpts += [untrained_twin(ckpts[0], seed)] if baseline else []
        called = _names(ckpts, names)
        prompts = named_prompts(default_texts() if texts is None else texts)
        found = run_together(ckpts, prompts, sinks, sink_ratio, truncate, report)
        products, unlike = weight_differences(ckpts, report) if weights else (None, ("not asked for",) * len(ckpts[1:]))
        parts = halved_parts(ckpts, found.given, found.tokens_shared, report) if halved else None
    made_by, parameters = command or _call(ckpts), _parameters(ckpts, found, truncate, baseline)
    drawn = seed if baseline else ckpts[0].random_seed
    record = manifest(made_by, parameters, seed=drawn, started=started, threads=in_force)
    return _comparison(ckpts, called, found, products, unlike, parts, record)


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
        # A live network has no tokenizer of its own; beside a stored one it is most often a changed copy of that.
        lent = next((each.tokenizer for each in found if each.tokenizer is not None), None)
        tokenizer = lent if isinstance(model, nn.Module) else None
        found.append(load(model, tokenizer, dtype=dtype, device=device, allow_pickle=allow_pickle, progress=report))
    return found


def _names(ckpts: Sequence[Checkpoint], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a name for each, different from the others'."""
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
    ckpts: Sequence[Checkpoint],
    names: tuple[str, ...],
    found: Together,
    products: xr.Dataset | None,
    unlike: Sequence[str],
    halved: HalvedParts | None,
    record: dict[str, Any],
) -> Comparison:
    coarsest = [max((ckpts[0], each), key=lambda ckpt: torch.finfo(ckpt.dtype).eps) for each in ckpts[1:]]
    partings = tuple(
        None if gaps is None else parting_of(gaps, torch.finfo(ckpt.dtype).eps)
        for gaps, ckpt in zip(found.gaps, coarsest, strict=True)
    )
    table = side_by_side(found.traces, names)
    differences = paired_differences(found.traces, found.estimates, names[1:])
    if products is not None:
        products = products.assign_coords(model=list(names), other=list(names[1:]))
    verdicts = tuple(judge(None, trace) for trace in found.traces)
    words = _sentences(names, found, verdicts, partings, differences, products, unlike, [_dtype(c) for c in coarsest])
    if halved is not None:
        pairs = enumerate(zip(names[1:], coarsest, strict=True))
        own = [halved_finding((names[0], name), halved, at, torch.finfo(each.dtype).eps) for at, (name, each) in pairs]
        words = (*words[:-1], *own, words[-1])
    return Comparison(
        models=names,
        descriptions=tuple(describe(ckpt) for ckpt in ckpts),
        traces=tuple(found.traces),
        verdicts=verdicts,
        table=table,
        differences=differences,
        gaps=_all_gaps(found, names[1:]),
        partings=partings,
        weights=products,
        halved=None if halved is None else _labelled(halved, names, found.traces[0].prompt.values.tolist()),
        sentences=words,
        conventions=_conventions(found, weights=products is not None, halved=halved is not None),
        manifest=record,
    )


def _labelled(halved: HalvedParts, names: Sequence[str], prompts: list[str]) -> xr.Dataset:
    return halved.table.assign_coords(model=list(names), other=list(names[1:]), prompt=prompts)


def _all_gaps(found: Together, others: Sequence[str]) -> xr.Dataset | None:
    paired = {name: gaps for name, gaps in zip(others, found.gaps, strict=True) if gaps is not None}
    if not paired:
        return None
    return xr.concat(list(paired.values()), dim="other", join="outer").assign_coords(other=list(paired))


def _sentences(
    names: tuple[str, ...],
    found: Together,
    verdicts: Sequence[Verdict],
    partings: Sequence[Parting | None],
    differences: xr.Dataset,
    products: xr.Dataset | None,
    unlike: Sequence[str],
    dtypes: Sequence[str],
) -> tuple[Finding, ...]:
    ends = [float(trace.kappa_relative.sel(site="feed_forward")[-1]) for trace in found.traces]
    sentences: list[Finding | None] = []
    for place, other in enumerate(names[1:]):
        pair, own = (names[0], other), differences.isel(other=place)
        both = (verdicts[0], verdicts[place + 1])
        sentences.append(end_finding(pair, both, (ends[0], ends[place + 1]), own))
        sentences.append(parting_finding(pair, partings[place], found.unpaired[place], dtypes[place]))
        sentences.append(updates_finding(pair, own))
        weights = None if products is None else products.isel(other=place)
        sentences.append(weights_finding(pair, weights, unlike[place]))
    depths = [trace.sizes["layer"] - 1 for trace in found.traces]
    sentences.append(tokens_finding(found.tokens_shared, _left_out(found.traces), depths))
    return tuple(each for each in sentences if each is not None)


def _left_out(traces: Sequence[xr.Dataset]) -> int:
    """Return how many tokens are left out at the layer where most are, over all prompts."""
    counts = traces[0].token_count
    return int(np.max((counts.sel(sinks="kept") - counts.sel(sinks="removed")).sum("prompt").values))


def _conventions(found: Together, *, weights: bool, halved: bool) -> tuple[Convention, ...]:
    attrs = found.traces[0].attrs
    chosen = [
        Convention("Sinks", attrs["sinks"], "each model would be measured on tokens of its own"),
        Convention(
            "First difference",
            f"the first part whose updates differ by more than {ROUNDINGS:g} roundings though its input does not, or "
            f"by {JUMP:g} times what its input differs, beside the median of the other parts",
            "every layer after the first difference differs too",
        ),
        Convention(
            "Intervals", f"{attrs['intervals']}; the same prompt is left out of both models", "unpaired ones are longer"
        ),
        Convention("Precision", attrs["precision"], "half precision adds noise of about 1e-3 to each cosine"),
    ]
    if weights:
        chosen.append(
            Convention(
                "Weights",
                "QK and OV products of matched heads with the norm's gain folded in, relative Frobenius norm; they "
                f"differ from {WEIGHTS_DIFFER:g}; angles between the {LEADING} leading directions",
                "factors themselves differ where nothing of what the network computes does",
            )
        )
    if halved:
        chosen.append(Convention(*halved_convention()))
    return tuple(chosen)
