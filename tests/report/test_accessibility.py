"""Every kind of page, and those of the documentation, under the rules of axe, which checks WCAG and good practice."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from report.chromium import emulate, on_a_phone
from results.test_results import MADE
from tokendynamics.report import explore

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

RUN = """
const done = arguments[0];
axe.run(document, { resultTypes: ["violations"] }).then(
  (result) => done(result.violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html).join(" ")}`)),
  (error) => done([String(error)]),
);
"""


@cache
def axe() -> str:
    """The rules as a script, from the wheel that `make` installs for it alone."""
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("the wheel axe-playwright-python, which holds axe, is not installed")
    return (Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(browser: Any, page: Path) -> list[str]:
    """Rules that a page breaks on a wide screen in the light or on a phone in the dark, with the elements."""
    rules = axe()
    broken = []
    for scheme, screen in (("light", nullcontext()), ("dark", on_a_phone(browser))):
        emulate(browser, scheme=scheme)
        with screen:
            browser.get(page.as_uri())
            browser.execute_script(rules)
            broken += [f"{scheme}: {line}" for line in browser.execute_async_script(RUN)]
    return broken


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [name for name in MADE if name not in ("a verdict", "basins")])
def test_the_page_of_a_result_breaks_no_rule(name: str, browser: Any, tmp_path: Path) -> None:
    assert violations(browser, MADE[name]().report(tmp_path / "page.html")) == []  # type: ignore[attr-defined]


@pytest.mark.slow  # its presets are a page of the documentation
def test_the_explorer_breaks_no_rule(browser: Any, tmp_path: Path) -> None:
    assert violations(browser, explore(tmp_path / "explorer.html")) == []


@pytest.mark.skipif(not SITE.exists(), reason="no site: `make docs` builds it")
@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_documentation_breaks_no_rule(name: str, browser: Any) -> None:
    assert violations(browser, SITE / name) == []


def test_what_cannot_be_read_is_named(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<html lang="en"><title>Page</title><main><h1>Page</h1><img src="data:,">'
        '<p style="color: #999; background: #fff">pale</p></main></html>',
        encoding="utf-8",
    )
    broken = violations(browser, page)
    assert [line for line in broken if "image-alt" in line and "<img" in line]
    assert [line for line in broken if "color-contrast" in line and "pale" in line]
