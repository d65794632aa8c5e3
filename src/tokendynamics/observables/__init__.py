"""Functions of token states: lengths, distances, agreement, ranks, clusters, half spaces, energies.

Every function takes states `x` of shape (…, token, dim), as a torch tensor, a numpy array or nested lists, and
answers in the type that came in. Leading axes are independent systems. The arithmetic is float64 whatever came
in; results have the dtype of `x` (float32 stays float32, half precision comes back as float32).
"""

from __future__ import annotations

from tokendynamics.observables.agreement import consensus, mean_pair_cosine
from tokendynamics.observables.clustering import clusters
from tokendynamics.observables.distances import norms, pairwise_distances
from tokendynamics.observables.energies import log_potential, potential, quadratic_form
from tokendynamics.observables.half_space import Hemisphere, hemisphere
from tokendynamics.observables.rank import effective_rank, rank_one_distance, stable_rank
from tokendynamics.observables.summary import summarize

__all__ = [
    "Hemisphere",
    "clusters",
    "consensus",
    "effective_rank",
    "hemisphere",
    "log_potential",
    "mean_pair_cosine",
    "norms",
    "pairwise_distances",
    "potential",
    "quadratic_form",
    "rank_one_distance",
    "stable_rank",
    "summarize",
]
