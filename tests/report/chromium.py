"""Chromium without a screen, from files only: every host name is unreachable."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
