"""Instrument 5: how much of the interaction a linear readout finds in what the attention writes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from tokendynamics.circuits.evidence.instrument import Estimate, Found, Instrument
from tokendynamics.circuits.evidence.trial import Trial, chunk_length

Features = Callable[[Tensor], Tensor]

# Ridge on standardized features: settles collinear ones, and moves no other coefficient by more than this share.
_RIDGE = 1e-9
# Relative size below which a feature's spread is rounding.
_CONSTANT = 1e-12


# The attention holds the interaction from the first R² on, and does not below the second.
_HOLDS, _LACKS = 0.5, 0.1


def probing(trial: Trial) -> Instrument:
    """Measure R² of Y_i from the attention's output beyond additive one-hots, before the layer norm and after it.

    At each position a least-squares readout of Y_i sees the one-hots of X_{i−1} and X_i, without and with the
    attention's output as further features; the fall of the squared error, as a share of what it was, is the R² (the
    one-hots alone leave the interaction). Readouts are made position by position because an attention may write its
    answer to a feature of the position. They are fitted on sequences drawn apart and judged on the trial's; intervals
    are over those, for the readouts as fitted.

    A readout finds what is there, used or not, and a path that carries a tenth of q_true gives 1 as well. So it says
    nothing of the feed-forward part where it finds the interaction; where it finds less than half, the rest is made
    later. The norm divides by a number that depends on both categories: what is found after it is partly its own doing.

    Args:
        trial: Model and sequences.
    """
    model = trial.model
    probes: dict[str, Features] = {"before the norm": lambda x: model.attend(x)}
    norm = model.norm
    if norm is not None:
        probes["after the norm"] = lambda x: norm(model.stream(x))
    additive = _residuals(trial, lambda x: torch.zeros(*x.shape, 0, dtype=torch.float64))
    left = additive * float(trial.has_logic)
    estimates = [trial.ratio(name, additive - _residuals(trial, features), left) for name, features in probes.items()]
    before = estimates[0]
    holds, some = before.above(_HOLDS), before.above(_LACKS)
    attention: Found = True if holds else False if some is False else None
    feed_forward: Found = True if holds is False else None
    return Instrument(
        "probing",
        "R² of the interaction in the attention's output (decodable, not therefore used)",
        attention,
        feed_forward,
        tuple(estimates),
        _sentence(trial, estimates),
        {"readouts": "one for each position", "fitted on": trial.fitting.shape[0]},
    )


def _residuals(trial: Trial, features: Features) -> Tensor:
    """Squared errors on the trial's sequences, summed over tokens from 2 on, of readouts fitted apart, (sequence,)."""
    coefficients, centre = _fit(trial, features)

    def errors(x: Tensor) -> Tensor:
        seen = _with_one_hots(trial, features, x) - centre
        return trial.task.targets(x) - (seen[..., None, :] @ coefficients)[..., 0, 0] - trial.task.q_true.mean()

    return trial.run(errors, trial.x).square().sum(dim=1)


def _with_one_hots(trial: Trial, features: Features, x: Tensor) -> Tensor:
    """Return a constant, one-hots of the previous and the current category, and the features, (sequence, token, …)."""
    current = one_hot(x - 1, trial.task.categories).double()
    previous = pad(current[:, :-1], (0, 0, 1, 0))
    return torch.cat([torch.ones(*x.shape, 1, dtype=torch.float64), previous, current, features(x)], dim=-1)


def _fit(trial: Trial, features: Features) -> tuple[Tensor, Tensor]:
    """Coefficients (token, feature, 1) and the features' means (token, feature)."""
    x, task = trial.fitting, trial.task
    chunks = x.split(chunk_length(trial.model, x.shape[1]))
    centre = sum((_with_one_hots(trial, features, chunk).sum(dim=0) for chunk in chunks), torch.zeros(())) / len(x)
    centre[:, 0] = 0.0  # the constant stays one
    gram, moment = torch.zeros(()), torch.zeros(())
    for chunk in chunks:
        seen = (_with_one_hots(trial, features, chunk) - centre).transpose(0, 1)  # (token, sequence, feature)
        wanted = (task.targets(chunk) - task.q_true.mean()).T[..., None]
        gram = gram + seen.mT @ seen / len(x)
        moment = moment + seen.mT @ wanted / len(x)
    spread = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    size = (spread.square() + centre.square()).sqrt()
    scale = torch.where(spread > _CONSTANT * size, 1.0 / spread, torch.zeros_like(spread))
    standard = gram * scale[:, :, None] * scale[:, None, :]
    ridge = _RIDGE * torch.eye(standard.shape[-1], dtype=torch.float64)
    return scale[..., None] * torch.linalg.solve(standard + ridge, scale[..., None] * moment), centre


def _sentence(trial: Trial, estimates: list[Estimate]) -> str:
    if not trial.has_logic:
        return "q_true has no interaction that could be read."
    before = f"a linear readout of the attention's output finds {estimates[0].number} of the interaction"
    if len(estimates) == 1:
        return f"{before}."
    return f"{before}, and after the norm {estimates[1].number}, part of which is the norm's own doing."
