"""`positional` Remark 3.2: distances in ‖·‖_A for A that is not symmetric, on random states."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.positional.flows import contraction_flow
from reproductions.positional.outcomes import positive_definite
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures, observables
from tokendynamics.numerics.arguments import generator

PRINTED = published("positional", "remark_3_2")
TOKENS, DIM = 4, 2


@timed
def reproduce(*, draws: int = 1500, seed: int = 32) -> Record:
    """Measure d/dt q_A(x_i − x_j) in random states of random flows with A_sym ≻ 0, and with A symmetric."""
    random = generator(seed)
    contraction = positive_definite(draws, DIM, random)
    qk = torch.randn(draws, DIM, DIM, dtype=torch.float64, generator=random)
    states = torch.randn(draws, TOKENS, DIM, dtype=torch.float64, generator=random)
    rates = {
        "A not symmetric": lowest_rates(contraction, qk, states),
        "A symmetric": lowest_rates((contraction + contraction.mT) / 2, qk, states),
    }
    skewed, symmetric = (float((values < -1e-9).mean()) for values in rates.values())
    quantities = PRINTED.quantities({"falls": skewed, "skewed": skewed, "symmetric": symmetric})
    return PRINTED.record(quantities, {"rates": rates}, seed=seed, draws=draws, tokens=TOKENS, dim=DIM)


def lowest_rates(contraction: torch.Tensor, qk: torch.Tensor, states: torch.Tensor) -> np.ndarray:
    """Return the lowest d/dt q_A(x_i − x_j) of all pairs, over the largest |·| of any, (draw,)."""
    velocity = contraction_flow(contraction.unsqueeze(1), qk.unsqueeze(1)).velocity(states)
    rates = observables.pair_quadratic_form_rate(contraction, states, velocity)
    first, second = np.triu_indices(states.shape[-2], k=1)
    pairs = rates[:, first, second]
    return (pairs.amin(dim=-1) / pairs.abs().amax(dim=-1)).numpy()


def draw(record: Record) -> Figure:
    """Draw how the lowest rates are distributed, for both kinds of A."""
    rates = record.results["rates"]
    levels = np.linspace(-1, 1, 201)
    below = [np.mean(values[:, None] <= levels, axis=0) for values in rates.values()]
    label = "share of states at or below"
    figure = figures.over_time(
        levels, below, label, names=list(rates), time_label="lowest rate of a pair / largest", width=figures.SINGLE
    )
    figure.axes[0].axvline(0, color="0.6", lw=0.6, zorder=0.9)
    return footnote(figure, record, "Left of 0 some distance falls.")
