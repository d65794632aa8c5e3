"""What is done to images in training: RandAugment, erasing, Mixup or CutMix, and label smoothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.signatures import typed_fields

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
                raise ArgumentValueError(expected(name, wanted, getattr(self, name)))
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
