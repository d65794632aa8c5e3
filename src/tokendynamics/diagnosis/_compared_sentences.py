"""Sentences and conventions of a comparison of several networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis._feed_forward_differences import FeedForwardDifferences
from tokendynamics.diagnosis._first_difference import JUMP, NEIGHBOURS, ROUNDINGS, TIMES_NEIGHBOURS, Parting
from tokendynamics.diagnosis._halved_words import halved_convention, halved_finding
from tokendynamics.diagnosis._leading_subspaces import LEADING
from tokendynamics.diagnosis._tensor_differences import TIMES_OTHERS, TensorDifferences
from tokendynamics.diagnosis._tensor_words import tensors_finding, tensors_of_layer
from tokendynamics.diagnosis._together import Together
from tokendynamics.diagnosis.compared_words import (
    WEIGHTS_DIFFER,
    because,
    end_finding,
    of_norm,
    parting_finding,
    tokens_finding,
    updates_finding,
    weights_finding,
    where_differing,
    without_partner,
)
from tokendynamics.diagnosis.halved_parts import HalvedParts
from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.words import Convention, Finding, factor, number, power_of_ten


def feed_forward_finding(names: tuple[str, str], weights: xr.Dataset, why: str, unmatched: Sequence[str]) -> Finding:
    """Say in which layers the matrices of the feed-forward parts differ.

    Args:
        names: Of the first network and the other one.
        weights: From `feed_forward_differences`, of the other one.
        why: Why some layers or all were not compared.
        unmatched: Matrices that only one of the networks has.
    """
    sizes, layers = weights.ff_difference.values, weights.layer.values
    known = ~np.isnan(sizes)
    if not known.any():
        reason = why or "none is in both networks with one name and shape"
        text = f"The feed-forward weights of {names[1]} and {names[0]} were not compared{because(reason)}."
        return Finding(text, "weights", {"why": reason})
    rest = f" Some layers were not compared{because(why)}." * bool(why) + without_partner(unmatched)
    differing = layers[np.nan_to_num(sizes, nan=0.0) > WEIGHTS_DIFFER]
    values = {"layers": differing.tolist(), "ff": sizes.tolist(), "unmatched": list(unmatched)}
    if not len(differing):
        text = f"The feed-forward matrices of {names[1]} and {names[0]} are equal in all compared layers."
        return Finding(text + rest, "weights", values)
    at = int(np.nanargmax(sizes))
    angle = float(weights.ff_angle.values[at])
    text = (
        f"The feed-forward matrices of {names[1]} and {names[0]} differ "
        f"{where_differing(differing, int(known.sum()))}, most in layer {layers[at]}: by "
        f"{of_norm(sizes[at], 'their')}, with {number(angle, 2)}° between their leading directions."
    )
    return Finding(text + rest, "weights", values)


@dataclass(frozen=True)
class Measured:
    """Measurements on several networks.

    Attributes:
        together: The traces of their tokens.
        products: Differences of their attention weights, and reasons where there are none; None if not requested.
        feed_forward: Likewise of their feed-forward weights.
        tensors: Likewise of the stored tensors of their blocks, for all but the first.
        halved: The effect of halving each part on their losses; None if not requested.
        coarsest: For all but the first, the coarser of its dtype and the first's.
    """

    together: Together
    products: tuple[xr.Dataset, tuple[str, ...]] | None
    feed_forward: FeedForwardDifferences | None
    tensors: tuple[TensorDifferences, ...] | None
    halved: HalvedParts | None
    coarsest: tuple[torch.dtype, ...]

    @property
    def weights(self) -> xr.Dataset | None:
        """The differences of the weights, in one dataset."""
        if self.products is None or self.feed_forward is None:
            return None
        return xr.merge([self.products[0], self.feed_forward.table])


def sentences_of(
    names: tuple[str, ...],
    measured: Measured,
    verdicts: Sequence[Verdict],
    partings: Sequence[Parting | None],
    differences: xr.Dataset,
) -> tuple[Finding, ...]:
    """Return the sentences of a comparison, those on one network after those on another.

    Args:
        names: Of the networks.
        measured: On them.
        verdicts: Of each.
        partings: Of all but the first; see `parting_of`.
        differences: From `paired_differences`.
    """
    together = measured.together
    ends = [float(trace.consensus_relative.sel(site="feed_forward")[-1]) for trace in together.traces]
    sentences: list[Finding | None] = []
    for place, other in enumerate(names[1:]):
        pair, difference, dtype = (names[0], other), differences.isel(other=place), measured.coarsest[place]
        both = (verdicts[0], verdicts[place + 1])
        sentences.append(end_finding(pair, both, (ends[0], ends[place + 1]), difference))
        in_words = str(dtype).removeprefix("torch.")
        through = _tensors_at(partings[place], measured, place)
        sentences.append(parting_finding(pair, partings[place], together.unpaired[place], in_words, through))
        sentences.append(updates_finding(pair, difference))
        if measured.halved is not None:
            sentences.append(halved_finding(pair, measured.halved, place, torch.finfo(dtype).eps))
        sentences += _weights_findings(pair, measured, place)
    depths = [trace.sizes["layer"] - 1 for trace in together.traces]
    trace = together.traces[0]
    repeated = [str(name) for name, first in zip(trace.prompt.values, trace.repeats.values, strict=True) if first >= 0]
    shared = together.tokens_shared, _left_out(together.traces)
    sentences.append(tokens_finding(*shared, depths, repeated, counts_shared=together.counts_shared))
    return tuple(finding for finding in sentences if finding is not None)


def _tensors_at(parting: Parting | None, measured: Measured, place: int) -> list[str]:
    """Return the stored tensors behind the first difference: those of its layer that differ more than in others."""
    if parting is None or parting.first is None or measured.tensors is None or parting.first.layer < 1:
        return []
    return tensors_of_layer(measured.tensors[place], parting.first.layer)


def _weights_findings(pair: tuple[str, str], measured: Measured, place: int) -> list[Finding]:
    if measured.products is None or measured.feed_forward is None or measured.tensors is None:
        text = f"The weights of {pair[1]} and {pair[0]} were not compared because this was not requested."
        return [Finding(text, "weights", {"why": "not requested"})]
    (products, unlike), parts = measured.products, measured.feed_forward
    if unlike[place] and unlike[place] == parts.reasons[place]:
        text = f"The weights of {pair[1]} and {pair[0]} were not compared{because(unlike[place])}."
        return [Finding(text, "weights", {"why": unlike[place]})]
    table = parts.table.isel(other=place)
    return [
        weights_finding(pair, products.isel(other=place), unlike[place]),
        feed_forward_finding(pair, table, parts.reasons[place], parts.unmatched[place]),
        tensors_finding(pair, measured.tensors[place]),
    ]


def _left_out(traces: Sequence[xr.Dataset]) -> int:
    """Return the number of excluded tokens over all prompts, in the layer where it is largest."""
    counts = traces[0].token_count
    return int(np.max((counts.sel(sinks="kept") - counts.sel(sinks="removed")).sum("prompt").values))


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
            f"agree, or that on identical inputs differs by {factor(TIMES_NEIGHBOURS)} the median of the same part in "
            f"{NEIGHBOURS} layers on either side plus as many median deviations. If blocks of one model cannot run on "
            f"states of the other: by {factor(JUMP)} the difference of its input, relative to the median of the others",
            "relative to zero, layer 1 is the first difference of any two networks with the same embedding",
        ),
        Convention(
            "Intervals",
            f"{attrs['intervals']}; the same prompt is left out of both models",
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
                f"{factor(TIMES_OTHERS)} the median over the same tensor of the other layers plus as many deviations",
                "stored tensors may differ although the network computes the same",
            ),
        ]
    if measured.halved is not None:
        chosen.append(Convention(*halved_convention()))
    return tuple(chosen)
