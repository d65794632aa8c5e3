"""The attention without its logic: what it writes becomes the best sum of functions of one category each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tokendynamics.circuits.evidence.trial import Trial, chunk_length


def additive_attention(trial: Trial) -> Tensor:
    """Outputs when attention writes ``Σ_j f_ij(X_j)`` at token i, the f_ij fitted to what it wrote.

    The least-squares fit on sequences drawn apart takes away all that attention makes of two categories or more: pairs
    weighed by ``k^t q``, products of weights that depend on one category and values that depend on another, and what
    the sum in a softmax mixes. An attention that only carries categories, one by one, is reproduced exactly. Unlike
    exchanged keys, and unlike a block of ``k^t q`` on its own, the hidden units still see streams like those that they
    were made for. What interaction the answers then have left is made after the attention.

    Intervals of what follows from these outputs are for the functions as fitted.

    Args:
        trial: Model and sequences.

    Returns:
        Shape (sequence, token from 2 on).
    """
    model, terms = trial.model, _fit(trial)

    def read(x: Tensor) -> Tensor:
        written = (_one_hots(trial, x) @ terms).reshape(*x.shape, model.width)
        return model.read(written + model.skip * model.embed(x))

    return trial.run(read, trial.x)


def _one_hots(trial: Trial, x: Tensor) -> Tensor:
    """One-hots of all categories of a sequence side by side, (sequence, token · category)."""
    return one_hot(x - 1, trial.task.categories).double().flatten(1)


def _fit(trial: Trial) -> Tensor:
    """The functions f_ij, (token j · category, token i · feature)."""
    gram, moment = torch.zeros(()), torch.zeros(())
    for chunk in trial.fitting.split(chunk_length(trial.model, trial.fitting.shape[1])):
        seen = _one_hots(trial, chunk)
        gram = gram + seen.mT @ seen
        moment = moment + seen.mT @ trial.model.attend(chunk).flatten(1)
    # The one-hots of each token sum to one, so the system is singular and consistent.
    return torch.linalg.pinv(gram, hermitian=True) @ moment
