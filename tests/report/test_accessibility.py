"""Every kind of page, and those of the documentation, under the rules of axe; those of the explorer are beside it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from report.chromium import emulate, on_a_phone, violations
from report.conftest import synthetic
from results.test_results import MADE

pytestmark = pytest.mark.browser

SITE = Path(__file__).parents[2] / "site"
PAGES = (
    "index.html",
    "explorer.html",
    "explorer-presets.html",
    "search.html",
    "explanation/index.html",
    "explanation/particles.html",
    "how-to/watch-a-trainer.html",
    "built/reference/tokendynamics.dynamics.events.html",
    "built/gallery/plot_norms.html",
    "built/tutorials/plot_3_from_a_theorem_to_a_phase_diagram.html",
)
"""One page of the documentation of each kind."""


def broken(browser: Any, page: Path) -> list[str]:
    """Rules that a page breaks on a wide screen in the light or on a phone in the dark."""
    lines = []
    for scheme, screen in (("light", nullcontext()), ("dark", on_a_phone(browser))):
        emulate(browser, scheme=scheme)
        with screen:
            browser.get(page.as_uri())
            lines += [f"{scheme}: {line}" for line in violations(browser)]
    return lines


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("name", [name for name in MADE if name not in ("a verdict", "basins")])
def test_the_page_of_a_result_breaks_no_rule(name: str, browser: Any, tmp_path: Path) -> None:
    # With the thirty layers of the other tests, axe takes half a minute.
    result = synthetic(layers=4, heads=2, prompts=3) if name == "a diagnosis" else MADE[name]()
    assert broken(browser, result.report(tmp_path / "page.html")) == []  # type: ignore[attr-defined]


@pytest.mark.skipif(not SITE.exists(), reason="no site: `make docs` builds it")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_documentation_breaks_no_rule(name: str, browser: Any) -> None:
    assert broken(browser, SITE / name) == []


def test_what_cannot_be_read_is_named(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<html lang="en"><title>Page</title><main><h1>Page</h1><img src="data:,">'
        '<p style="color: #999; background: #fff">pale</p></main></html>',
        encoding="utf-8",
    )
    lines = broken(browser, page)
    assert [line for line in lines if "image-alt" in line and "<img" in line]
    assert [line for line in lines if "color-contrast" in line and "pale" in line]
