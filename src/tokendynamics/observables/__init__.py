"""Functions of token states: lengths, distances, agreement, ranks, clusters, half spaces, energies, forms.

Every function takes states `x` of shape (…, token, dim), as a torch tensor, a numpy array or nested lists, and
answers in the type that came in. Leading axes are independent systems. The arithmetic is float64 whatever came
in; results have the dtype of `x` (float32 stays float32, half precision comes back as float32).
"""

from __future__ import annotations

from tokendynamics.observables._distances import (
    agreement_with_first,
    consensus,
    diameter,
    effective_rank,
    first_token_function,
    mean_pair_cosine,
    norms,
    pairwise_distances,
    rank_one_distance,
    stable_rank,
)
from tokendynamics.observables._interactions import (
    interaction_energy,
    interaction_sums,
    log_interaction,
    log_interaction_energy,
    log_interaction_gradient,
    log_interaction_sums,
    log_potential,
    pair_quadratic_form,
    pair_quadratic_form_rate,
    potential,
    quadratic_form,
    quadratic_form_rate,
    quadratic_form_rate_bound,
    riemannian_metric,
)
from tokendynamics.observables._repetition import repetition
from tokendynamics.observables.direction_clustering import clusters, direction_clusters
from tokendynamics.observables.half_space import (
    coordinate_along,
    direction_deficit,
    hemisphere,
    hemisphere_function,
    wendel_probability,
)
from tokendynamics.observables.share_decomposition import Shares, relative_kappa, shares

__all__ = [
    "Shares", "agreement_with_first", "clusters", "consensus", "coordinate_along", "diameter", "direction_clusters",
    "direction_deficit", "effective_rank", "first_token_function", "hemisphere", "hemisphere_function",
    "interaction_energy", "interaction_sums", "log_interaction", "log_interaction_energy", "log_interaction_gradient",
    "log_interaction_sums", "log_potential", "mean_pair_cosine", "norms", "pair_quadratic_form",
    "pair_quadratic_form_rate", "pairwise_distances", "potential", "quadratic_form", "quadratic_form_rate",
    "quadratic_form_rate_bound", "rank_one_distance", "relative_kappa", "repetition", "riemannian_metric", "shares",
    "stable_rank", "wendel_probability",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
