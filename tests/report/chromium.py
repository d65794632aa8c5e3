"""Chromium without a screen, from files only: every host name is unreachable."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost",
)

PHONE = 360
"""Width of a small screen in pixels."""


def started(profile: Path) -> Any:
    """A browser with logs of what it requests and complains about; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    driver_path, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver_path is None or chromium is None:
        pytest.skip("no chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    driver.set_window_size(1100, 900)
    return driver


def emulate(browser: Any, *, scripts: bool = True, scheme: str = "light", media: str = "", calm: bool = True) -> None:
    """Set what a reader may: scripts, dark or light, print, and (`calm`) no motion, which glides away from a click."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


@contextmanager
def on_a_phone(browser: Any) -> Iterator[None]:
    """The open page on a screen of `PHONE` pixels."""
    size = {"width": PHONE, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def width_on_a_phone(browser: Any) -> int:
    """How wide the open page is there."""
    with on_a_phone(browser):
        return browser.execute_script("return document.documentElement.scrollWidth")


@cache
def _rules() -> str:
    """The rules of axe as a script, from the wheel that `make` installs for it alone."""
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("the wheel axe-playwright-python, which holds axe, is not installed")
    return (Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8")


_RUN = """
const done = arguments[0];
axe.run(document, { resultTypes: ["violations"] }).then(
  (result) => done(result.violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html).join(" ")}`)),
  (error) => done([String(error)]),
);
"""


def violations(browser: Any) -> list[str]:
    """Rules of axe, for WCAG and good practice, that the open page breaks, with the elements."""
    browser.execute_script(_rules())
    return browser.execute_async_script(_RUN)
