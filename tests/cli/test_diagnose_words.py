"""A diagnosis calls images images and texts texts on every line, and is silent about what the network does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from click.testing import CliRunner
from PIL import Image

from report.reading import close, plain_spaces, saved
from tokendynamics.cli import commands
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig, byte_tokenizer
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.training.tasks._images import Digits

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
FEED_FORWARD = r"feed.forward|\bffn\b"


@dataclass(frozen=True)
class Told:
    """All that a diagnosis says."""

    printed: str
    page: str
    summary: str
    trace: xr.Dataset

    def find(self, pattern: str) -> dict[str, list[str]]:
        sentence = {"printed": self.printed, "page": _visible(self.page), "summary": self.summary}
        return {name: re.findall(rf".{{0,60}}(?:{pattern}).{{0,20}}", text, re.I) for name, text in sentence.items()}


def _visible(page: str) -> str:
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def _strings(value: Any) -> Iterator[str]:
    """Every string in plain JSON values but the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _strings(entry)


def _diagnosed(folder: Path, *arguments: str) -> Told:
    whole = ["diagnose", "network", "--threads", "1", "--out", "out", *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["tokendynamics", *whole])
        done = CliRunner().invoke(commands, whole)
    assert done.exit_code == 0, done.output
    out = folder / "out"
    summary = " ".join(_strings(json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))))
    page = plain_spaces((out / "report.html").read_text(encoding="utf-8"))
    return Told(" ".join(done.output.split()), page, summary, xr.open_zarr(out / "trace.zarr").load())


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Attention alone, without norms."""
    folder = tmp_path_factory.mktemp("bare")
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 2, "num_labels": 10}
    model = VisionModel(VisionConfig(**SIZES, **shape, intermediate_size=0, norms="none"))
    model.save_pretrained(folder / "network")
    Digits.of("digits", {}, 0, 1).save_inputs(folder / "network")
    (folder / "pictures").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"pictures/{number}.png")
    return _diagnosed(folder, "--images", "pictures")


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Attention and feed-forward parts, with norms before them."""
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    LanguageModel(LanguageModelConfig(**SIZES, vocab_size=256, intermediate_size=16)).save_pretrained(
        folder / "network"
    )
    byte_tokenizer().save_pretrained(folder / "network")
    text = ("a cat sat on a mat", "0123456789", "def f(x):", "it rained, then it snowed", "who goes there?")
    return _diagnosed(folder, *(f"--prompt={entry}" for entry in text))


@pytest.mark.slow
def test_images_are_no_texts(of_images: Told) -> None:
    assert of_images.find(r"\btexts?\b") == {"printed": [], "page": [], "summary": []}
    assert all(of_images.find("5 images").values())
    assert all(of_images.find(r"Measured on 3 images \(0.png").values())


@pytest.mark.slow
def test_texts_are_no_images(of_texts: Told) -> None:
    assert of_texts.find(r"\bimages?\b") == {"printed": [], "page": [], "summary": []}
    assert all(of_texts.find("5 texts").values())
    assert all(of_texts.find(r"Measured on 3 texts \(prompt 1").values())


@pytest.mark.long
def test_of_parts_that_are_not_there_nothing_is_said(of_images: Told, of_texts: Told) -> None:
    assert of_images.find(FEED_FORWARD) == {"printed": [], "page": [], "summary": []}
    assert all(of_texts.find(FEED_FORWARD).values())


def test_of_norms_that_are_not_there_nothing_is_said(of_images: Told, of_texts: Told) -> None:
    words = r"layer norm|final norm|place of the norms|norm's effect"
    assert of_images.find(words) == {"printed": [], "page": [], "summary": []}
    assert of_images.find("learned positions, no norm")["page"]
    assert of_texts.find("positions, layer norm")["page"]
    assert of_texts.find("final norm")["page"]


def test_a_layer_of_attention_alone_has_one_state_on_the_page(of_images: Told, of_texts: Told) -> None:
    """And its number is that of the layer's output."""
    of_output = of_images.trace.sel(site="feed_forward", sinks="removed").mean("prompt")
    for name, variable in (("norms-chart", "norm_median"), ("agreement-mean-pair-cosine", "mean_pair_cosine")):
        heads, *rows = saved(of_images.page, name)
        assert [row[:2] for row in rows] == [["0", "embedding"], ["1", "attention"], ["2", "attention"]]
        shown = [row[heads.index("Median" if name == "norms-chart" else "Mean")] for row in rows]
        assert close(shown, of_output[variable].values)
    assert [row[1] for row in saved(of_texts.page, "norms-chart")[1:]] == [
        "embedding", "attention", "feed-forward", "attention", "feed-forward", "final norm",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["components-chart", "updates-chart", "levers-kappa"])
def test_a_part_that_is_not_there_has_no_column(of_images: Told, of_texts: Told, name: str) -> None:
    bare, whole = (saved(entry.page, name)[0] for entry in (of_images, of_texts))
    assert "Attention" in bare
    assert "Attention" in whole
    assert any(head.startswith("Feed-forward") for head in whole)
    assert not any(head.startswith("Feed-forward") for head in bare)
    figure = {row[0]: row for row in saved(of_images.page, name)[1:]}
    assert list(figure) == ["1", "2"]
