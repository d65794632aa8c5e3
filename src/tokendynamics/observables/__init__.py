"""Functions of token states: lengths, distances, agreement, ranks, clusters, half spaces, energies, forms.

Every function takes states `x` of shape (…, token, dim), as a torch tensor, a numpy array or nested lists, and
answers in the type that came in. Leading axes are independent systems. The arithmetic is float64 whatever came
in; results have the dtype of `x` (float32 stays float32, half precision comes back as float32).
"""

from __future__ import annotations

from tokendynamics.observables.agreement import agreement_with_first, consensus, first_token_function, mean_pair_cosine
from tokendynamics.observables.clustering import clusters
from tokendynamics.observables.distances import diameter, norms, pairwise_distances
from tokendynamics.observables.energies import interaction_energy, log_interaction_energy, log_potential, potential
from tokendynamics.observables.half_space import Hemisphere, hemisphere
from tokendynamics.observables.half_space_functions import coordinate_along, direction_deficit, hemisphere_function
from tokendynamics.observables.interactions import (
    interaction_sums,
    log_interaction,
    log_interaction_gradient,
    log_interaction_sums,
)
from tokendynamics.observables.quadratic import (
    pair_quadratic_form,
    pair_quadratic_form_rate,
    quadratic_form,
    quadratic_form_rate,
    quadratic_form_rate_bound,
)
from tokendynamics.observables.rank import effective_rank, rank_one_distance, stable_rank
from tokendynamics.observables.riemannian import riemannian_metric
from tokendynamics.observables.summary import summarize
from tokendynamics.observables.wendel import wendel_probability

__all__ = [
    "Hemisphere",
    "agreement_with_first",
    "clusters",
    "consensus",
    "coordinate_along",
    "diameter",
    "direction_deficit",
    "effective_rank",
    "first_token_function",
    "hemisphere",
    "hemisphere_function",
    "interaction_energy",
    "interaction_sums",
    "log_interaction",
    "log_interaction_energy",
    "log_interaction_gradient",
    "log_interaction_sums",
    "log_potential",
    "mean_pair_cosine",
    "norms",
    "pair_quadratic_form",
    "pair_quadratic_form_rate",
    "pairwise_distances",
    "potential",
    "quadratic_form",
    "quadratic_form_rate",
    "quadratic_form_rate_bound",
    "rank_one_distance",
    "riemannian_metric",
    "stable_rank",
    "summarize",
    "wendel_probability",
]
