"""The measures of one look at a network: those of `tokendynamics.trace` after each layer that cost little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing.prompt_shares import SHARES, share_variables
from tokendynamics.diagnosis.tracing.prompt_trace import (
    SINK_RATIO,
    PromptTrace,
    Sites,
    find_sinks,
    sites_of,
    tokens_to_remove,
    update_ratios,
)
from tokendynamics.diagnosis.tracing.variables import SITES
from tokendynamics.observables.directions import lengths, refuse_zero_tokens
from tokendynamics.pretrained.edits.states import PackStates

DIMS: dict[str, tuple[str, ...]] = {
    **{f"share_{name}": ("layer",) for name in SHARES},
    "consensus_within": ("layer",),
    "consensus_relative": ("layer",),
    "centred_cos2": ("layer",),
    "line_excess": ("layer",),
    "share_common_interval": ("layer", "bound"),
    "consensus_relative_interval": ("layer", "bound"),
    "line_excess_interval": ("layer", "bound"),
    "update_ratio": ("layer", "component"),
    "attention_sink_mass": ("layer",),
    "attention_sink_uniform": ("layer",),
}
"""What is measured, over layers 0 … L, and the further axes of each."""

_AFTER_BLOCK = SITES.index("feed_forward")


def not_finite_at(passes: Sequence[PackStates]) -> int | None:
    """Return the first layer after which a state is no finite number, 0 for the embedding; None where all are.

    Args:
        passes: Of one look.
    """
    found = [
        layer
        for states in passes
        for layer, (attention, after) in enumerate(zip(states.attention, states.feed_forward, strict=True))
        # An attention that was not found is NaN, and so is every one at layer 0.
        if bool(attention.isinf().any()) or not bool(after.isfinite().all())
    ]
    return min(found, default=None)


def measured(passes: Sequence[PackStates]) -> dict[str, Float64[np.ndarray, "layer ..."]]:
    """Return the measures of the tokens that count, after each layer 0 … L, by the names of `DIMS`.

    Each is what `tokendynamics.trace` says at the site "feed_forward", massive tokens left out; of what it says of each
    prompt, the median over prompts (``update_ratio``) or their mean (``attention_sink_mass``, and beside it in
    ``attention_sink_uniform`` what that token would receive if all were attended alike). NaN where it is not defined.

    Args:
        passes: Of all prompts, each in one of them.

    Raises:
        ArgumentValueError: A token of length zero.
    """
    rows = [row for states in passes for row in _rows(states)]
    found = {name: values for name, (dims, values) in share_variables(rows).items() if "site" in dims}
    after = {name: values[:, _AFTER_BLOCK] for name, values in found.items() if name != "kappa_of_prompt"}
    shares = {f"share_{name}": after["shares"][:, place] for place, name in enumerate(SHARES)}
    shares["share_common_interval"] = after["shares_interval"][:, SHARES.index("common")]
    ratios = torch.from_numpy(np.stack([row.update_ratio for row in rows]))
    values = after | shares | _sinks(rows) | {"update_ratio": _median(ratios).numpy()}
    return {name: values[name] for name in DIMS}


def _rows(states: PackStates) -> Iterator[PromptTrace]:
    """Yield what each prompt of a pass leaves, as far as shares, updates and sinks need it."""
    attention, after = (part.detach().cpu() for part in (states.attention, states.feed_forward))
    depth = len(after)
    places = Sites(list(range(depth)), [_AFTER_BLOCK] * depth)
    for number, length in enumerate(states.lengths):
        x, y = after[:, number, :length], attention[1:, number, :length]
        exact = x.double()
        sizes = lengths(exact)
        refuse_zero_tokens(sizes == 0, "states")
        counted = ~tokens_to_remove(find_sinks(sizes, SINK_RATIO))
        count = counted.sum(dim=-1)
        sums = ((counted / sizes).unsqueeze(-2) @ exact).squeeze(-2)
        pairs = torch.where(count > 1, count * (count - 1), torch.nan)
        within = ((sums.square().sum(dim=-1) - count) / pairs)[:, None].expand(-1, 2)
        both = torch.cat([lengths(y.double()), sizes])
        yield PromptTrace(
            observables={"mean_pair_cosine": places.grid(within)},
            per_layer={},
            component_change=np.empty(0),
            token_count=torch.stack([torch.full_like(count, length), count], dim=-1).numpy(),
            tokens=[],
            unit_sums=places.grid(sums),
            update_ratio=update_ratios(y, x, both, counted, sites_of(depth, with_final_norm=False)),
            states=(x,),
            sizes=sizes,
            cosines=None,
            counted=counted,
            places=places,
            received=None if states.received is None else states.received[:, :, number, :length],
        )


def _sinks(rows: Sequence[PromptTrace]) -> dict[str, np.ndarray]:
    """Return the weight that the most attended token of a prompt receives, and its share of uniform attention."""
    found = torch.full((len(rows), 2, len(rows[0].token_count)), torch.nan, dtype=torch.float64)
    for place, row in enumerate(rows):
        if row.received is not None:
            received, uniform = row.received.double()
            most = received.nan_to_num(nan=-torch.inf).argmax(dim=-1, keepdim=True)
            found[place, :, 1:] = torch.stack([received.gather(-1, most), uniform.gather(-1, most)]).squeeze(-1)
    mean = found.nanmean(dim=0)
    return {"attention_sink_mass": mean[0].numpy(), "attention_sink_uniform": mean[1].numpy()}


def _median(values: Float[Tensor, "prompt ..."]) -> Float[Tensor, "*shape"]:
    """Return the median over prompts, between the middle two of an even number of them."""
    return torch.nanquantile(values, 0.5, dim=0)
