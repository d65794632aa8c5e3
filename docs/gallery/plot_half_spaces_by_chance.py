"""
Half spaces by chance
=====================

How often uniform tokens in three dimensions share an open half space: 400 draws, Wendel's sum, and the sum that
the paper prints, one term shorter.
"""

from math import comb

import torch

import tokendynamics as td

dim, draws = 3, 400
counts = list(range(2, 11))
frequency, exact, printed = [], [], []
for tokens in counts:
    states = td.Sphere().sample(tokens, dim, (draws,), seed=tokens)
    frequency.append(
        float((td.observables.hemisphere(states).margin > 1e-12).double().mean())
    )
    exact.append(td.observables.wendel_probability(tokens, dim))
    printed.append(
        2.0 ** (1 - tokens) * sum(comb(tokens - 1, term) for term in range(dim - 1))
    )
assert max(abs(a - b) for a, b in zip(frequency, exact, strict=True)) < 0.1

td.figures.over_time(
    counts,
    torch.tensor([frequency, exact, printed], dtype=torch.float64),
    "probability of a common half space",
    names=["400 draws", "Wendel's sum", "as printed"],
    time_label="number of tokens",
)
