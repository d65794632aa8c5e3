"""The page of a simulation in headless Chromium, from the file, with every host name made unreachable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokendynamics as td
from report.chromium import PHONE, on_a_phone, width_on_a_phone

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    x0 = np.random.default_rng(3).normal(size=(8, 5, 3))
    run = td.simulate(td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Free()), x0, np.linspace(0, 2, 21), rtol=1e-4)
    path: Path = run.report(tmp_path_factory.mktemp("page") / "report.html")
    return path.as_uri()


def test_nothing_is_requested_and_nothing_is_complained_about(opened: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert opened.get_log("browser") == []


def test_on_a_phone_every_drawing_fits(opened: Any) -> None:
    assert width_on_a_phone(opened) <= PHONE
    script = """
    return [...document.querySelectorAll('.drawing')].map((one) => {
      const shown = [...one.querySelectorAll('svg')].filter((svg) => svg.getBoundingClientRect().width > 0);
      return [shown.map((svg) => svg.getAttribute('class')), one.scrollWidth - one.clientWidth];
    });
    """
    with on_a_phone(opened):
        result = opened.execute_script(script)
    assert len(result) >= 6
    assert all(one == [["narrow"], 0] for one in result)
    assert all(shown == ["wide"] for shown, _ in opened.execute_script(script))


def test_every_chart_is_saved_as_svg_and_its_numbers_as_csv(opened: Any) -> None:
    figures = opened.execute_script("""
    return [...document.querySelectorAll('figure')].filter((one) => one.querySelector('svg')).map((one) =>
      [!one.querySelector('button.save').hidden, one.querySelector('a.save').getAttribute('href').slice(0, 14)]);
    """)
    assert len(figures) >= 6
    assert all(one == [True, "data:text/csv;"] for one in figures)


def test_the_pointer_tells_the_numbers_of_a_time(opened: Any) -> None:
    text = opened.execute_script("""
    const tips = [...document.querySelectorAll('#norms svg.wide .tip')];
    return [tips.length, tips[0].dataset.tip, tips.at(-1).dataset.tip];
    """)
    assert text[0] == 21
    assert text[1].startswith("t = 0: median ")
    assert text[2].startswith("t = 2: median ")
