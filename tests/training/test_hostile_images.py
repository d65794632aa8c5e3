"""Image files that would stop a program or fill the memory: refused by name, without reading a pixel."""

from __future__ import annotations

import os
import resource
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tokendynamics.diagnosis.tracing.prompts import named_prompts
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.inputs import MOST_PIXELS, images_in, opened_image, prepared
from tokendynamics.training.tasks._images import Digits, Images

SMALL = {"image_size": 8, "validation_share": 0.5}


def of_size(width: int, height: int) -> bytes:
    """A PNG of this many pixels, all black: few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    path.write_bytes(of_size(13_300, 13_300))


HOSTILE: dict[Callable[[Path], None], str] = {
    pipe: "regular files",
    linked_pipe: "regular files",
    device: "regular files",
    large: r"13,300 × 13,300 = 176,890,000",
}
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """What would read on for ever ends in an error of memory."""
    former = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (2**33, former[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, former)


@pytest.mark.parametrize("make", HOSTILE)
def test_a_folder_of_training_images_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(tmp_path / split / "cat" / f"{number}.png")
    make(tmp_path / "val" / "cat" / "2.png")
    with pytest.raises(ArgumentValueError, match=rf"data: .*{HOSTILE[make]}.*2\.png|data: .*2\.png.*{HOSTILE[make]}"):
        Images.of(str(tmp_path), SMALL, seed=0, draws=1).test[2]  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("make", HOSTILE)
def test_a_folder_of_pictures_to_diagnose_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    from tokendynamics.modules.vision import VisionConfig, VisionModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    VisionModel(VisionConfig(image_size=8, patch_size=2, num_labels=10, **sizes)).save_pretrained(tmp_path / "model")
    Digits.of("digits", {}, 0, 1).save_inputs(tmp_path / "model")
    (tmp_path / "pictures").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (2, 8, 8, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number}.png")
    make(tmp_path / "pictures" / "2.png")
    ckpt = load(tmp_path / "model")

    def read_all() -> None:
        for name, item in named_prompts(tmp_path / "pictures").items():
            prepared(ckpt, item, argument=name)

    with pytest.raises(ArgumentValueError, match=HOSTILE[make]):
        read_all()
    with pytest.raises(ArgumentValueError, match=HOSTILE[make]):
        prepared(ckpt, tmp_path / "pictures" / "2.png")


def test_the_largest_image_is_one_of_so_many_pixels() -> None:
    with pytest.raises(ArgumentValueError, match=r"at most 89,478,485 pixels, got 89,478,486 × 1"):
        opened_image(BytesIO(of_size(MOST_PIXELS + 1, 1)), "data", "wide")
    with pytest.raises(OSError, match="truncated"):  # is read: this one has no pixels
        opened_image(BytesIO(of_size(1000, 1000)), "data", "small")


def test_a_linked_image_and_an_ordinary_folder_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (4, 2), (9, 8, 7)).save(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    assert [path.name for path in images_in(tmp_path)] == ["a.png", "b.png"]
    assert opened_image(tmp_path / "b.png", "data", "b").getpixel((1, 1)) == (9, 8, 7)
