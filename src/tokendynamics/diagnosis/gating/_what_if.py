"""Several networks, or one and a change of it, on the same texts: numbers side by side and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from tokendynamics.diagnosis.gating.sensitivities import losses_of
from tokendynamics.diagnosis.gating.trials import why_without_loss
from tokendynamics.diagnosis.tracing._together import Together, nearest_layers, run_together
from tokendynamics.diagnosis.tracing.layer_states import layer_states
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE, Estimates, mean_with_interval
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for, named_prompts, noun_of
from tokendynamics.diagnosis.tracing.variables import BOUNDS, COMPONENTS, SITES
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_integer, as_tensor
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.intervals import jackknife_interval
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.variant import Variant, VariantLike, basis_of
from tokendynamics.pretrained.loading import Model
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.words import percent

MEASURES = ("shares", "consensus_within", "consensus_relative", "centred_cos2", "line_excess", "kappa_change_sum")
"""What is compared with intervals; of the trace, see there."""

_LEAST_FOR_AN_INTERVAL = 3

_DIMS = {"shares": ("layer", "site", "share"), "kappa_change_sum": ("component",)}


MODELS = ("as it is", "changed")

_REMOVED = "removed"

_INTERVALS = f"{percent(CONFIDENCE)}, jackknife-t over {{noun}}s, the same one left out of both"


def side_by_side(traces: Sequence[xr.Dataset], names: Sequence[str]) -> xr.Dataset:
    """Return the numbers over all prompts of each network in one dataset.

    Args:
        traces: From `tokendynamics.trace`, of the same prompts.
        names: Of the networks.

    Returns:
        `MEASURES` with their intervals, ``update_ratio`` (the median over prompts) and ``state``, each with the dim
        ``model`` before those that it has in a trace; layers that a network does not have are NaN, and "" in
        ``state``. The coordinate ``relative_depth`` (model, layer) runs from 0 to 1 in each.
    """
    layers = np.arange(max(trace.sizes["layer"] for trace in traces))
    tables, depths = [], []
    for trace in traces:
        table = trace[[*MEASURES, *(f"{name}_interval" for name in MEASURES)]]
        table = table.assign(update_ratio=trace.update_ratio.median("prompt"))
        states = ["", *layer_states(trace)]
        states += [""] * (len(layers) - len(states))
        tables.append(table.reindex(layer=layers).assign(state=("layer", np.array(states))))
        depths.append(np.where(layers < trace.sizes["layer"], layers / max(1, trace.sizes["layer"] - 1), np.nan))
    whole = xr.concat(tables, dim="model", join="override", combine_attrs="drop")
    return whole.assign_coords(model=list(names), relative_depth=(("model", "layer"), np.stack(depths)))


def paired_differences(
    traces: Sequence[xr.Dataset], estimates: Sequence[Estimates], others: Sequence[str]
) -> xr.Dataset:
    """Return how each network differs from the first, with 90 % intervals of the differences.

    The same prompts went through both, and what one prompt does to both is no difference: the jackknife leaves the
    same prompt out of both and takes the difference each time. Networks of other depth are compared at the nearest
    relative depth.

    Args:
        traces: From `run_together`, also the next.
        estimates: Likewise.
        others: Names of all but the first.

    Returns:
        Dataset over ``other`` and the layers of the first network: `MEASURES`, other less first, each with its interval
        under its name and ``_interval``; ``update_quotient`` (other, layer, component), the geometric mean over prompts
        of the other's update ratio over the first's, with its interval. A text that repeats another is no other text:
        intervals are NaN below three different ones, `MEASURES` below two, and ``update_quotient`` leaves copies out.
    """
    different = torch.from_numpy(traces[0].repeats.values < 0)
    depths = [trace.sizes["layer"] - 1 for trace in traces]
    rows = []
    for trace, other_estimates, depth in zip(traces[1:], estimates[1:], depths[1:], strict=True):
        where = nearest_layers(depths[0], depth)
        row = {}
        for name in MEASURES:
            dims = _DIMS.get(name, ("layer", "site"))
            (value, left), (first, first_left) = other_estimates[name], estimates[0][name]
            if "layer" in dims:
                value, left = value[where], left[:, where]
            gap, without = value - first, (left - first_left)[different]
            if different.sum() < _LEAST_FOR_AN_INTERVAL:
                without = without[:0]
            gap = gap if different.sum() > 1 else torch.full_like(gap, torch.nan)
            row[name] = xr.Variable(dims, gap.numpy())
            row[f"{name}_interval"] = xr.Variable(
                (*dims, "bound"), jackknife_interval(gap, without, CONFIDENCE).numpy()
            )
        row |= _update_quotient(traces[0], trace, where, different)
        rows.append(xr.Dataset(row))
    coords = {"layer": np.arange(depths[0] + 1), "site": list(SITES), "component": list(COMPONENTS)}
    coords |= {"share": traces[0].share.values, "bound": list(BOUNDS), "other": list(others)}
    return xr.concat(rows, dim="other").assign_coords(coords)


def _update_quotient(
    first: xr.Dataset, other: xr.Dataset, where: list[int], different: Bool[Tensor, " prompt"]
) -> dict[str, xr.Variable]:
    counted = different.numpy()
    ratios = [first.update_ratio.values[counted], other.update_ratio.values[counted][:, where]]
    one, two = (np.where(ratio > 0, ratio, np.nan) for ratio in ratios)
    mean, interval = (np.exp(values.numpy()) for values in mean_with_interval(torch.from_numpy(np.log(two / one))))
    # An update that is zero for every prompt, in one of them, is known exactly.
    for zero, there, value in ((ratios[1], ratios[0], 0.0), (ratios[0], ratios[1], np.inf)):
        known = (zero == 0).all(axis=0) & (there > 0).all(axis=0) & bool(len(zero))
        mean[known], interval[known] = value, value
    dims = ("layer", "component")
    return {
        "update_quotient": xr.Variable(dims, mean),
        "update_quotient_interval": xr.Variable((*dims, "bound"), interval),
    }


@typed_arguments
def what_if(
    ckpt: Model,
    texts: Any,
    changes: VariantLike = None,
    *,
    project_out: Any = None,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Measure the effect of a change of a network on κ, shares, rank, update ratios and loss, paired over texts.

    Both networks read the same texts, and a token excluded in one is excluded in both. For a page with curves and
    sentences, use ``td.compare(ckpt, ckpt.under(changes))``.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: See `tokendynamics.trace`; intervals need three that differ.
        changes: Such as ``{"layer 12 attention": 0.5, "layer 2 head 0": 0}`` or "no-norm"; see `Checkpoint.varied`.
        project_out: Directions to project out of all states after a layer, 0 for the embedding: ``{9: d}`` with `d` of
            shape (dim,) or (direction, dim), such as a ``vector`` of `tokendynamics.shared_directions`.
        sinks: See `tokendynamics.trace`, also for the others.
        sink_ratio: Likewise.
        truncate: Likewise.
        progress: Likewise.

    Returns:
        Dataset. With the dim ``model`` ("as it is", "changed"), each number of the trace over all texts and its
        interval (``consensus_within``, ``consensus_relative``, ``shares``, ``centred_cos2``, ``line_excess``),
        ``state`` of each layer, ``update_ratio``, ``effective_rank`` (of unit rows, mean over texts) and ``loss``
        (nats per token; NaN with the reason in the attribute ``no_loss``). ``…_difference`` and
        ``…_difference_interval`` are changed minus unchanged, paired over texts, with 90 % intervals;
        ``update_quotient`` is the changed update ratio divided by the unchanged one.

    Raises:
        ArgumentTypeError, ArgumentValueError: See `tokendynamics.trace`; unknown changes, or none; a direction that is
            zero, not finite or of another width.
        CheckpointError: A variant that the layout cannot express.

    >>> from tokendynamics.pretrained import load
    >>> effect = what_if(load("random:gpt2-tiny"), ["one text", "another"], {"attention": 0})
    >>> float(abs(effect.consensus_relative.sel(model="changed", site="feed_forward")).max().round(3)) < 0.2
    True
    """
    ckpt = checkpoint_for(ckpt, texts)
    variant = Variant.of(changes, "changes")
    if project_out is not None:
        variant = replace(variant, removed=_bases(project_out, ckpt))
    if variant == Variant():
        advice = "name a part and a number, or a direction to project out"
        raise ArgumentValueError("changes", "at least one", "none", advice)
    prompts = named_prompts(texts, ckpt)
    ckpts = [ckpt, ckpt.under(variant.after(ckpt.variant))]
    with reporting(progress) as report:
        together = run_together(ckpts, [prompts] * len(ckpts), sinks, sink_ratio, truncate, report, losses_of)
    attrs = {"model": ckpt.name, "changes": variant.words, "intervals": _INTERVALS.format(noun=noun_of(prompts))}
    attrs["no_loss"] = why_without_loss(ckpt) if together.losses[0] is None else ""
    attrs["sinks"] = together.traces[0].attrs["sinks"]
    return _as_dataset(together).assign_attrs(attrs)


def _bases(project_out: object, ckpt: Checkpoint) -> dict[int, tuple[tuple[float, ...], ...]]:
    """Return orthonormal rows of the space that directions span, by layer."""
    if not isinstance(project_out, Mapping):
        raise ArgumentTypeError("project_out", "directions by layer, such as {9: d}", shown(project_out))
    depth, dim, bases = ckpt.architecture.layers, ckpt.architecture.dim, {}
    for layer, given in project_out.items():
        name = f"project_out[{shown(layer)}]"
        number = as_integer(layer, f"a layer of project_out ({shown(layer)})")
        if not 0 <= number <= depth:
            raise ArgumentValueError("project_out", f"layers from 0 to {depth}", number)
        rows = as_tensor(np.asarray(given) if isinstance(given, xr.DataArray) else given, name).double()
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] != dim or not len(rows):
            raise ArgumentValueError(name, f"directions of {dim} features", f"shape {tuple(rows.shape)}")
        if bool((rows == 0).all(dim=1).any()):
            raise ArgumentValueError(name, "directions other than zero", "a zero vector")
        bases[number] = basis_of(rows)
    return bases


def _as_dataset(together: Together) -> xr.Dataset:
    table = side_by_side(together.traces, MODELS)
    paired = paired_differences(together.traces, together.estimates, MODELS[1:]).isel(other=0, drop=True)
    names = {name: f"{name}_difference" for name in MEASURES}
    names |= {f"{name}_interval": f"{name}_difference_interval" for name in MEASURES}
    different = torch.from_numpy(together.traces[0].repeats.values < 0)
    ranks = [
        torch.from_numpy(trace.effective_rank_unit_rows.sel(sinks=_REMOVED).values)[different]
        for trace in together.traces
    ]
    unknown = torch.full((len(different),), torch.nan, dtype=torch.float64)
    rows = [(unknown if losses is None else losses)[different] for losses in together.losses]
    variables = _means_and_difference("effective_rank", ("layer", "site"), ranks) | _means_and_difference(
        "loss", (), rows
    )
    coords = {"model": list(MODELS), "site": list(SITES), "bound": list(BOUNDS)}
    return xr.merge(
        [table, paired.rename(names), xr.Dataset(variables, coords=coords)], compat="override", join="outer"
    )


def _means_and_difference(name: str, dims: tuple[str, ...], values: Sequence[Tensor]) -> dict[str, Any]:
    """Return the mean over texts in both, and the mean difference with its interval."""
    gap, interval = mean_with_interval(values[1] - values[0])
    return {
        name: (("model", *dims), np.stack([of_model.mean(dim=0).numpy() for of_model in values])),
        f"{name}_difference": (dims, gap.numpy()),
        f"{name}_difference_interval": ((*dims, "bound"), interval.numpy()),
    }
