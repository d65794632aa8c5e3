"""What tasks of labelled images share: images on disk, what is held out, the order of the epochs, and accuracy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained.inputs import IMAGE_SUFFIXES, check_regular, opened_image
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.training.tasks._task import Item

LAYOUT = (
    "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or one with Parquet files train*.parquet and val*.parquet "
    "(also in its folder data) of two columns, image and label"
)
_SPLITS = ("train", "val")
_IMAGE, _LABEL = "image", "label"


@dataclass(frozen=True)
class LabelledImages:
    """Images of one split, opened when they are asked for.

    Attributes:
        rows: A table of `datasets` with the column ``image``: paths, or what Parquet files hold.
        labels: Class of each, (image,) int64.
        place: Where they are, for messages.
    """

    rows: Any
    labels: np.ndarray
    place: str

    def __len__(self) -> int:
        return len(self.labels)

    def opened(self, number: int) -> Any:
        """Return an image in three colours, as Pillow has it.

        Raises:
            ArgumentValueError: It cannot be read, is no regular file or has too many pixels; the message names it.
        """
        entry = self.rows[number][_IMAGE]
        name, source = (entry, entry) if isinstance(entry, str) else self._in_table(entry, number)

        def refusal(words: str) -> ArgumentValueError:
            return ArgumentValueError("data", "images that can be read", f"{name}: {words}", "replace it")

        with refusing(refusal):
            return opened_image(source, "data", name)

    def _in_table(self, entry: dict[str, Any], number: int) -> tuple[str, Any]:
        name = f"image {number} of {self.place}" + (f", {entry['path']}" if entry["path"] else "")
        return name, entry["path"] if entry["bytes"] is None else BytesIO(entry["bytes"])


@dataclass(frozen=True)
class ImageFiles:
    """What is trained on, and what is kept for the test.

    Attributes:
        train: Images of the split that training and validation are taken from.
        val: Images of the split that nothing is chosen on.
        classes: Names of the classes in the order of their numbers; empty if they have none.
        count: How many classes there are.
    """

    train: LabelledImages
    val: LabelledImages
    classes: tuple[str, ...]
    count: int


def image_files(data: str) -> ImageFiles:
    """Find the images at a path, without reading them.

    Parquet files are written out once as tables that can be mapped into memory, in the cache of `datasets`.

    Raises:
        ArgumentValueError: Nothing there, nothing in it, another layout, or classes in val that train does not have.
    """
    require("training", "data", "sets of images")
    place = Path(data).expanduser()
    if not place.is_dir():
        came = f"the file {place}" if place.is_file() else f"nothing at {place}"
        raise ArgumentValueError("data", LAYOUT, came)
    if all((place / split).is_dir() for split in _SPLITS):
        classes = tuple(_names(place / "train"))
        if not classes:
            raise ArgumentValueError("data", LAYOUT, f"{place / 'train'} without a folder of a class")
        further = [name for name in _names(place / "val") if name not in classes]
        if further:
            got = f"{place / 'val' / further[0]}, and no {place / 'train' / further[0]}"
            raise ArgumentValueError("data", "classes in val that are in train", got)
        train, val = (_of_classes(place / split, classes) for split in _SPLITS)
        return ImageFiles(train, val, classes, len(classes))
    tables = {
        split: sorted(str(path) for folder in (place, place / "data") for path in folder.glob(f"{split}*.parquet"))
        for split in _SPLITS
    }
    if all(tables.values()):
        return _of_parquet(place, tables)
    missing = [split for split, files in tables.items() if not files and not (place / split).is_dir()]
    entries = sorted(entry.name for entry in place.iterdir())[:5]
    came = f"{place} without {' and '.join(missing) or 'both splits in one form'}"
    raise ArgumentValueError("data", LAYOUT, came + (f", but with {', '.join(entries)}" if entries else ""))


def _of_classes(folder: Path, classes: Sequence[str]) -> LabelledImages:
    from datasets import Dataset

    paths, labels = [], []
    for label, name in enumerate(classes):
        files = []
        if (folder / name).is_dir():
            visible = [entry for entry in os.scandir(folder / name) if not entry.name.startswith(".")]
            images = [entry for entry in visible if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES]
            check_regular((entry.path for entry in images if not entry.is_file(follow_symlinks=False)), "data")
            files = sorted(entry.path for entry in images)
        if not files and folder.name == "train":
            raise ArgumentValueError("data", LAYOUT, f"no image in {folder / name}")
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise ArgumentValueError("data", LAYOUT, f"no image in {folder}")
    rows = Dataset.from_dict({_IMAGE: paths})
    return LabelledImages(rows, np.asarray(labels, dtype=np.int64), str(folder))


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _of_parquet(place: Path, tables: dict[str, list[str]]) -> ImageFiles:
    read = {split: _table(f"{place / split}*.parquet", files) for split, files in tables.items()}
    classes, others = (tuple(getattr(read[split].features[_LABEL], "names", None) or ()) for split in _SPLITS)
    if classes != others:
        wanted = "the same classes in the same order in train and val"
        raise ArgumentValueError("data", wanted, f"{shown(classes)} and {shown(others)}")
    train, val = (_of_table(read[split], f"{place / split}*.parquet") for split in _SPLITS)
    lacking = np.setdiff1d(val.labels, train.labels)
    if len(lacking):
        came = f"label {lacking[0]}, which no image of train has"
        raise ArgumentValueError("data", "classes in val that are in train", came)
    return ImageFiles(train, val, classes, len(classes) or 1 + int(train.labels.max()))


def _table(where: str, files: Sequence[str]) -> Any:
    from datasets import Dataset, Image

    def refusal(words: str) -> ArgumentValueError:
        return ArgumentValueError("data", LAYOUT, f"{where}, of which nothing can be read: {words}")

    with refusing(refusal):
        table: Any = Dataset.from_parquet(list(files))
    if not {_IMAGE, _LABEL} <= set(table.column_names):
        raise ArgumentValueError("data", LAYOUT, f"{where} with the columns {', '.join(table.column_names)}")
    with refusing(refusal):
        return table.cast_column(_IMAGE, Image(decode=False))


def _of_table(table: Any, where: str) -> LabelledImages:
    labels = table.select_columns([_LABEL]).with_format("numpy")[:][_LABEL]
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        came = f"{labels.min()} to {labels.max()}" if labels.dtype.kind in "iu" else f"values such as {labels[0]!r}"
        raise ArgumentValueError("data", f"whole numbers from 0 in the column label of {where}", came)
    return LabelledImages(table.select_columns([_IMAGE]), labels.astype(np.int64), where)


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


_SPLIT_SEED = 20_261_124
"""Of which images are held out: the same for every run, so that no run trains on what another is tested on."""


def held_out(
    labels: Sequence[int] | np.ndarray, share: float, seed: int = _SPLIT_SEED
) -> tuple[np.ndarray, np.ndarray]:
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


class ImageTask:
    """What tasks of labelled images share: top-1 and top-5 accuracy."""

    network = "vision"
    measure = "top1"

    def scores(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether the class of each image is the first, and among the first five, (image, 2) of zeros and ones.

        Args:
            logits: (image, class).
            labels: (image,), classes.
        """
        order = logits.topk(min(_TOP, logits.shape[-1]), dim=-1).indices
        right = order == labels.unsqueeze(-1)
        return torch.stack([right[:, 0], right.any(-1)], dim=-1).double()

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return top-1 and top-5 accuracy in percent, and the mean loss in nats."""
        if scores is None:
            return {"loss": loss}
        first, among = (100 * scores.double().mean(0)).tolist()
        return {"top1": first, "top5": among, "loss": loss}


def stacked(items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Return the pixels of items (image, …) and their labels (image,)."""
    pixels = torch.from_numpy(np.stack([item["pixels"] for item in items]))
    return pixels, torch.tensor([item["label"] for item in items])
