"""The page on circuits in headless Chromium, from the file, with every host name made unreachable."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from report.chromium import PHONE, emulate, on_a_phone, width_on_a_phone
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import mixture
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.report import write
from tokendynamics.report.circuits.models import evidence_report

pytestmark = pytest.mark.browser

TASK = PairTask(random_functional(3, seed=1), positions=4)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = mixture(TASK)
    result = evidence(model, TASK, samples=100, resamples=20)
    path: Path = write(evidence_report(model, result, {}, []), tmp_path_factory.mktemp("page") / "report.html")
    return path.as_uri()


def point_at(browser: Any, panel: int, column: int, row: int, size: int) -> str:
    """Rest the pointer on a cell of a square matrix and read the text that appears."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    hit = browser.find_elements(By.CSS_SELECTOR, "#weights-attention svg.wide .hit")[panel]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", hit)
    width, height = hit.rect["width"], hit.rect["height"]
    offset = ((column + 0.5) / size - 0.5) * width, ((row + 0.5) / size - 0.5) * height
    ActionChains(browser).move_to_element_with_offset(hit, *map(round, offset)).perform()
    tip, end = browser.find_element(By.ID, "tip"), time.monotonic() + 5.0
    while not tip.is_displayed() and time.monotonic() < end:
        time.sleep(0.05)
    return tip.text


@pytest.mark.long
def test_nothing_is_requested_and_nothing_is_complained_about(opened: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert opened.get_log("browser") == []


@pytest.mark.long
def test_the_cell_under_the_pointer_tells_its_place_and_number(opened: Any) -> None:
    model = mixture(TASK)
    value = float(model.qk[0, 2, 1])
    text = point_at(opened, 0, column=2, row=1, size=7)
    assert text.startswith("category 2, category 3: ")
    assert float(text.rpartition(" ")[2].replace("−", "-")) == pytest.approx(value, rel=1e-3)
    # Head 2 attends to the previous position: sender 1, receiver 2.
    assert point_at(opened, 2, column=4, row=3, size=7) == "position 1, position 2: 1"


def test_drawings_and_tables_are_there_without_scripts(browser: Any, address: str) -> None:
    from selenium.webdriver.common.by import By

    emulate(browser, scripts=False)
    browser.get(address)
    drawings = browser.find_elements(By.CSS_SELECTOR, "figure svg.wide")
    assert len(drawings) == len(browser.find_elements(By.CSS_SELECTOR, "figure svg.narrow")) == 4
    assert all(drawing.is_displayed() for drawing in drawings)
    browser.find_element(By.CSS_SELECTOR, "#weights-attention details summary").click()
    assert browser.find_element(By.ID, "weights-attention-table-1").is_displayed()
    assert "Both parts" in browser.find_element(By.ID, "verdict").text


def test_dark_follows_the_system_and_colours_have_twins(opened: Any) -> None:
    script = """
    const paths = [...document.querySelectorAll('#weights-functional path[fill]')];
    return [getComputedStyle(document.body).backgroundColor, ...new Set(paths.map((p) => getComputedStyle(p).fill))];
    """
    light = opened.execute_script(script)
    emulate(opened, scheme="dark")
    dark = opened.execute_script(script)
    # The page, the paper of the drawings, negative and positive.
    assert len(light) == len(dark) == 4
    assert not set(light) & set(dark)


def test_nothing_overflows_on_a_phone(opened: Any) -> None:
    assert width_on_a_phone(opened) <= PHONE


def test_on_a_phone_every_drawing_fits_and_a_tap_tells_the_number(opened: Any) -> None:
    script = """
    return [...document.querySelectorAll('.drawing')].map((one) => {
      const shown = [...one.querySelectorAll('svg')].filter((svg) => svg.getBoundingClientRect().width > 0);
      return [shown.map((svg) => svg.getAttribute('class')), one.scrollWidth - one.clientWidth];
    });
    """
    with on_a_phone(opened):
        assert opened.execute_script(script) == [[["narrow"], 0]] * 4
        text = opened.execute_script(TAP, 2, 1, 7)
    model = mixture(TASK)
    assert text.startswith("category 2, category 3: ")
    assert float(text.rpartition(" ")[2].replace("−", "-")) == pytest.approx(float(model.qk[0, 2, 1]), rel=1e-3)
    assert [shown for shown, _ in opened.execute_script(script)] == [["wide"]] * 4


TAP = """
const [column, row, size] = arguments;
const hit = document.querySelector('#weights-attention svg.narrow .hit');
const place = hit.getBoundingClientRect();
const at = { clientX: place.left + (column + 0.5) / size * place.width,
             clientY: place.top + (row + 0.5) / size * place.height };
hit.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, ...at }));
return document.getElementById('tip').textContent;
"""


def test_it_prints_with_no_figure_taller_than_a_page(opened: Any) -> None:
    printed = base64.b64decode(opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert printed.startswith(b"%PDF")
    emulate(opened, media="print")
    heights = opened.execute_script("return [...document.querySelectorAll('figure')].map((f) => f.offsetHeight)")
    assert max(heights) < 1000
