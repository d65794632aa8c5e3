"""Puts what was measured on several networks into sentences, and names every choice that they hang on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis._compared_words import (
    WEIGHTS_DIFFER,
    end_finding,
    parting_finding,
    tokens_finding,
    updates_finding,
    weights_finding,
)
from tokendynamics.diagnosis._feed_forward_differences import FeedForwardDifferences
from tokendynamics.diagnosis._feed_forward_words import feed_forward_finding
from tokendynamics.diagnosis._first_difference import JUMP, NEIGHBOURS, ROUNDINGS, TIMES_NEIGHBOURS, Parting
from tokendynamics.diagnosis._halved_parts import HalvedParts
from tokendynamics.diagnosis._halved_words import halved_convention, halved_finding
from tokendynamics.diagnosis._leading_subspaces import LEADING
from tokendynamics.diagnosis._tensor_differences import TIMES_OTHERS, TensorDifferences
from tokendynamics.diagnosis._tensor_words import tensors_finding, tensors_of_layer
from tokendynamics.diagnosis._together import Together
from tokendynamics.diagnosis._verdict import Verdict
from tokendynamics.words import Convention, Finding


@dataclass(frozen=True)
class Measured:
    """What was measured on several networks.

    Attributes:
        together: What their tokens do.
        products: How their attention weights differ, and why not; None if that was not asked for.
        feed_forward: Likewise their feed-forward weights.
        tensors: Likewise the stored tensors of their blocks, of each but the first.
        halved: What halving each part does to their losses; None if that was not asked for.
        coarsest: Of each but the first, the coarser of its dtype and the first's.
    """

    together: Together
    products: tuple[xr.Dataset, tuple[str, ...]] | None
    feed_forward: FeedForwardDifferences | None
    tensors: tuple[TensorDifferences, ...] | None
    halved: HalvedParts | None
    coarsest: tuple[torch.dtype, ...]

    @property
    def weights(self) -> xr.Dataset | None:
        """How the weights differ, in one dataset."""
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
    found = measured.together
    ends = [float(trace.consensus_relative.sel(site="feed_forward")[-1]) for trace in found.traces]
    sentences: list[Finding | None] = []
    for place, other in enumerate(names[1:]):
        pair, own, dtype = (names[0], other), differences.isel(other=place), measured.coarsest[place]
        both = (verdicts[0], verdicts[place + 1])
        sentences.append(end_finding(pair, both, (ends[0], ends[place + 1]), own))
        in_words = str(dtype).removeprefix("torch.")
        through = _tensors_at(partings[place], measured, place)
        sentences.append(parting_finding(pair, partings[place], found.unpaired[place], in_words, through))
        sentences.append(updates_finding(pair, own))
        if measured.halved is not None:
            sentences.append(halved_finding(pair, measured.halved, place, torch.finfo(dtype).eps))
        sentences += _weights_findings(pair, measured, place)
    depths = [trace.sizes["layer"] - 1 for trace in found.traces]
    trace = found.traces[0]
    repeated = [str(name) for name, of in zip(trace.prompt.values, trace.repeats.values, strict=True) if of >= 0]
    sentences.append(
        tokens_finding(
            found.tokens_shared, _left_out(found.traces), depths, repeated, counts_shared=found.counts_shared
        )
    )
    return tuple(each for each in sentences if each is not None)


def _tensors_at(parting: Parting | None, measured: Measured, place: int) -> list[str]:
    """Return the stored tensors that make the first difference: those of its layer that differ unlike others."""
    if parting is None or parting.first is None or measured.tensors is None or parting.first.layer < 1:
        return []
    return tensors_of_layer(measured.tensors[place], parting.first.layer)


def _weights_findings(pair: tuple[str, str], measured: Measured, place: int) -> list[Finding]:
    if measured.products is None or measured.feed_forward is None or measured.tensors is None:
        text = f"The weights of {pair[1]} and {pair[0]} are not compared: not asked for."
        return [Finding(text, "weights", {"why": "not asked for"})]
    (products, unlike), parts = measured.products, measured.feed_forward
    if unlike[place] and unlike[place] == parts.reasons[place]:
        text = f"The weights of {pair[1]} and {pair[0]} are not compared: {unlike[place]}."
        return [Finding(text, "weights", {"why": unlike[place]})]
    table = parts.table.isel(other=place)
    return [
        weights_finding(pair, products.isel(other=place), unlike[place]),
        feed_forward_finding(pair, table, parts.reasons[place], parts.unmatched[place]),
        tensors_finding(pair, measured.tensors[place]),
    ]


def _left_out(traces: Sequence[xr.Dataset]) -> int:
    """Return how many tokens are left out at the layer where most are, over all prompts."""
    counts = traces[0].token_count
    return int(np.max((counts.sel(sinks="kept") - counts.sel(sinks="removed")).sum("prompt").values))


def conventions_in(measured: Measured) -> tuple[Convention, ...]:
    """Return every choice that the numbers of a comparison hang on.

    Args:
        measured: On the networks.
    """
    attrs = measured.together.traces[0].attrs
    chosen = [
        Convention("Sinks", attrs["sinks"], "each model would be measured on tokens of its own"),
        Convention(
            "First difference",
            f"the first part whose updates differ by more than {ROUNDINGS:g} roundings where all parts before it "
            f"agree, or that on the same inputs differs by {TIMES_NEIGHBOURS:g} times the median of the same parts of "
            f"{NEIGHBOURS} layers on either side and by as many deviations more; where blocks of one do not run on "
            f"states of the other, by {JUMP:g} times what its input differs, beside the median of the other parts",
            "against zero, layer 1 is the first of any two networks with the same embedding",
        ),
        Convention(
            "Intervals", f"{attrs['intervals']}; the same prompt is left out of both models", "unpaired ones are longer"
        ),
        Convention("Precision", attrs["precision"], "half precision adds noise of about 1e-3 to each cosine"),
    ]
    if measured.weights is not None:
        chosen += [
            Convention(
                "Weights",
                "QK and OV products of matched heads with the norm's gain folded in, relative Frobenius norm; they "
                f"differ from {WEIGHTS_DIFFER:g}; angles between the {LEADING} leading directions",
                "factors themselves differ where nothing of what the network computes does",
            ),
            Convention(
                "Feed-forward weights",
                "matrices of one name and shape, the gain of the norm before them folded in where it is found, hidden "
                f"units in the order that fits; angles between the {LEADING} leading directions of what they read or "
                "write; experts as they are stored",
                "experts in another order, or a factor moved from one matrix to the next, count as a difference",
            ),
            Convention(
                "Stored tensors",
                "every tensor of a block with that of its name, biases and norms included, as they are stored; one "
                f"stands out from {TIMES_OTHERS:g} times the median of its name in the other layers, and as many "
                "deviations more",
                "stored tensors may differ where nothing of what the network computes does",
            ),
        ]
    if measured.halved is not None:
        chosen.append(Convention(*halved_convention()))
    return tuple(chosen)
