"""Images: digits of scikit-learn, and many classes such as ImageNet with what is done to them in training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.signatures import typed_fields
from tokendynamics.training.tasks._labelled_images import (
    EpochOrder,
    ImageFiles,
    ImageTask,
    LabelledImages,
    held_out,
    image_files,
    stacked,
)
from tokendynamics.training.tasks._task import Item, checked_options

_OPERATIONS = 2
"""Of RandAugment, for each image."""
_HIGHEST = 30
_ERASED = (0.02, 1 / 3)
_ERASED_RATIO = (0.3, 1 / 0.3)


@typed_fields
@dataclass(frozen=True)
class Augmentation:
    """The augmentation of a batch, as DeiT has it; 0 turns a part off.

    RandAugment and the erased boxes are kornia's. Mixup and CutMix are not: kornia draws the weight of Mixup uniformly
    and not from Beta(α, α), and gives pairs of labels. Where both are on, a batch has either with the same chance.

    Attributes:
        magnitude: Of RandAugment's two operations, below 30.
        mixup: α of Mixup.
        cutmix: α of CutMix.
        erasing: Chance that a box of an image is filled with noise.
        smoothing: Share of a label's weight that is spread evenly over all classes.

    Source: `positional` D.4.2, whose defaults these are.
    """

    magnitude: float = 9.0
    mixup: float = 0.8
    cutmix: float = 1.0
    erasing: float = 0.25
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        within = {
            "magnitude": (0 <= self.magnitude < _HIGHEST, f"a number from 0 to below {_HIGHEST}"),
            "mixup": (0 <= self.mixup < float("inf"), "a number from 0"),
            "cutmix": (0 <= self.cutmix < float("inf"), "a number from 0"),
            "erasing": (0 <= self.erasing <= 1, "a chance from 0 to 1"),
            "smoothing": (0 <= self.smoothing < 1, "a share from 0 to below 1"),
        }
        for name, (right, wanted) in within.items():
            if not right:
                raise ArgumentValueError(name, wanted, getattr(self, name))
        if self.magnitude or self.erasing:
            require("training", "data", "the augmentation of images", otherwise="magnitude = erasing = 0")

    @torch.no_grad()
    def rand_augmented(self, pixels: Tensor) -> Tensor:
        """Return images (image, channel, row, column) from 0 to 1, each after two operations drawn for it alone."""
        if not self.magnitude:
            return pixels
        from kornia.augmentation.auto import RandAugment

        # kornia draws the operations once for all images that it is given.
        change = RandAugment(_OPERATIONS, self.magnitude)  # pyright: ignore[reportArgumentType]  # any number does
        return torch.cat([change(image.unsqueeze(0)) for image in pixels])

    @torch.no_grad()
    def erased(self, pixels: Tensor) -> Tensor:
        """Return normalised images, with normal noise in one box of some of them."""
        if not self.erasing:
            return pixels
        from kornia.augmentation import RandomErasing

        boxes = RandomErasing(_ERASED, _ERASED_RATIO, value=0.0, p=self.erasing)
        kept = boxes(torch.ones_like(pixels[:, :1]))
        return torch.where(kept > 0, pixels, torch.randn_like(pixels))

    def labelled(self, labels: Tensor, classes: int) -> Tensor:
        """Return the weights of the classes (image, class), which add to 1, for labels (image,)."""
        weights = functional.one_hot(labels, classes).float()
        return (1 - self.smoothing) * weights + self.smoothing / classes

    def mixed(self, pixels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return every image with a share of the one that stands as far from the batch's end, and its weights so."""
        if self.mixup and (not self.cutmix or float(torch.rand(())) < 0.5):
            return mixed_up(pixels, weights, _share(self.mixup))
        return cut_and_mixed(pixels, weights, _share(self.cutmix)) if self.cutmix else (pixels, weights)


def mixed_up(pixels: Tensor, weights: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return ``share`` of images and weights, and the rest of the same in the reverse order.

    >>> mixed_up(torch.tensor([[[[1.0]]], [[[0.0]]]]), torch.eye(2), 0.75)[1].tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    return _between(pixels, share), _between(weights, share)


def cut_and_mixed(pixels: Tensor, weights: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return images with a box of those in the reverse order, and weights by the area that is left.

    The box has ``√(1 − share)`` of the height and of the width and its centre anywhere: what stands over the edge is
    cut off, and the share that counts is that of the pixels outside the box.
    """
    height, width = pixels.shape[-2:]
    rows, columns = _span(height, share), _span(width, share)
    cut = pixels.clone()
    cut[..., rows, columns] = pixels.flip(0)[..., rows, columns]
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return cut, _between(weights, 1 - area / (height * width))


@contextmanager
def drawn_from(*seeds: int) -> Iterator[None]:
    """Draw from these seeds inside the block; PyTorch's own generator is left unchanged."""
    (seed,) = np.random.SeedSequence(seeds).generate_state(1, np.uint64).tolist()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs too
        yield


def _share(alpha: float) -> float:
    return float(torch.distributions.Beta(alpha, alpha).sample())


def _between(values: Tensor, share: float) -> Tensor:
    return share * values + (1 - share) * values.flip(0)


def _span(size: int, share: float) -> slice:
    length = int(size * (1 - share) ** 0.5)
    centre = int(torch.randint(size, ()))
    return slice(max(centre - length // 2, 0), min(centre - length // 2 + length, size))


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


class Images(ImageTask):
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

    def __init__(
        self, files: ImageFiles, share: float, processor: Any, augmentation: Augmentation, seed: int, draws: int
    ) -> None:
        kept, apart = held_out(files.train.labels, share)
        if not len(apart):
            raise ArgumentValueError("data", "a class of two images or more in train", "one image of each")
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
            raise ArgumentValueError("validation_share", "a share above 0, up to 0.5", share)
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
        pixels, labels = stacked(items)
        means, stds = torch.tensor(self._processor.image_mean), torch.tensor(self._processor.image_std)
        with drawn_from(self._seed, items[0]["draw"]):
            shown = self._augmentation.rand_augmented(pixels.movedim(-1, 1).float() / 255)
            erased = self._augmentation.erased((shown - means[:, None, None]) / stds[:, None, None])
            weights = self._augmentation.labelled(labels, self._files.count)
            mixed, weights = self._augmentation.mixed(erased, weights)
        return {"pixel_values": mixed, "labels": weights}

    def evaluation_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return pixel_values (image, channel, row, column) and labels (image,)."""
        pixels, labels = stacked(items)
        return {"pixel_values": pixels, "labels": labels}

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


def _colours(value: Any, name: str, usual: Sequence[float]) -> list[float]:
    if value is None:
        return list(usual)
    if not isinstance(value, Sequence) or len(value) != len(usual):
        raise ArgumentTypeError(name, "three numbers, for red, green and blue", repr(value))
    numbers = [as_number(colour, name) for colour in value]
    if name == "std" and min(numbers) <= 0:
        raise ArgumentValueError(name, "three positive numbers", repr(value))
    return numbers


_DIGITS_SIZE = 8
_DIGITS_CLASSES = 10
_DIGITS_CHANNELS = 3
_DIGITS_WHITE = 16
_DIGITS_MEAN = _DIGITS_STD = 0.5


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
            raise ArgumentValueError("data", "'digits', which come with scikit-learn", repr(data))
        if options:
            raise ArgumentValueError("options", "none for 'digits'", ", ".join(options))
        require("training", "data", "the digits of scikit-learn")
        from sklearn.datasets import load_digits

        data_set: Any = load_digits()
        labels = np.asarray(data_set.target, dtype=np.int64)
        pixels = (np.asarray(data_set.images, dtype=np.float32) / _DIGITS_WHITE - _DIGITS_MEAN) / _DIGITS_STD
        rest, test = held_out(labels, 0.2)
        kept, apart = held_out(labels[rest], 0.2)
        training, validation = rest[kept], rest[apart]
        order = EpochOrder(len(training), seed=seed, draws=draws)
        return cls(
            _Shown(pixels[training], labels[training], order),
            _Shown(pixels[validation], labels[validation], range(len(validation))),
            _Shown(pixels[test], labels[test], range(len(test))),
        )

    def fitted(self) -> dict[str, Any]:
        """Return size and channels of an image, and the number of classes."""
        return {"image_size": _DIGITS_SIZE, "channels": _DIGITS_CHANNELS, "num_labels": _DIGITS_CLASSES}

    def training_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return pixel_values (image, channel, row, column) and labels (image,)."""
        pixels, labels = stacked(items)
        return {"pixel_values": pixels.unsqueeze(1).repeat(1, _DIGITS_CHANNELS, 1, 1), "labels": labels}

    def evaluation_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """See `training_batch`."""
        return self.training_batch(items)

    def save_inputs(self, folder: Path) -> None:
        """Write the image processor, by which an image of any size becomes one of 8 × 8."""
        from transformers import ViTImageProcessorPil

        size = {"height": _DIGITS_SIZE, "width": _DIGITS_SIZE}
        means, stds = [_DIGITS_MEAN] * _DIGITS_CHANNELS, [_DIGITS_STD] * _DIGITS_CHANNELS
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
