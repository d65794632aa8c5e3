"""Handwritten digits of scikit-learn, which come with it: real images for a small vision network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.extras import require
from tokendynamics.training.tasks._labelled_images import EpochOrder, ImageTask, held_out, stacked
from tokendynamics.training.tasks._task import Item

_SIZE = 8
_CLASSES = 10
_CHANNELS = 3
_WHITE = 16
_MEAN = _STD = 0.5
_SPLIT_SEED = 20_261_124
"""Of which images are held out: the same for every run, so that no run trains on what another is tested on."""


class Digits(ImageTask):
    """Telling which of ten digits was written: 1,797 images of 8 × 8 pixels in 17 grey levels.

    A fifth of every digit is the test split, a fifth of the others the validation split. The grey level stands in all
    three channels, from −1 to 1, so that the network reads any image that its processor reads. Patches of 2 × 2 give
    16 tokens. There are no options, and no augmentation.

    >>> task = Digits.of("digits", {}, seed=0, draws=8)
    >>> task.training_batch([task.training[0], task.training[1]])["pixel_values"].shape
    torch.Size([2, 3, 8, 8])
    """

    def __init__(self, training: Dataset[Item], validation: Dataset[Item], test: Dataset[Item]) -> None:
        self.training, self.validation, self.test = training, validation, test

    @classmethod
    def of(cls, data: str, options: Mapping[str, Any], seed: int, draws: int) -> Digits:
        """Return the task; `data` is ``"digits"``.

        Raises:
            ArgumentValueError: Other data, an option, or scikit-learn is not installed.
        """
        if data != "digits":
            raise ArgumentValueError(expected("data", "'digits', which come with scikit-learn", repr(data)))
        if options:
            raise ArgumentValueError(expected("options", "none for 'digits'", ", ".join(options)))
        require("training", "data", "the digits of scikit-learn")
        from sklearn.datasets import load_digits

        data_set: Any = load_digits()
        labels = np.asarray(data_set.target, dtype=np.int64)
        pixels = (np.asarray(data_set.images, dtype=np.float32) / _WHITE - _MEAN) / _STD
        rest, test = held_out(labels, 0.2, _SPLIT_SEED)
        kept, apart = held_out(labels[rest], 0.2, _SPLIT_SEED)
        training, validation = rest[kept], rest[apart]
        order = EpochOrder(len(training), seed=seed, draws=draws)
        return cls(
            _Shown(pixels[training], labels[training], order),
            _Shown(pixels[validation], labels[validation], range(len(validation))),
            _Shown(pixels[test], labels[test], range(len(test))),
        )

    def fitted(self) -> dict[str, Any]:
        """Return size and channels of an image, and the number of classes."""
        return {"image_size": _SIZE, "channels": _CHANNELS, "num_labels": _CLASSES}

    def training_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return pixel_values (image, channel, row, column) and labels (image,)."""
        pixels, labels = stacked(items)
        return {"pixel_values": pixels.unsqueeze(1).repeat(1, _CHANNELS, 1, 1), "labels": labels}

    def evaluation_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """See `training_batch`."""
        return self.training_batch(items)

    def save_inputs(self, folder: Path) -> None:
        """Write the image processor, by which an image of any size becomes one of 8 × 8."""
        from transformers import ViTImageProcessorPil

        size = {"height": _SIZE, "width": _SIZE}
        means, stds = [_MEAN] * _CHANNELS, [_STD] * _CHANNELS
        ViTImageProcessorPil(size=size, image_mean=means, image_std=stds).save_pretrained(folder)


class _Shown(Dataset[Item]):
    """Images (image, row, column) and labels (image,) in an order."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, order: Sequence[int] | EpochOrder) -> None:
        self._pixels, self._labels, self._order = pixels, labels, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self._order[index]
        return {"pixels": self._pixels[number], "label": int(self._labels[number])}
