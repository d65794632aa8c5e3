"""Pictures a second of the explorer in a browser, beside what an empty canvas of that size reaches there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import NOTHING_COMPARED, Comparison, share
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.report import explore
from tokendynamics.spaces import Sphere

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900")
_MILLISECONDS, _ROUNDS = 1500, 3
_COUNT = """
const [milliseconds, size, done] = arguments;
let pen = null, pictures = 0, began = 0;
if (size) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = size;
  document.body.append(canvas);
  pen = canvas.getContext("2d");
}
function next(now) {
  if (!began) began = now;
  if (pen) { pen.clearRect(0, 0, ...size); pen.fillRect(pictures % 500, 100, 9, 9); }
  if (now - began >= milliseconds) { done(1000 * pictures / (now - began)); return; }
  pictures += 1;
  requestAnimationFrame(next);
}
requestAnimationFrame(next);
"""
"""Pictures a second of the page, or, where a size is given, of a canvas that is cleared and gets one mark."""


def run() -> Iterator[Comparison]:
    """16, 64 and 128 tokens on the sphere, with one head and with eight; nothing where there is no Chromium."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory() as scratch:
        for flag in (*_FLAGS, f"--user-data-dir={scratch}/profile"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            for heads in (1, 8):
                for tokens in (16, 64, 128):
                    page = _page(Path(scratch) / "page.html", tokens, heads)
                    yield _compared(browser, page.as_uri(), tokens, heads)
        finally:
            browser.quit()


def _page(path: Path, tokens: int, heads: int) -> Path:
    rng = np.random.default_rng(0)
    qk, ov = rng.normal(size=(2, heads, 3, 3)) / heads
    times = np.linspace(0.0, 20.0, 301)
    return explore(path, simulate(Flow(Attention(qk, ov), Sphere()), Sphere().sample(tokens, 3, seed=1), times))


def _compared(browser: Any, page: str, tokens: int, heads: int) -> Comparison:
    pairs = []
    for _ in range(_ROUNDS):
        browser.get(page)
        hook = "window.tokendynamicsExplorer"
        browser.execute_script(f"{hook}.seek(300); {hook}.seek(60); {hook}.play()")
        of_page = browser.execute_async_script(_COUNT, _MILLISECONDS, None)
        stage = browser.execute_script("const s = document.getElementById('stage'); return [s.width, s.height]")
        browser.get("about:blank")
        pairs.append((of_page, browser.execute_async_script(_COUNT, _MILLISECONDS, stage)))
    counts = f"{tokens} tokens, {heads} {'head' if heads == 1 else 'heads'}"
    words = f"pictures a second of the explorer, {counts}, against an empty canvas"
    return share(words, pairs, at_least=0.9, error=NOTHING_COMPARED, unit="a second")
