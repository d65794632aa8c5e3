"""README's picture shows what a diagnosis says today: `make docs` draws it and writes its words beside it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import tokendynamics as td

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def picture() -> Any:
    spec = importlib.util.spec_from_file_location("picture", DOCS / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def size_of(png: Path) -> tuple[int, int]:
    return struct.unpack(">II", png.read_bytes()[16:24])  # type: ignore[return-value]


def test_the_words_are_those_of_the_picture_and_readme_shows_it(picture: Any) -> None:
    words = json.loads(picture.WORDS.read_text(encoding="utf-8"))
    assert words["picture"] == hashlib.sha256(picture.PICTURE.read_bytes()).hexdigest(), "run make docs"
    assert size_of(picture.PICTURE) == picture.SIZE
    assert "report.png" in (DOCS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.pretrained
def test_the_picture_shows_the_verdict_of_today(picture: Any) -> None:
    """Word for word; the last decimal of a number may differ between processors."""
    shown = json.loads(picture.WORDS.read_text(encoding="utf-8"))
    today = picture.words_of(td.diagnose("smollm2", layers=[1]).verdict)
    number = re.compile(r"\d+\.\d+")
    assert shown.keys() - {"picture"} == today.keys()
    assert (shown["state"], shown["layers"]) == (today["state"], today["layers"]), "run make docs"
    for actual, reference in zip(shown["sentences"], today["sentences"], strict=True):
        assert number.sub("#", actual) == number.sub("#", reference), "run make docs"
        both = [[float(entry) for entry in number.findall(text)] for text in (actual, reference)]
        assert both[0] == pytest.approx(both[1], abs=0.011)


@pytest.mark.long
def test_a_page_is_drawn_in_the_size_that_is_asked_for(picture: Any, tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in picture.BROWSERS):
        pytest.skip(f"none of {', '.join(picture.BROWSERS)} is on the PATH: nothing can be drawn")
    (tmp_path / "page.html").write_text("<h1>Where do the tokens go?</h1>")
    picture.draw(tmp_path / "page.html", tmp_path / "page.png", (400, 300))
    assert size_of(tmp_path / "page.png") == (400, 300)


def test_without_a_browser_it_says_what_is_missing(
    picture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"expected one of chromium, .* on the PATH, got none"):
        picture.draw(tmp_path / "page.html", tmp_path / "page.png")
