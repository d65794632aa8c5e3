"""The variables of a trace: their axes, and a description of each, stored as its attribute ``description``."""

from __future__ import annotations

import xarray as xr

from tokendynamics.pretrained.edits.variant import PARTS
from tokendynamics.results.tables import Dims

SITES = ("attention", "feed_forward", "final_norm")
COMPONENTS = SITES
SINK_HANDLING = ("kept", "removed")
SHARES = ("common", "prompt", "own")
BOUNDS = ("low", "high")
LABELS = {
    "site": SITES, "sinks": SINK_HANDLING, "component": COMPONENTS, "part": PARTS, "bound": BOUNDS, "share": SHARES,
}  # fmt: skip
"""What stands along these axes."""

AXES: Dims = {
    "mean_pair_cosine": ("prompt", "layer", "site", "sinks"),
    "norm_median": ("prompt", "layer", "site", "sinks"),
    "component_change": ("prompt", "layer", "component"),
    "massive_count": ("prompt", "layer"),
    "token_text": ("prompt", "token"),
    "text": ("prompt",),
}
"""Variables that every reader of a stored trace asks for; the rest stands and falls with them."""

DESCRIPTIONS: dict[str, str] = {
    # (prompt, layer, site, sinks)
    "consensus_first": "E = 1 − mean |cos| with the first token that counts (asymptotic (25)); 0 is consensus",
    "consensus_first_signed": "1 - mean cos with the first token that counts; 0 to 2",
    "consensus_last": "E = 1 − mean |cos| with the last token that counts (asymptotic (25)); 0 is consensus",
    "mean_pair_cosine": "mean cosine over pairs of different tokens; NaN where fewer than two count",
    "effective_rank": "exp of the entropy of the squared singular values",
    "effective_rank_unit_rows": "the same of unit rows, so that no large token dominates",
    "stable_rank": "squared Frobenius norm over squared spectral norm",
    "stable_rank_unit_rows": "the same of unit rows",
    "rank_one_distance": "relative Frobenius distance to identical rows",
    "norm_median": "median of the tokens' norms",
    "norm_lower_quartile": "lower quartile of the tokens' norms",
    "norm_upper_quartile": "upper quartile of the tokens' norms",
    "distance_mean": "mean distance over pairs of different tokens; NaN where fewer than two count",
    # (prompt, layer)
    "massive_count": "number of tokens whose norm stands out after that layer",
    "massive_norm": "the largest norm among them; NaN without one",
    "massive_share": "their share of the sum of all norms",
    "massive_position": "position of the largest; -1 without one",
    # parts
    "component_change": "change of the mean pair cosine by each part, over tokens that are massive in no layer; sums "
    "to the change from layer 0 to the end",
    "component_share": "share of all absolute changes",
    "update_ratio": "lower median over the tokens that count of |update| / |residual before it|",
    "token_count": "number of tokens that count",
    "token_text": "text of each token, padded with ''",
    # (prompt, layer, token)
    "attention_received": "mean attention received by a token, over heads and over the tokens at least four positions "
    "away that can attend to it; NaN for fewer than eight of these, at layer 0, and where attention is not accessible",
    "attention_accessible": "whether the weights that attention_received averages show in the pass of a prompt",
    "attention_sink_mass": "the largest attention_received of any token; NaN where none is known",
    "attention_sink_position": "the position of that token; -1 where none is known",
    "attention_uniform": "attention_received under uniform attention to all visible tokens",
    # over prompts (mathematics 10), of the tokens that count
    "shares": "shares of a token's direction: common to all prompts, shared within its prompt beyond that, and its "
    "own; sum 1; NaN for one prompt",
    "share_common": "common share alone: the anisotropy",
    "share_prompt": "prompt share alone",
    "share_own": "own share alone",
    "share_position": "what tokens at the same place of different prompts share beyond those at different places: of "
    "share_own this part belongs to the place, and share_own - share_position to the token",
    "cosine_elsewhere": "mean cosine of tokens at different places of different prompts: share_common without what a "
    "place gives",
    "cosine_at_distance": "mean cosine over pairs of tokens of one prompt that stand that many places apart, each "
    "prompt alike; NaN where none do",
    "pair_share": "share of the pairs of different tokens of one prompt whose cosine is in a bin around `cosine`, each "
    "prompt alike; sums to 1",
    "consensus_within": "κ, consensus: prompt share / (1 - common share); NaN where all directions are one",
    "consensus_relative": "κ′ = (κ - κ_0) / (1 - κ_0), κ_0 that of the embedding; NaN where κ_0 is nearly 1",
    "kappa_of_prompt": "consensus of each prompt alone; their mean is kappa",
    "centred_cos2": "mean cos^2 over pairs of different tokens of a prompt, after subtracting the mean direction of "
    "the other prompts",
    "line_excess": "variance of the centred cosine over those pairs, relative to the embedding: 0 for one point and "
    "for isotropic directions, 1 on a line in both directions",
    "kappa_change": "change of kappa by each part",
    "kappa_change_sum": "its sum over the layers",
    "repeats": "the first earlier prompt with the same tokens (their embedded states), -1 without one",
}


def described(table: xr.Dataset) -> xr.Dataset:
    """Add a description to each variable of a trace; intervals refer to that of their quantity."""
    for name, variable in table.data_vars.items():
        words = DESCRIPTIONS.get(str(name))
        if str(name).endswith("_interval"):
            words = f"ends of the interval over prompts: {DESCRIPTIONS[str(name).removesuffix('_interval')]}"
        if words is not None:
            variable.attrs["description"] = words
    return table
