"""The page in headless Chromium, from the file, with every host name made unreachable."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from report.chromium import PHONE, emulate, width_on_a_phone
from tokendynamics.diagnosis._result import Diagnosis
from tokendynamics.report import write_report

pytestmark = pytest.mark.browser

COLOURS = """
const [source, done] = arguments;
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas");
  canvas.width = image.width; canvas.height = image.height;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  for (let i = 0; i < data.length; i += 4) {
    const colour = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  const [paper, most] = [...counts].sort((a, b) => b[1] - a[1])[0];
  done({ colours: counts.size, drawn: 1 - most / (data.length / 4), paper });
};
image.src = "data:image/png;base64," + source;
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, diagnosis: Diagnosis) -> str:
    return write_report(diagnosis, tmp_path_factory.mktemp("report") / "report.html").as_uri()


def picture(browser: Any, selector: str) -> dict[str, float]:
    """How many colours an element shows, the share of its pixels that are not paper, and the paper's colour."""
    from selenium.webdriver.common.by import By

    element = browser.find_element(By.CSS_SELECTOR, selector)
    source = element.screenshot_as_base64
    browser.get("about:blank")
    emulate(browser)
    return browser.execute_async_script(COLOURS, source)


def until(wanted: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if wanted():
            return True
        time.sleep(0.05)
    return False


def dots(browser: Any) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('#stage .dot')].map((d) => d.style.transform)")


def test_nothing_is_requested_and_nothing_is_complained_about(opened: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert opened.get_log("browser") == []
    assert opened.execute_script("return typeof window.alerted") == "undefined"


def test_the_policy_stops_scripts_and_connections_that_are_added(opened: Any) -> None:
    opened.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s);"
    )
    assert opened.execute_script("return window.broken") is None
    failed = opened.execute_async_script(
        "const done = arguments[0]; fetch('https://localhost/').then(() => done(false), () => done(true));"
    )
    assert failed is True


FIGURES = ("agreement-mean-pair-cosine", "norms-chart", "components-chart", "weights-qk", "weights-ov", "paths-stills")


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_draws_something(opened: Any, figure: str) -> None:
    found = picture(opened, f"#{figure} svg")
    assert found["colours"] > 20
    assert found["drawn"] > 0.02


def test_figures_and_tables_are_there_without_scripts(browser: Any, address: str) -> None:
    emulate(browser, scripts=False)
    browser.get(address)
    from selenium.webdriver.common.by import By

    drawings = browser.find_elements(By.CSS_SELECTOR, "figure svg")
    assert len(drawings) == 13
    assert sum(drawing.is_displayed() for drawing in drawings) == 7
    assert not browser.find_element(By.ID, "player").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "#norms details summary").click()
    assert browser.find_element(By.CSS_SELECTOR, "#norms table").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "label[for=pick-4]").click()
    shown = [panel.is_displayed() for panel in browser.find_elements(By.CSS_SELECTOR, ".panel")]
    assert shown == [False, False, False, True, False, False, False]
    assert picture(browser, "#components-chart svg")["drawn"] > 0.02


def test_the_slider_moves_the_tokens_by_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    slider = opened.find_element(By.ID, "depth")
    before = dots(opened)
    slider.send_keys(Keys.ARROW_RIGHT)
    assert opened.find_element(By.ID, "depth-name").text == "Layer 1"
    after = dots(opened)
    assert all(one != other for one, other in zip(before, after, strict=True))
    slider.send_keys(Keys.END)
    assert opened.find_element(By.ID, "depth-name").text == "Layer 30"
    assert opened.execute_script("return document.querySelector('#stage desc').textContent").startswith("Layer 30")
    assert "norm 22,600" in opened.find_element(By.ID, "stage").text


def test_tokens_lie_where_the_dataset_puts_them(opened: Any, diagnosis: Diagnosis) -> None:
    places = opened.execute_script(
        "return [...document.querySelectorAll('#stage .dot')]"
        ".map((dot) => dot.style.transform.match(/-?[\\d.]+/g).map(Number))"
    )
    wanted = diagnosis.paths["position"].sel(layer=0).values
    scale = (places[1][0] - places[0][0]) / (wanted[1][0] - wanted[0][0])
    for place, position in zip(places, wanted, strict=True):
        assert place[0] - places[0][0] == pytest.approx(scale * (position[0] - wanted[0][0]), abs=1.0)
        assert places[0][1] - place[1] == pytest.approx(scale * (position[1] - wanted[0][1]), abs=1.0)


def test_play_runs_to_the_end_and_can_be_paused(opened: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    emulate(opened, calm=False)
    button = opened.find_element(By.ID, "play")
    button.send_keys(Keys.SPACE)
    assert button.text == "Pause"
    assert until(lambda: opened.find_element(By.ID, "depth").get_property("value") == "2")
    button.send_keys(Keys.SPACE)
    assert button.text == "Play"


def test_motion_is_dropped_when_the_reader_asks_for_less(opened: Any) -> None:
    ask = "return getComputedStyle(document.querySelector('#stage .dot')).transitionDuration"
    assert opened.execute_script(ask) == "0s"
    emulate(opened, calm=False)
    assert opened.execute_script(ask) == "0.35s"


def test_arrows_move_from_token_to_token_and_tell_its_norm(opened: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chips = opened.find_elements(By.CSS_SELECTOR, "#sentence .token")
    chips[0].send_keys(Keys.ARROW_RIGHT)
    assert opened.switch_to.active_element.text == "museum"
    assert opened.find_element(By.ID, "told").text.startswith("museum (position 1), embedding: norm ")
    assert "museum · norm" in opened.find_element(By.ID, "stage").text


def test_hovering_a_mark_tells_its_numbers(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    mark = opened.find_elements(By.CSS_SELECTOR, "#components-chart .tip")[4]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(opened).move_to_element(mark).perform()
    tip = opened.find_element(By.ID, "tip")
    assert until(tip.is_displayed)
    assert tip.text.startswith("Layer 5: ")
    assert "attention: " in tip.text


def test_a_table_sorts_by_the_numbers_of_a_column(opened: Any) -> None:
    from selenium.webdriver.common.by import By

    head = opened.find_elements(By.CSS_SELECTOR, "#weights .wide thead th")[7]
    button = head.find_element(By.TAG_NAME, "button")
    read = (
        "return [...document.querySelectorAll('#weights .wide tbody tr')].map((r) => "
        "Number(r.cells[7].textContent.replace('−', '-')))"
    )
    for direction in ("ascending", "descending"):
        opened.execute_script("arguments[0].click()", button)
        assert head.get_attribute("aria-sort") == direction
        values = opened.execute_script(read)
        assert values == sorted(values, reverse=direction == "descending")


def test_dark_follows_the_system(opened: Any, address: str) -> None:
    light = picture(opened, "#norms-chart svg")
    opened.get(address)
    emulate(opened, scheme="dark")
    dark = picture(opened, "#norms-chart svg")
    assert light["paper"] > 0xF00000
    assert dark["paper"] < 0x303030
    assert dark["drawn"] > 0.02


def test_nothing_overflows_on_a_phone(opened: Any) -> None:
    assert width_on_a_phone(opened) <= PHONE


def test_it_prints_on_a4_with_no_figure_taller_than_a_page(opened: Any) -> None:
    printed = base64.b64decode(opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert printed.startswith(b"%PDF")
    assert 4 <= printed.count(b"/Type /Page\n") <= 12
    emulate(opened, media="print")
    heights = opened.execute_script("return [...document.querySelectorAll('figure')].map((f) => f.offsetHeight)")
    assert max(heights) < 1000
    rule = "return [...document.querySelectorAll('figure')].every((f) => getComputedStyle(f).breakInside === 'avoid')"
    assert opened.execute_script(rule)
    assert opened.execute_script("return getComputedStyle(document.getElementById('player')).display") == "none"
