"""Windows of a long row of tokens: at random for training, one after the other for an evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch.utils.data import Dataset

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected


class RandomWindows(Dataset[Mapping[str, np.ndarray]]):
    """Windows that begin anywhere; window i depends on the seed and on i alone, however a run was interrupted.

    Args:
        tokens: (token,), may be mapped from a file.
        length: Tokens of a window.
        seed: Of the beginnings.
        draws: How many windows there are.

    >>> windows = RandomWindows(np.arange(100), 5, seed=0, draws=10)
    >>> len(windows), np.diff(windows[3]["ids"]).tolist(), bool((windows[3]["ids"] == windows[3]["ids"]).all())
    (10, [1, 1, 1, 1], True)
    """

    def __init__(self, tokens: np.ndarray, length: int, *, seed: int, draws: int) -> None:
        self._tokens, self._length, self._seed, self._draws = tokens, length, seed, draws

    def __len__(self) -> int:
        return self._draws

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self._draws:
            raise IndexError(index)
        begins = len(self._tokens) - self._length + 1
        begin = int(np.random.default_rng([self._seed, index]).integers(begins))
        return {"ids": self._tokens[begin : begin + self._length]}


class AdjoiningWindows(Dataset[Mapping[str, np.ndarray]]):
    """Windows side by side, each beginning with the last token of the one before.

    So every token but the first is foretold once. What is left at the end, less than a window, is left out.

    Args:
        tokens: (token,).
        length: Tokens of a window, one of which only begins it.

    >>> [window["ids"].tolist() for window in AdjoiningWindows(np.arange(8), 4)]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // (self._length - 1)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin = index * (self._length - 1)
        return {"ids": self._tokens[begin : begin + self._length]}


def check_length(splits: Mapping[str, np.ndarray], length: int, unit: str, data: str) -> None:
    """Refuse a split that is shorter than one window.

    Raises:
        ArgumentValueError: The split and its length are named.
    """
    for name, tokens in splits.items():
        if len(tokens) < length:
            wanted = f"at least {length} {unit} in each split: one context and the {unit[:-1]} after it"
            came = f"{len(tokens)} in the {name} split of {data}"
            raise ArgumentValueError(expected("data", wanted, came, "take more text, or a smaller context"))
