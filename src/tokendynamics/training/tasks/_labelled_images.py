"""What tasks of labelled images share: what is held out, the order of the epochs, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_TOP = 5


class EpochOrder:
    """Every item once in an epoch, in an order of chance that the seed and the number of the epoch give.

    Args:
        items: How many there are, at least one.
        seed: Of the orders.
        draws: How many are taken in all.

    >>> order = EpochOrder(3, seed=0, draws=6)
    >>> sorted(order[draw] for draw in range(3)), sorted(order[draw] for draw in range(3, 6))
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, items: int, *, seed: int, draws: int) -> None:
        self._items, self._seed, self._draws = items, seed, draws
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._draws

    def __getitem__(self, draw: int) -> int:
        """Return the number of the item that is taken at a draw."""
        if not 0 <= draw < self._draws:
            raise IndexError(draw)
        epoch, place = divmod(draw, self._items)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._items)
        return int(self._order[place])


def held_out(labels: Sequence[int] | np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the items that are kept and of those that are held out, a share of every class.

    Of a class of two items or more at least one is held out and one kept; of a single item none is held out.

    >>> kept, apart = held_out([0, 1] * 10, 0.2, seed=0)
    >>> len(kept), (apart % 2).tolist()
    (16, [0, 0, 1, 1])
    """
    classes = np.asarray(labels)
    draw = np.random.default_rng(seed)
    kept, apart = [], []
    for label in np.unique(classes):
        members = draw.permutation(np.flatnonzero(classes == label))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        apart.append(np.sort(members[:count]))
        kept.append(np.sort(members[count:]))
    return np.concatenate(kept), np.concatenate(apart)


def top_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether the class of each image is the first, and among the first five, (image, 2) of zeros and ones.

    Args:
        logits: (image, class).
        labels: (image,), classes.
    """
    order = logits.topk(min(_TOP, logits.shape[-1]), dim=-1).indices
    right = order == labels.unsqueeze(-1)
    return torch.stack([right[:, 0], right.any(-1)], dim=-1).double()


def accuracies(loss: float, scores: Tensor | None) -> dict[str, float]:
    """Return the shares of images whose class is the first and among the first five, in percent, and the loss."""
    if scores is None:
        return {"loss": loss}
    first, among = (100 * scores.double().mean(0)).tolist()
    return {"top1": first, "top5": among, "loss": loss}
