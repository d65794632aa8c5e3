"""The effect of a change of a network on its tokens and its loss, on the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tokendynamics.diagnosis._differences import MEASURES, paired_differences, side_by_side
from tokendynamics.diagnosis._together import Together, run_together
from tokendynamics.diagnosis.halved_parts import losses_of_prompts
from tokendynamics.diagnosis.prompt_shares import BOUNDS, CONFIDENCE
from tokendynamics.diagnosis.prompt_trace import SINK_RATIO, SITES
from tokendynamics.diagnosis.tracing import named_prompts
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.intervals import jackknife_interval
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained.edits.variant import Variant, VariantLike
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.progress import Progress, reporting

MODELS = ("as it is", "changed")
_REMOVED = "removed"


@typed_arguments
def what_if(
    ckpt: Model,
    texts: Any,
    changes: VariantLike,
    *,
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
        changes: Such as ``{"layer 12 attention": 0.5, "feed_forward": 0}`` or "no-norm"; see `Checkpoint.varied`.
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
        ArgumentTypeError, ArgumentValueError: See `tokendynamics.trace`; unknown changes, or none.
        CheckpointError: A variant that the layout cannot express.

    >>> from tokendynamics.pretrained import load
    >>> found = what_if(load("random:distilgpt2"), ["one text", "another"], {"attention": 0})
    >>> float(abs(found.consensus_relative.sel(model="changed", site="feed_forward")).max().round(3)) < 0.2
    True
    """
    ckpt = as_checkpoint(ckpt)
    variant = Variant.of(changes, "changes")
    if variant == Variant():
        raise ArgumentValueError(expected("changes", "at least one", "none", "name a part and a number"))
    prompts = named_prompts(texts, ckpt)
    ckpts = [ckpt, ckpt.under(variant)]
    with reporting(progress) as report:
        found = run_together(ckpts, prompts, sinks, sink_ratio, truncate, report)
    losses = [losses_of_prompts(each, given) for each, given in zip(ckpts, found.given, strict=True)]
    attrs = {"model": ckpt.name, "changes": variant.words, "no_loss": losses[0][1], "intervals": _INTERVALS}
    return _as_dataset(found, [each for each, _ in losses]).assign_attrs(
        attrs | {"sinks": found.traces[0].attrs["sinks"]}
    )


_INTERVALS = f"{CONFIDENCE:.0%}, jackknife-t over prompts, the same prompt left out of both"


def _as_dataset(found: Together, losses: list[Tensor]) -> xr.Dataset:
    table = side_by_side(found.traces, MODELS)
    paired = paired_differences(found.traces, found.estimates, MODELS[1:]).isel(other=0, drop=True)
    names = {name: f"{name}_difference" for name in MEASURES}
    names |= {f"{name}_interval": f"{name}_difference_interval" for name in MEASURES}
    different = torch.from_numpy(found.traces[0].repeats.values < 0)
    ranks = [
        torch.from_numpy(trace.effective_rank_unit_rows.sel(sinks=_REMOVED).values)[different] for trace in found.traces
    ]
    rows = [each[different] for each in losses]
    own = _both("effective_rank", ("layer", "site"), ranks) | _both("loss", (), rows)
    coords = {"model": list(MODELS), "site": list(SITES), "bound": list(BOUNDS)}
    return xr.merge([table, paired.rename(names), xr.Dataset(own, coords=coords)], compat="override", join="outer")


def _both(name: str, dims: tuple[str, ...], values: Sequence[Tensor]) -> dict[str, Any]:
    """Return the mean over texts in both, and the mean difference with its interval."""
    gap = values[1] - values[0]
    count = len(gap)
    left = (gap.sum(dim=0) - gap) / max(1, count - 1)
    interval = jackknife_interval(gap.mean(dim=0), left, CONFIDENCE)
    return {
        name: (("model", *dims), np.stack([each.mean(dim=0).numpy() for each in values])),
        f"{name}_difference": (dims, gap.mean(dim=0).numpy()),
        f"{name}_difference_interval": ((*dims, "bound"), interval.numpy()),
    }
