"""The page in headless Chromium, from the file, with every host name made unreachable."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from report.chromium import PHONE, emulate, on_a_phone, width_on_a_phone
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.report import write

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
    return write(diagnosis, tmp_path_factory.mktemp("report") / "report.html").as_uri()


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


def dots(browser: Any) -> list[Any]:
    """Where each token stands on the canvas; None for one that is massive."""
    places = browser.execute_script("return tokendynamicsPaths.state().places")
    return [place and (place["x"], place["y"]) for place in places]


@pytest.mark.long
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


FIGURES = (
    "shares-chart",
    "shares-consensus",
    "components-chart",
    "deeper-consensus",
    "updates-chart",
    "norms-chart",
    "attention-chart",
    "agreement-mean-pair-cosine",
    "weights-qk",
    "weights-ov",
    "paths-stills",
)


@pytest.mark.few(5)
@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_draws_something(opened: Any, figure: str) -> None:
    result = picture(opened, f"#{figure} svg")
    assert result["colours"] > 20
    assert result["drawn"] > 0.02


def test_figures_and_tables_are_there_without_scripts(browser: Any, address: str) -> None:
    emulate(browser, scripts=False)
    browser.get(address)
    from selenium.webdriver.common.by import By

    drawings = browser.find_elements(By.CSS_SELECTOR, "figure svg")
    assert len(drawings) == 2 * 23
    # Of each variant one panel, of each figure the drawing for wide screens.
    assert sum(drawing.is_displayed() for drawing in drawings) == 23 - 1 - 1 - 2 - 6
    assert not browser.find_element(By.CSS_SELECTOR, "button.save").is_displayed()
    assert browser.find_element(By.CSS_SELECTOR, "#shares-chart a.save").is_displayed()
    assert not browser.find_element(By.ID, "player").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "#norms details summary").click()
    assert browser.find_element(By.CSS_SELECTOR, "#norms table").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "label[for=agreement-pick-4]").click()
    shown = [panel.is_displayed() for panel in browser.find_elements(By.CSS_SELECTOR, "#agreement .panel")]
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
    label = opened.find_element(By.ID, "stage-canvas").get_attribute("aria-label")
    assert label == "How do the tokens move? Layer 30: 12 tokens, 1 of them massive."
    assert "norm 22,600" in opened.find_element(By.ID, "stage").text


def test_tokens_lie_where_the_dataset_puts_them(opened: Any, diagnosis: Diagnosis) -> None:
    places = dots(opened)
    wanted = diagnosis.paths["position"].sel(layer=0).values
    scale = (places[1][0] - places[0][0]) / (wanted[1][0] - wanted[0][0])
    for place, position in zip(places, wanted, strict=True):
        assert place[0] - places[0][0] == pytest.approx(scale * (position[0] - wanted[0][0]), abs=1.0)
        assert places[0][1] - place[1] == pytest.approx(scale * (position[1] - wanted[0][1]), abs=1.0)


@pytest.mark.parametrize("phone", [False, True])
def test_massive_tokens_are_listed_in_their_colour_and_cover_no_token(phone: bool, opened: Any) -> None:
    listed = """
    const slider = document.getElementById("depth"), canvas = document.getElementById("stage-canvas");
    slider.value = arguments[0];
    slider.dispatchEvent(new Event("input"));
    const top = document.getElementById("massive").getBoundingClientRect().top;
    const rows = [...document.querySelectorAll("#massive li")];
    const chip = (at) => getComputedStyle(document.querySelectorAll("#sentence .token")[at]).borderBottomColor;
    return { below: top - canvas.getBoundingClientRect().bottom, words: rows.map((row) => row.textContent),
      colours: rows.slice(1).map((row) => getComputedStyle(row).borderInlineStartColor), chips: [chip(0), chip(4)] };
    """
    with on_a_phone(opened) if phone else nullcontext():
        none, two = (opened.execute_script(listed, layer) for layer in (0, 4))
    assert none["words"] == ["No massive token"]
    heading, first, other = two["words"]
    assert heading == "Massive tokens, not drawn:"
    assert first.startswith("<script>alert(1)</scrip…: norm 22,600")
    assert other == "word0: norm 22,600"
    assert two["colours"] == two["chips"]
    assert min(none["below"], two["below"]) >= 0


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
    go = """
    const slider = document.getElementById("depth");
    slider.value = arguments[0];
    slider.dispatchEvent(new Event("input"));
    return tokendynamicsPaths.state().shown;
    """
    assert opened.execute_script(go, 5) == 5
    emulate(opened, calm=False)
    assert opened.execute_script(go, 9) < 9
    assert until(lambda: opened.execute_script("return tokendynamicsPaths.state().shown") == 9)


def test_tokens_fill_the_stage_in_every_layer_unless_one_scale_is_asked_for(opened: Any, diagnosis: Diagnosis) -> None:
    from selenium.webdriver.common.by import By

    def height() -> float:
        rows = [place[1] for place in dots(opened) if place]
        return (max(rows) - min(rows)) / opened.find_element(By.ID, "stage-canvas").size["height"]

    slider, one_scale = opened.find_element(By.ID, "depth"), opened.find_element(By.ID, "one-scale")
    for _ in range(4):
        columns = [place[0] for place in dots(opened) if place]
        width = (max(columns) - min(columns)) / opened.find_element(By.ID, "stage-canvas").size["width"]
        assert max(width, height()) > 0.7
        slider.send_keys("\ue014")
    positions = diagnosis.paths["position"].values
    opened.execute_script("arguments[0].click()", one_scale)
    drawn = height()
    height_in_layer_4 = np.nanmax(positions[4, :, 1]) - np.nanmin(positions[4, :, 1])
    opened.execute_script("document.getElementById('depth').value = 7")
    slider.send_keys("\ue014")
    height_in_layer_8 = np.nanmax(positions[8, :, 1]) - np.nanmin(positions[8, :, 1])
    assert height() / drawn == pytest.approx(height_in_layer_8 / height_in_layer_4, rel=0.02)


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

    opened.execute_script("document.querySelector('#weights-qk details').open = true")
    head = opened.find_elements(By.CSS_SELECTOR, "#weights-qk thead th")[2]
    button = head.find_element(By.TAG_NAME, "button")
    read = (
        "return [...document.querySelectorAll('#weights-qk tbody tr')].map((r) => "
        "Number(r.cells[2].textContent.replace('−', '-')))"
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


def test_captions_of_wide_tables_are_whole_on_a_phone(opened: Any) -> None:
    script = """
    for (const details of document.querySelectorAll("details")) details.open = true;
    const tables = [...document.querySelectorAll(".scroll")].filter((scroll) => scroll.clientWidth > 0);
    return tables.map((scroll) => ({
      wide: scroll.scrollWidth > scroll.clientWidth,
      right: scroll.getBoundingClientRect().right - scroll.querySelector("caption span").getBoundingClientRect().right,
    }));
    """
    with on_a_phone(opened):
        tables = opened.execute_script(script)
    opened.refresh()
    assert any(table["wide"] for table in tables)
    assert min(table["right"] for table in tables) >= 0


SIZES = """
return [...document.querySelectorAll(".drawing svg")].filter((svg) => svg.checkVisibility()).map((svg) => ({
  name: svg.closest("figure").id,
  left: svg.getBoundingClientRect().left,
  right: svg.getBoundingClientRect().right,
  scrolls: svg.parentNode.scrollWidth > svg.parentNode.clientWidth,
  letters: Math.min(...[...svg.querySelectorAll("text")].map((text) =>
    parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)),
  outside: [...svg.querySelectorAll("text")].filter((text) =>
    text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 2 ||
    text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 2).map((text) => text.textContent),
}));
"""


def test_every_figure_fits_a_phone_and_its_letters_can_be_read(opened: Any) -> None:
    with on_a_phone(opened):
        shown = opened.execute_script(SIZES)
    assert len(shown) == 13
    for entry in shown:
        assert entry["left"] >= 0, entry
        assert entry["right"] <= PHONE, entry
        assert not entry["scrolls"], entry
        assert entry["letters"] >= (6 if entry["name"].startswith("weights") else 10), entry
        assert entry["outside"] == [], entry


def test_a_drawing_is_saved_whole_and_a_table_with_every_digit(opened: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    opened.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for selector in ("#weights-qk button.save", "#shares-chart a.save"):
        opened.execute_script("arguments[0].click()", opened.find_element(By.CSS_SELECTOR, selector))
    drawing, table = tmp_path / "weights-qk.svg", tmp_path / "shares-chart.csv"
    assert until(lambda: drawing.is_file() and table.is_file())
    root = ElementTree.parse(drawing).getroot()  # noqa: S314  # our own page
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"]) > 600
    assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) == 1 + 270
    assert table.read_text(encoding="utf-8").startswith("Layer,After,Common to all texts,from,to,")
    assert opened.get_log("browser") == []


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
