"""Images of many classes, such as ImageNet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import expected
from tokendynamics.training.tasks._augmentation import Augmentation, drawn_from
from tokendynamics.training.tasks._image_files import ImageFiles, LabelledImages, image_files
from tokendynamics.training.tasks._labelled_images import EpochOrder, accuracies, held_out, top_scores
from tokendynamics.training.tasks._options import checked_options
from tokendynamics.training.tasks._task import Item

_OPTIONS: dict[str, Any] = {
    "image_size": 224, "validation_share": 0.01, "mean": None, "std": None,
    "magnitude": 9.0, "mixup": 0.8, "cutmix": 1.0, "erasing": 0.25, "smoothing": 0.1,
}  # fmt: skip
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
_SHORTER_SIDE = 256 / 224
"""Of an image in an evaluation, in sides of the square in its middle that is seen."""
_SPLIT_SEED = 20_261_124
"""Of which images are held out: the same for every run."""


class Images:
    """Telling the class of an image, trained and tested as DeiT is.

    The data are a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or Parquet files; see `image_files`. The
    validation split is a share of every class of train, held out by a seed of its own, and the test split is val, as
    ImageNet's own test labels are not public: so nothing is chosen on the images whose accuracy is reported.

    In training an image is cropped at random (a share of 0.08 to 1 of its area, a ratio of 3/4 to 4/3), scaled to
    ``image_size``, turned over in half of the draws, and augmented with its batch (`Augmentation`). An evaluation
    scales the shorter side to 256/224 of ``image_size`` and sees the square in the middle.

    Options: ``image_size``; ``validation_share``; ``mean`` and ``std`` of the three colours, ImageNet's unless others
    are given; and the fields of `Augmentation`.
    """

    network = "vision"
    measure = "top1"

    def __init__(
        self, files: ImageFiles, share: float, processor: Any, augmentation: Augmentation, seed: int, draws: int
    ) -> None:
        kept, apart = held_out(files.train.labels, share, _SPLIT_SEED)
        if not len(apart):
            raise ArgumentValueError(expected("data", "a class of two images or more in train", "one image of each"))
        self.training: Dataset[Item] = _Cropped(files.train, kept, processor.crop_size.height, seed, draws)
        self.validation: Dataset[Item] = _Centred(files.train, apart, processor)
        self.test: Dataset[Item] = _Centred(files.val, np.arange(len(files.val)), processor)
        self._files, self._processor, self._augmentation, self._seed = files, processor, augmentation, seed

    @classmethod
    def of(cls, data: str, options: Mapping[str, Any], seed: int, draws: int) -> Images:
        """Return the task on the images at a path.

        Raises:
            ArgumentTypeError: An option of another kind.
            ArgumentValueError: No images there, one image of each class, an option that there is not, or one out of
                range.
        """
        given = checked_options(options, _OPTIONS)
        share = given.pop("validation_share")
        if not 0 < share <= 0.5:
            raise ArgumentValueError(expected("validation_share", "a share above 0, up to 0.5", share))
        mean, std = _colours(given.pop("mean"), "mean", _MEAN), _colours(given.pop("std"), "std", _STD)
        processor = _processor(given.pop("image_size"), mean, std)
        return cls(image_files(data), share, processor, Augmentation(**given), seed, draws)

    def fitted(self) -> dict[str, Any]:
        """Return size and channels of an image, and the classes with their names."""
        names = dict(enumerate(self._files.classes)) or None
        size = self._processor.crop_size.height
        return {"image_size": size, "channels": 3, "num_labels": self._files.count, "id2label": names}

    def training_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return pixel_values (image, channel, row, column) and labels (image, class), of one mixed batch.

        What is drawn depends on the seed and on the first item alone.
        """
        pixels, labels = _stacked(items)
        means, stds = torch.tensor(self._processor.image_mean), torch.tensor(self._processor.image_std)
        with drawn_from(self._seed, items[0]["draw"]):
            shown = self._augmentation.rand_augmented(pixels.movedim(-1, 1).float() / 255)
            erased = self._augmentation.erased((shown - means[:, None, None]) / stds[:, None, None])
            weights = self._augmentation.labelled(labels, self._files.count)
            mixed, weights = self._augmentation.mixed(erased, weights)
        return {"pixel_values": mixed, "labels": weights}

    def evaluation_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return pixel_values (image, channel, row, column) and labels (image,)."""
        pixels, labels = _stacked(items)
        return {"pixel_values": pixels, "labels": labels}

    def scores(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether each image's class is the first, and among the first five, (image, 2)."""
        return top_scores(logits, labels)

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return top-1 and top-5 accuracy in percent, and the mean loss in nats."""
        return accuracies(loss, scores)

    def save_inputs(self, folder: Path) -> None:
        """Write the image processor, by which evaluations read images too."""
        self._processor.save_pretrained(folder)


class _Cropped(Dataset[Item]):
    """Images as training sees them, each from a draw of its own."""

    def __init__(self, images: LabelledImages, numbers: np.ndarray, size: int, seed: int, draws: int) -> None:
        self._images, self._numbers, self._size, self._seed = images, numbers, size, seed
        self._order = EpochOrder(len(numbers), seed=seed, draws=draws)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, draw: int) -> dict[str, Any]:
        from PIL import Image

        number = int(self._numbers[self._order[draw]])
        chance = np.random.default_rng([self._seed, draw])
        image = self._images.opened(number)
        box = random_box(image.width, image.height, chance)
        seen = image.resize((self._size, self._size), Image.Resampling.BICUBIC, box)
        if chance.random() < 0.5:
            seen = seen.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return {"draw": draw, "pixels": np.asarray(seen), "label": int(self._images.labels[number])}


class _Centred(Dataset[Item]):
    """Images as an evaluation sees them."""

    def __init__(self, images: LabelledImages, numbers: np.ndarray, processor: Any) -> None:
        self._images, self._numbers, self._processor = images, numbers, processor

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self._numbers[index])
        pixels = self._processor(self._images.opened(number), return_tensors="np")["pixel_values"][0]
        return {"pixels": pixels, "label": int(self._images.labels[number])}


def random_box(width: int, height: int, chance: np.random.Generator) -> tuple[int, int, int, int]:
    """Return left, upper, right and lower end of a box in an image: area and ratio first, then its place.

    The ratio is drawn evenly in its logarithm. Where ten draws do not fit, the box is the largest one in the middle
    with a ratio that is allowed.

    >>> random_box(40, 4, np.random.default_rng(0))
    (17, 0, 22, 4)
    """
    for _ in range(_ATTEMPTS):
        area = width * height * chance.uniform(*_AREA)
        ratio = math.exp(chance.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, upper = int(chance.integers(width - wide + 1)), int(chance.integers(height - high + 1))
            return left, upper, left + wide, upper + high
    wide = max(min(width, round(height * _RATIO[1])), 1)
    high = max(min(height, round(width / _RATIO[0])), 1)
    left, upper = (width - wide) // 2, (height - high) // 2
    return left, upper, left + wide, upper + high


def _processor(size: int, mean: Sequence[float], std: Sequence[float]) -> Any:
    from transformers import DeiTImageProcessorPil

    return DeiTImageProcessorPil(
        size={"shortest_edge": round(_SHORTER_SIDE * size)},
        crop_size={"height": size, "width": size},
        image_mean=list(mean),
        image_std=list(std),
    )


def _stacked(items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(np.stack([item["pixels"] for item in items]))
    return pixels, torch.tensor([item["label"] for item in items])


def _colours(value: Any, name: str, usual: Sequence[float]) -> list[float]:
    if value is None:
        return list(usual)
    if not isinstance(value, Sequence) or len(value) != len(usual):
        raise ArgumentTypeError(expected(name, "three numbers, for red, green and blue", repr(value)))
    numbers = [as_number(each, name) for each in value]
    if name == "std" and min(numbers) <= 0:
        raise ArgumentValueError(expected(name, "three positive numbers", repr(value)))
    return numbers
