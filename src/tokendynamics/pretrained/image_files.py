"""Image files of users: regular files alone, of a size that is known before a pixel is read."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

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
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise ArgumentValueError(expected("texts", f"images in {folder}", "none"))
    check_regular(found, "texts")
    return found
