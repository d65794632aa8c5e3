"""What a user may pass as one input of a network, as arguments of its forward pass."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained.encoding import check_length, pieces_of
from tokendynamics.pretrained.forward_arguments import Prepared, as_token_ids, checked_ids
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.texts import Texts

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

MOST_PIXELS = 89_478_485
"""Of an image: 256 MiB in three colours, from which on Pillow warns of small files that unpack to much."""


def opened_image(source: str | Path | BytesIO, argument: str, name: str) -> Any:
    """Return an image in three colours, as Pillow has it.

    Args:
        source: A file, or its content.
        argument: What an error calls it.
        name: Of the image, for the message.

    Raises:
        ArgumentValueError: No regular file (a pipe would be waited for), or more pixels than `MOST_PIXELS`.
        Exception: Whatever Pillow raises of what it cannot read.
    """
    import warnings

    from PIL import Image

    if not isinstance(source, BytesIO):
        check_regular([source], argument)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below with the number
        image = Image.open(source)
    with image:
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            came = f"{image.width:,} × {image.height:,} = {pixels:,} in {name}"
            raise ArgumentValueError(expected(argument, f"images of at most {MOST_PIXELS:,} pixels", came, "scale it"))
        return image.convert("RGB")


def check_regular(paths: Iterable[str | Path], argument: str) -> None:
    """Refuse what is no regular file, such as a named pipe or a device, without opening it; links are followed.

    Raises:
        ArgumentValueError: The first such path.
    """
    for path in paths:
        try:
            regular = stat.S_ISREG(Path(path).stat().st_mode)
        except OSError:  # nothing there, or a link that leads nowhere: opening it says what is wrong
            continue
        if not regular:
            raise ArgumentValueError(expected(argument, "images that are regular files", str(path), "remove it"))


def images_in(folder: Path) -> list[Path]:
    """Return the images of a folder by name.

    Raises:
        ArgumentValueError: There are none, or one of them is no regular file.
    """
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise ArgumentValueError(expected("texts", f"images in {folder}", "none"))
    check_regular(paths, "texts")
    return paths


_WANTED = "a text, token ids, an image, or the arguments of the forward pass by name"


def prepared(ckpt: Checkpoint, item: Any, *, truncate: bool = False, argument: str = "input") -> Prepared:
    """Return one input as arguments of a checkpoint's forward pass.

    Args:
        ckpt: From `load`.
        item: A text; token ids (whole numbers, one axis); an image (a path, a PIL image, or an array of rows, columns
            and three colours), for the checkpoint's own image processor; an array of real numbers (a series, a
            waveform, pixels) for a live network of one such argument; or arguments by name, for one input, with or
            without an axis of inputs. Or one text or conversation with options, or what came of it.
        truncate: Whether a text or token ids longer than the context are cut.
        argument: What an error calls the input.

    Raises:
        ArgumentTypeError: Nothing of these, or nothing that this network reads.
        ArgumentValueError: An empty text, or one longer than the context.
        CheckpointError: There is no tokenizer or image processor, or it fails.
    """
    if isinstance(item, Texts):
        return prepared(ckpt, _only(ckpt, item, argument), truncate=truncate, argument=argument)
    if isinstance(item, Prepared):
        ids = item.inputs["input_ids"]
        most = ckpt.architecture.context if truncate else None
        check_length(argument, ids[:, :most].shape[1], ckpt.architecture.context)
        ids = checked_ids(ids[:, :most], ckpt.architecture, argument)
        return Prepared({ckpt.ids_name or "input_ids": ids}, item.text, (item.tokens or [])[:most])
    if isinstance(item, str):
        encoding = ckpt.encode(item, truncate=truncate, argument=argument)
        return Prepared({ckpt.ids_name or "input_ids": encoding.ids}, item, encoding.tokens)
    if isinstance(item, Mapping):
        return _by_name(ckpt, item, argument)
    ids = as_token_ids(item, argument)
    if ids is not None:
        name = ckpt.ids_name
        if name is None:
            wanted, advice = (
                "the arguments of its forward pass, by name in a mapping",
                "this network reads no token ids",
            )
            raise ArgumentTypeError(expected(argument, wanted, "token ids", advice))
        most = ckpt.architecture.context
        ids = checked_ids(ids[:most] if truncate else ids, ckpt.architecture, argument)
        return Prepared({name: ids}, "token ids", pieces_of(ids.flatten().tolist(), ckpt.tokenizer))
    if (array := _as_only_argument(ckpt, item, argument)) is not None:
        return Prepared(array, "an array", None)
    if is_image(item):
        text = item.name if isinstance(item, Path) else "an image"
        return Prepared(_pixels(ckpt, item, argument), text, None)
    raise ArgumentTypeError(expected(argument, _WANTED, type(item).__name__))


def _by_name(ckpt: Checkpoint, item: Mapping[Any, Any], argument: str) -> Prepared:
    """Return arguments by name as tensors; those that lack the axis of inputs get one."""
    inputs: dict[str, Tensor] = {}
    for name, value in item.items():
        try:
            inputs[str(name)] = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            where, wanted = f"{argument}[{shown(name)}]", "a tensor, or an array of numbers"
            raise ArgumentTypeError(expected(where, wanted, shown(value))) from error
    known = [name for name in inputs if name in ckpt.example]
    lacking = [name for name in known if inputs[name].ndim == ckpt.example[name].ndim - 1]
    if lacking and len(lacking) < len(known):
        whole = next(name for name in known if name not in lacking)
        wanted, came = "all arguments with an axis of inputs, or none", f"{whole} with one and {lacking[0]} without"
        raise ArgumentValueError(expected(argument, wanted, came))
    inputs |= {name: inputs[name].unsqueeze(0) for name in lacking}
    ids = inputs.get("input_ids")
    if ids is None or ckpt.architecture.vocabulary is None:
        return Prepared(inputs, "arguments by name", None)
    ids = inputs["input_ids"] = checked_ids(ids, ckpt.architecture, argument)
    return Prepared(inputs, "arguments by name", pieces_of(ids.flatten().tolist(), ckpt.tokenizer))


def _as_only_argument(ckpt: Checkpoint, item: Any, argument: str) -> dict[str, Tensor] | None:
    """Return real numbers as the only argument of a network that takes such; None for anything else."""
    if not is_real(item) or len(ckpt.example) != 1 or (is_image(item) and ckpt.image_processor is not None):
        return None
    ((name, example),) = ckpt.example.items()
    if not example.is_floating_point():
        return None
    values = (item if isinstance(item, Tensor) else torch.from_numpy(np.array(item))).to(ckpt.dtype)
    values = values.unsqueeze(0) if values.ndim == example.ndim - 1 else values
    if values.ndim != example.ndim or len(values) != 1:
        wanted, came = f"one {name}, an array of {example.ndim - 1} axes", f"shape {tuple(item.shape)}"
        raise ArgumentValueError(expected(argument, wanted, came, "pass several inputs as a list"))
    if name == "pixel_values" and values.shape[1] != example.shape[1]:
        wanted, came = f"pixels of {example.shape[1]} channels, which come first", f"shape {tuple(item.shape)}"
        raise ArgumentValueError(expected(argument, wanted, came))
    return {name: values}


def is_real(item: Any) -> bool:
    """Whether a prompt is an array of real numbers."""
    if isinstance(item, Tensor):
        return item.is_floating_point() and not item.is_meta and not item.is_sparse
    return isinstance(item, np.ndarray) and not isinstance(item, np.ma.MaskedArray) and item.dtype.kind == "f"


def _only(ckpt: Checkpoint, texts: Texts, argument: str) -> Any:
    """Return the only prompt of texts with options."""
    if texts.plain:
        return texts.texts
    pieces = texts.pieces(ckpt, texts.texts, argument)
    if len(pieces) > 1:
        raise ArgumentValueError(expected(argument, "one prompt", f"{len(pieces)} windows", "pass a larger window"))
    return next(iter(pieces.values()))


def is_image(item: Any) -> bool:
    """Whether a prompt is an image: a path, one of Pillow's images, or an array of three axes with three channels.

    Real numbers whose first axis has length 1 are one input of three features.
    """
    if isinstance(item, Path) or type(item).__module__.startswith("PIL."):
        return True
    if not isinstance(item, Tensor | np.ndarray) or item.ndim != 3 or (is_real(item) and item.shape[0] == 1):
        return False
    return 3 in (item.shape[0], item.shape[-1])


def _pixels(ckpt: Checkpoint, item: Any, argument: str) -> dict[str, Tensor]:
    if ckpt.architecture.vocabulary is not None:
        raise ArgumentTypeError(expected(argument, "a text or token ids", "an image", "this network reads no images"))
    processor = ckpt.image_processor
    if processor is None:
        advice = "add preprocessor_config.json to the folder, or pass the pixels by name"
        raise CheckpointError(expected(ckpt.name, "an image processor beside the weights", "none", advice))

    def refusal(words: str) -> ArgumentValueError:
        return ArgumentValueError(expected(argument, "an image that can be read", words))

    with refusing(refusal), silenced():
        image = opened_image(item, argument, item.name) if isinstance(item, Path) else item
        return dict(processor(image, return_tensors="pt"))
