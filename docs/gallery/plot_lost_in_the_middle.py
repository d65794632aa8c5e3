"""
Lost in the middle
==================

How much of a token the last one keeps, by where that token stands in the text. A causal mask favors the first tokens, a
decay with the distance the last ones, and what is in the middle is lost. Two lines are the closed form for long texts;
the third is measured in 8,000 random texts of 31 tokens under the mask alone. The correlation falls like one over the
length of the text, by which it is multiplied.
"""

import numpy as np

import tokendynamics as td

beta, tokens, time = 1.0, 31, 1.5
source = (np.arange(30).reshape(10, 3).mean(axis=1) + 1) / tokens
decaying, masked = (
    td.theorems.predict_position_correlation(time, source, beta=beta, decay=decay)
    for decay in (1.5, 0.0)
)
assert 0 < decaying.argmin() < masked.argmin() == len(source) - 1

attention = td.Attention(
    beta * np.eye(2),
    np.eye(2),
    causal=True,
    weights="exponential",
    normalization="plain",
)
start = td.Sphere().sample(tokens, 2, (8000,), seed=1)
run = td.simulate(td.Flow(attention, td.Sphere()), start, [0.0, time], rtol=1e-4)
cosines = (run.tensor[:, 1, -1:] * start[:, :-1]).sum(dim=-1).numpy()
measured = tokens * cosines.reshape(-1, 10, 3).mean(axis=(0, 2))
assert np.abs(measured - masked).max() < 0.6

td.figures.over_time(
    source,
    np.stack([decaying, masked, measured]),
    "correlation times length",
    names=["mask and decay", "mask alone", "mask alone, measured"],
    time_label="place in the text",
)
