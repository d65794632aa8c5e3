"""On paper no line of a page of the site is cut off, and what is folded is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report.chromium import emulate, started

SHEET = Path(__file__).parents[2] / "docs" / "_static" / "site.css"
LONG = "print(" + " + ".join(["value"] * 60) + ")"
PAGE = f"""<!doctype html><style>pre {{ overflow: auto; max-width: 100% }}</style>
<link rel="stylesheet" href="site.css">
<div class="highlight"><pre id="code">{LONG}</pre></div>
<div class="math" id="formula"><div style="width: 3000px">formula</div></div>
<details><summary>Tests</summary><p id="folded">a claim is held by</p></details>
<iframe class="explorer" id="explorer"></iframe>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "site.css").write_text(SHEET.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "page.html").write_text(PAGE, encoding="utf-8")
    driver = started(folder / "profile")
    driver.get((folder / "page.html").as_uri())
    yield driver
    driver.quit()


def seen(page: Any, media: str) -> dict[str, Any]:
    emulate(page, media=media)
    return page.execute_script(
        """const of = name => document.getElementById(name);
        return {
          cut: of("code").scrollWidth > of("code").clientWidth,
          formula: getComputedStyle(of("formula")).overflowX,
          folded: of("folded").checkVisibility({contentVisibilityAuto: true}),
          explorer: getComputedStyle(of("explorer")).display,
        }"""
    )


@pytest.mark.long
@pytest.mark.browser
def test_paper_shows_what_a_screen_scrolls_and_folds(page: Any) -> None:
    assert seen(page, "screen") == {"cut": True, "formula": "auto", "folded": False, "explorer": "inline"}
    assert seen(page, "print") == {"cut": False, "formula": "visible", "folded": True, "explorer": "none"}
