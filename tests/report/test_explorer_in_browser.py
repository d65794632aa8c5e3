"""The explorer in headless Chromium: its trajectories against `simulate`, its controls, and what it says."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import tokendynamics as td
from report.chromium import PHONE, emulate, on_a_phone, violations, width_on_a_phone
from tokendynamics import observables
from tokendynamics.report._page import resource
from tokendynamics.report.explorer import _page, _statements
from tokendynamics.report.explorer._flow import changed, numbers_of, peak, sharpness
from tokendynamics.report.explorer._system import LINK
from tokendynamics.specification import parse
from tokendynamics.specification.build import build
from tokendynamics.theorems.registry import named
from tokendynamics.words import number

pytestmark = pytest.mark.browser
HOOK = "window.tokendynamicsExplorer"
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


@pytest.fixture(scope="module")
def address(presets_page: Path) -> str:
    return presets_page.as_uri()


def asked(browser: Any, expression: str, *arguments: Any) -> Any:
    """What the page's hook answers."""
    return browser.execute_script(f"const hook = {HOOK}; return {expression}", *arguments)


def random_flow(seed: int) -> tuple[td.Flow, torch.Tensor]:
    """A flow of any space, mask, weights, heads and positions, and a start."""
    rng = np.random.default_rng(seed)
    dim, heads, tokens = int(rng.integers(2, 6)), int(rng.integers(1, 4)), int(rng.integers(2, 13))
    qk, ov = rng.normal(size=(2, heads, dim, dim)) / np.sqrt(dim)
    if seed % 3 == 0:
        ov = np.array([(-1.0) ** head * np.eye(dim) for head in range(heads)])
    root = rng.normal(size=(dim, dim)) / 3
    space = [td.Sphere(), td.Free(), td.Ellipsoid(root @ root.T + np.eye(dim))][seed % 4 % 3]
    positions: Any = None
    if seed % 5 == 1:
        positions = td.AbsolutePositions(rng.normal(size=(tokens, dim)) / 3)
    if seed % 5 == 2:
        one = 1 if seed % 2 else heads
        positions = td.RotaryPositions(*rng.normal(size=(2, one, dim, 2)) / 2, base=20.0, scale=0.7)
    weights: Any = {3: "linear", 5: "exponential"}.get(seed % 7, "softmax")
    normalization: Any = (None, "plain", "paper")[seed % 3]
    attention = td.Attention(
        qk,
        ov,
        causal=bool(seed % 2),
        weights=weights,
        normalization=normalization,
        positions=positions,
        offset=0.4 if weights == "exponential" else 0.0,
    )
    flow = td.Flow(attention, space)
    return flow, flow.geometry.project(torch.as_tensor(rng.normal(size=(tokens, dim)) / 2))


@pytest.mark.few(2)
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_trajectories_are_those_of_python(first: int, opened: Any) -> None:
    for seed in range(first, first + 8):
        flow, start = random_flow(seed)
        times = np.linspace(0.0, 2.0 if flow.attention.weights == "softmax" else 0.5, 9)
        run = td.simulate(flow, start, times, rtol=1e-11, atol=1e-13)
        assert str(run.status) == "reached the horizon"
        given = numbers_of(flow, start), sharpness(flow), times.tolist()
        solved = asked(opened, "hook.solve(arguments[0], arguments[1], arguments[2])", *given)
        states = np.array(solved["states"]).reshape(run.tensor.shape)
        scale = max(1.0, float(run.tensor.abs().max()))
        np.testing.assert_allclose(states, run.tensor.numpy(), rtol=0, atol=1e-7 * scale, err_msg=f"seed {seed}")
        unlike = [float(observables.mean_pair_cosine(state)) for state in run.tensor]
        np.testing.assert_allclose([one["similarity"] for one in solved["measures"]], unlike, atol=1e-6)
        ranks = [float(observables.effective_rank(state)) for state in run.tensor]
        np.testing.assert_allclose([one["rank"] for one in solved["measures"]], ranks, atol=1e-5)
        counts = [int(observables.clusters(state, LINK)) for state in run.tensor]
        assert [one["clusters"] for one in solved["measures"]] == counts


RUNNING = [*product(("one-cluster", "metastability", "leader", "repulsion"), ("softmax", "exponential"))]


@pytest.mark.few(1)
@pytest.mark.parametrize(("preset", "weights"), [*RUNNING, ("rotary", "softmax")])
def test_presets_move_pause_and_are_the_flow_that_their_code_makes(preset: str, weights: str, opened: Any) -> None:
    asked(opened, "hook.set({preset: arguments[0], weights: arguments[1]})", preset, weights)
    first = asked(opened, "hook.state()")
    asked(opened, "hook.seek(300)")
    last = asked(opened, "hook.state()")
    assert (first["frame"], last["frame"], last["ended"]) == (0, 300, "")
    assert np.abs(np.subtract(first["states"], last["states"])).max() > 0.1
    python, toml = asked(opened, "hook.code('python')"), asked(opened, "hook.code('toml')")
    assert ("offset" in python, "offset" in toml) == ((weights == "exponential",) * 2)
    names: dict[str, Any] = {}
    exec(python.replace("print(run.summary())", ""), names)  # noqa: S102  # what the page gives its reader
    run = names["run"]
    ends = np.array(last["states"]).reshape(run.tensor.shape[1:])
    size = float(run.tensor[-1].abs().max())
    np.testing.assert_allclose(ends, run.tensor[-1].numpy(), rtol=0, atol=1e-6 * size)
    setup = build(parse(toml, "explorer.toml"))
    assert tomllib.loads(toml)["title"]
    torch.testing.assert_close(
        setup.flow.velocity(setup.start), names["flow"].velocity(setup.start), rtol=1e-12, atol=0
    )
    np.testing.assert_array_equal(setup.times, run.times)


@pytest.mark.long
def test_where_the_flow_ends_the_picture_does_and_says_when(opened: Any) -> None:
    """Exponential weights of logits that nothing bounds."""
    asked(opened, "hook.set({preset: 'rotary', weights: 'exponential'})")
    asked(opened, "hook.seek(300)")
    names: dict[str, Any] = {}
    exec(asked(opened, "hook.code('python')"), names)  # noqa: S102  # what the page gives its reader
    assert str(names["run"].status) == "diverged"
    assert asked(opened, "hook.state()")["frame"] == 0
    (mantissa,) = re.findall(
        r"The run ends here: the steps that the error allows become too small at t = ([\d.]+) × 10⁻¹²\.",
        words(opened, "summary"),
    )
    assert float(mantissa) * 1e-12 == pytest.approx(float(names["run"].end_times), rel=0.05)


@pytest.mark.parametrize(
    ("flow", "end", "why"),
    [
        (td.Flow(td.Attention(np.eye(2), 2 * np.eye(2)), td.Free()), 50.0, "tokens fly apart: one is farther than 10⁹"),
        (td.Flow(td.Attention(np.eye(2), 1e5 * TURN), td.Sphere()), 10.0, "the 20,000 steps that a browser takes"),
        (td.Flow(td.Attention(np.eye(2), np.eye(2)), td.Free()), 2.0, ""),
    ],
    ids=["far", "fast", "whole"],
)
def test_a_run_that_cannot_be_followed_says_why(flow: td.Flow, end: float, why: str, opened: Any) -> None:
    given = numbers_of(flow, torch.tensor([[1.0, 0.5], [-0.3, 0.8]])), 1.0, [0.0, end]
    ended = asked(opened, "hook.solve(arguments[0], arguments[1], arguments[2]).ended", *given)
    assert ended.startswith(why)
    assert bool(ended) == bool(why)


def test_the_energy_is_the_potential(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'one-cluster', beta: 3, tokens: 9})")
    asked(opened, "hook.seek(50)")
    state = asked(opened, "hook.state()")
    states = np.array(state["states"]).reshape(9, 3)
    assert state["energy"] == pytest.approx(float(observables.log_potential(states, 3 * np.eye(3))), rel=1e-12)


def words(browser: Any, ident: str) -> str:
    return browser.execute_script("return document.getElementById(arguments[0]).textContent", ident)


def test_each_control_changes_what_moves_and_what_is_said(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'one-cluster'})")
    asked(opened, "hook.seek(120)")
    before, text = asked(opened, "hook.state()"), words(opened, "summary")
    assert "draw together" in text
    for changes in ({"beta": 6}, {"mask": "causal"}, {"weights": "linear"}, {"weights": "exponential"}, {"tokens": 7}):
        asked(opened, "hook.set({preset: 'one-cluster', ...arguments[0]})", changes)
        asked(opened, "hook.seek(120)")
        after = asked(opened, "hook.state()")
        assert after["states"] != before["states"]
        assert words(opened, "summary") != text
    asked(opened, "hook.set({preset: 'rotary', positions: 'off'})")
    asked(opened, "hook.seek(300)")
    shrunk = asked(opened, "hook.state()")
    asked(opened, "hook.set({preset: 'rotary', positions: 'on'})")
    asked(opened, "hook.seek(300)")
    assert np.abs(asked(opened, "hook.state()")["states"]).max() > 10 * np.abs(shrunk["states"]).max()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("preset", "frame", "sentence"),
    [
        ("one-cluster", 100, "draw together"),
        ("one-cluster", 300, "have met"),
        ("repulsion", 10, "move apart"),
        ("repulsion", 290, "hardly move"),
    ],
)
def test_the_summary_says_what_the_tokens_do(preset: str, frame: int, sentence: str, opened: Any) -> None:
    asked(opened, "hook.set({preset: arguments[0]})", preset)
    asked(opened, "hook.seek(arguments[0])", frame)
    assert sentence in words(opened, "summary")


def test_the_sentence_of_a_start_is_said_of_its_own_settings_alone(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'metastability'})")
    sentence = words(opened, "sentence")
    assert sentence.startswith("Tokens gather in two clusters")
    asked(opened, "hook.set({beta: 8})")
    assert words(opened, "sentence") == f"As it starts, before a control is changed: {sentence}"
    asked(opened, "hook.set({beta: 4})")
    assert words(opened, "sentence") == sentence


def test_the_panel_follows_the_controls(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'leader'})")
    # That the start is drawn uniformly, or generic, cannot be measured.
    marked = "return [...document.querySelectorAll('#statements > .applies summary')].map((one) => one.textContent[0])"
    marks = opened.execute_script(marked)
    assert [marks.count(mark) for mark in "✓?✗"] == [2, 5, 0]
    assert opened.find_element("id", "cited").is_displayed()
    assert words(opened, "theory-answer") == (
        "2 statements apply: all their hypotheses hold. 5 more apply if what cannot be measured (?) holds."
    )
    elsewhere = words(opened, "theory-where")
    assert re.fullmatch(r"\d+ more statements are about flows of another kind\.", elsewhere.strip())
    asked(opened, "hook.set({mask: 'full', weights: 'linear', beta: 3, tokens: 5})")
    assert "(asymptotic 5.1)" not in "".join(
        opened.execute_script(
            "return [...document.querySelectorAll('#statements > .applies summary')].map((one) => one.textContent)"
        )
    )
    fewer = "Computed for all 24 tokens of the start; nothing is certified of fewer."
    assert words(opened, "theory-where") == f"{fewer} {elsewhere.strip()}"
    asked(opened, "hook.set({preset: 'one-cluster'})")
    one = "8 statements apply: all their hypotheses hold."
    assert words(opened, "theory-answer") == f"{one} One more applies if what cannot be measured (?) holds."
    asked(opened, "hook.set({preset: 'rotary'})")
    assert words(opened, "theory-answer") == "No theorem covers this."


def certificates(browser: Any) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('.certificate')].map((one) => one.textContent)")


def test_a_certificate_is_of_the_setting_or_says_of_which(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'leader', beta: 8})")
    (leader,) = (system for system in asked(opened, "hook.data.systems") if system["name"] == "leader")
    table = leader["certificates"]

    def said(beta: float, causal: bool) -> list[str]:
        places = table["index"][6 * table["beta"].index(beta) + 3 * causal]
        return [f"Certificate: {table['certified'][place]['words']}." for place in places]

    assert certificates(opened) == said(8, True)
    assert "undecided" in said(8, True)[0]
    asked(opened, "hook.set({beta: 2})")
    assert certificates(opened) == said(2, True)
    assert "holds" in said(2, True)[0]
    asked(opened, "hook.set({beta: 3})")
    assert certificates(opened) == [f"{one} Computed for the nearest grid point (β = 4)." for one in said(4, True)]
    asked(opened, "hook.set({mask: 'full', beta: 2})")
    assert certificates(opened) == said(2, False)
    assert len(said(2, False)) == 5
    for changes in ({"tokens": 9}, {"tokens": 24, "weights": "linear"}, {"preset": "rotary"}):
        asked(opened, "hook.set(arguments[0])", changes)
        assert certificates(opened) == []
        assert not opened.find_element("id", "certified").is_displayed()


@pytest.mark.parametrize(
    ("preset", "change"), [("one-cluster", "the spread fell from 0.692 to 0"), ("repulsion", "the spread rose from")]
)
def test_beside_a_prediction_stands_what_is_seen(preset: str, change: str, opened: Any) -> None:
    asked(opened, "hook.set({preset: arguments[0]})", preset)
    asked(opened, "hook.seek(0)")
    assert words(opened, "theory-seen") == "Seen: nothing yet."
    asked(opened, "hook.seek(300)")
    assert change in words(opened, "theory-seen")


def test_a_change_that_three_digits_do_not_show_is_none(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'rotary', positions: 'off'})")
    asked(opened, "hook.seek(300)")
    assert words(opened, "theory-seen") == (
        "Seen: from t = 0 to 2 the spread stayed at 1.33; the number of clusters is the same."
    )


def written_in(browser: Any, chart: str) -> list[str]:
    """The words that are drawn in a chart."""
    return browser.execute_script(
        """
        const own = CanvasRenderingContext2D.prototype, kept = own.fillText, seen = [];
        own.fillText = (text) => seen.push(text);
        drawChart(arguments[0]);
        own.fillText = kept;
        return seen;
        """,
        chart,
    )


def test_a_chart_names_its_ends_or_the_one_value_that_it_has(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'rotary', positions: 'off'})")
    assert written_in(opened, "clusters") == ["4"]
    norms = opened.execute_script("return movie.measures.map((one) => one.energy)")
    assert written_in(opened, "energy") == [number(max(norms)), number(min(norms))]
    asked(opened, "hook.set({preset: 'leader'})")
    spreads = opened.execute_script("return movie.measures.map((one) => one.spread)")
    assert written_in(opened, "spread") == [number(max(spreads)), number(min(spreads))]


def test_a_strip_rises_with_the_cosine_and_has_the_values_of_beta_in_order(opened: Any) -> None:
    """One on top, −1 at the bottom; β on a logarithmic scale, and the bar at the β that is set."""
    asked(opened, "hook.set({preset: 'leader', beta: 1})")
    values = asked(opened, "hook.sweep()")
    lines = opened.execute_script("""
    const lines = [], kept = line;
    line = (pen, colour, dash, points) => lines.push(points);
    drawSweep();
    line = kept;
    return lines;
    """)
    (top, bottom), curve = lines
    low, high = curve[0][0], curve[-1][0]
    np.testing.assert_allclose([x for x, _ in curve], np.linspace(low, high, 25), atol=0.01)
    assert top[0] == bottom[0] == pytest.approx(low + (high - low) / 3, abs=0.01)
    height = bottom[1]
    np.testing.assert_allclose([y for _, y in curve], 3 + (height - 6) * (1 - np.array(values)) / 2, atol=0.01)


def test_a_strip_without_a_value_says_why(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'rotary', weights: 'linear', mask: 'causal'})")
    assert set(asked(opened, "hook.sweep()")) == {None}
    assert words(opened, "sweep-words").endswith("the β that is set. No run reaches that time.")


def test_the_bar_in_the_charts_is_at_the_time_that_is_shown(opened: Any) -> None:
    """A bar of two pixels below the curves, whose first point is at 4.5 rem and whose last is at the right edge."""
    asked(opened, "hook.set({preset: 'leader'})")
    for frame in (0, 75, 300):
        asked(opened, "hook.seek(arguments[0])", frame)
        share = "return Number(document.getElementById('rank').computedStyleMap().get('--at')[0])"
        assert opened.execute_script(share) == pytest.approx(frame / 300)


def test_a_sweep_of_a_slow_flow_leaves_the_page_time(opened: Any) -> None:
    """By a clock that goes on by a millisecond whenever it is asked: a piece of a run ends when its time is over."""
    asked(opened, "hook.set({preset: 'metastability', tokens: 31})")
    steps = opened.execute_script("""
    const kept = performance.now.bind(performance);
    let clock = 0;
    sweep.key = "";
    performance.now = () => clock++;
    const steps = [];
    try {
      for (let piece = 0; piece < 5; piece++) {
        sweepOn();
        steps.push(sweep.movie.run.steps);
      }
    } finally { performance.now = kept; }
    return steps;
    """)
    assert 1 <= steps[0] <= 4
    assert all(1 <= after - before <= 4 for before, after in pairwise(steps))
    # What is computed in pieces is what is computed at once.
    values = asked(opened, "hook.sweep()")
    whole = opened.execute_script(
        "sweep.key = ''; const now = performance.now; performance.now = () => 0;"
        f"try {{ return {HOOK}.sweep() }} finally {{ performance.now = now }}"
    )
    assert values == whole


def test_tokens_that_hardly_pull_each_other_keep_the_digits_of_their_motion(opened: Any) -> None:
    """At β = 40 two tokens at right angles move by exp(−40) a time: far less than a coordinate's rounding."""
    flow = td.Flow(td.Attention(np.eye(2), np.eye(2), normalization="plain"), td.Sphere())
    start = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    end = 2e15
    given = numbers_of(flow, start), 40.0, [0.0, end]
    states = np.reshape(
        asked(opened, "hook.solve(arguments[0], arguments[1], arguments[2]).states", *given)[-1], (2, 2)
    )

    def slope(_: float, angle: np.ndarray) -> np.ndarray:
        return -2 * np.sin(angle) / (1 + np.exp(40 * (1 - np.cos(angle))))

    solved = solve_ivp(slope, (0.0, end), [np.pi / 2], rtol=1e-10, atol=1e-12, method="LSODA")
    angle = float(np.arccos(np.clip(states[0] @ states[1], -1, 1)))
    assert float(solved.y[0, -1]) < np.pi / 2 - 0.01
    assert angle == pytest.approx(float(solved.y[0, -1]), abs=1e-6)


def test_the_code_is_small() -> None:
    text = "\n\n".join(resource(name) for name in _page.SCRIPTS)  # as on the page
    code = re.sub(r"/\*\*.*?\*/|^//.*?$", "", text, flags=re.DOTALL | re.MULTILINE)  # without comments and types
    assert 30_000 < len(code.encode()) <= 60_000


@pytest.mark.parametrize(("preset", "logarithmic"), [("metastability", True), ("one-cluster", False)])
def test_a_logarithmic_time_and_a_view_that_turns_are_said(preset: str, logarithmic: bool, opened: Any) -> None:
    """The first tokens are on a circle, which cannot be turned."""
    asked(opened, "hook.set({preset: arguments[0]})", preset)
    assert opened.find_element("id", "turning").is_displayed() != logarithmic
    assert opened.find_element("id", "log-time").is_displayed() == logarithmic


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "act", ["hook.set({preset: 'rotary'})", "hook.tour(2)", "document.getElementById('keep').click()"]
)
def test_axe_finds_no_violation(act: str, scheme: str, opened: Any, address: str) -> None:
    emulate(opened, scheme=scheme)
    asked(opened, act)
    opened.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert violations(opened) == []


@pytest.mark.slow
def test_each_step_of_the_tour_claims_what_its_control_does(opened: Any) -> None:
    steps = _page.tour()
    assert len(steps) == 8
    for place, step in enumerate(steps):
        asked(opened, "hook.tour(arguments[0])", place)
        assert words(opened, "tour-place") == f"Step {place + 1} of 8"
        assert len(opened.find_elements("css selector", ".pointed")) == 1
        assert opened.find_element("id", "tour-back").is_enabled() == (place > 0)
        before, text = asked(opened, "hook.measure(arguments[0])", step["measure"]), words(opened, "tour-seen")
        assert text.startswith("Now: ")
        assert words(opened, "tour-text") == step["text"]
        asked(opened, "hook.set(arguments[0])", {step["control"]: step["trial"]})
        after = asked(opened, "hook.measure(arguments[0])", step["measure"])
        before, after = (float("inf") if number is None else number for number in (before, after))
        if step["claim"] == "same":
            assert after == pytest.approx(before, rel=0.1, abs=1e-9)
            continue
        assert after > 1.5 * before if step["claim"] == "more" else after < before / 1.5
        assert words(opened, "tour-seen").startswith(f"Before: {text.removeprefix('Now: ')} Now: ")
    opened.find_element("id", "tour-next").click()
    assert opened.execute_script("return document.getElementById('tour').hidden")


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_are_written_as_in_python(sign: int, opened: Any) -> None:
    rng = np.random.default_rng(3)
    values = [*(10 ** rng.uniform(-14, 12, size=300)), 0, 1, 10, 1e-4, 9.994e-5, 9.996e-5, 9999999, 9.99e6, 123456.7]
    values = [float(sign * value) for value in values]
    assert asked(opened, "arguments[0].map(hook.written)", values) == [number(value) for value in values]


@pytest.mark.long
def test_a_page_of_presets_has_a_tour_and_one_of_a_run_has_none(opened: Any, tmp_path: Path) -> None:
    assert opened.find_element("id", "tour-start").is_displayed()
    opened.find_element("id", "tour-start").click()
    assert words(opened, "tour-place") == "Step 1 of 8"
    assert not opened.find_element("id", "tour-start").is_displayed()
    assert not opened.find_element("id", "tour-back").is_enabled()
    opened.find_element("id", "tour-next").click()
    opened.find_element("id", "tour-back").click()
    assert words(opened, "tour-place") == "Step 1 of 8"
    opened.find_element("id", "tour-end").click()
    assert opened.find_element("id", "tour-start").is_displayed()
    opened.get(run_of(2.0, 2).explore(tmp_path / "page.html").as_uri())
    assert not opened.find_element("id", "tour-start").is_displayed()


def test_the_axes_of_a_plane_are_level_and_upright_and_cross_at_zero(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'rotary'})")
    svg = asked(opened, "hook.svg()")
    real = r"(-?[\d.]+)"
    level, upright = ([float(x) for x in ends] for ends in re.findall(rf'd="M{real},{real}L{real},{real}"', svg)[:2])
    width, height = (float(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    assert level[1] == level[3] == pytest.approx(height / 2, abs=0.01)
    assert upright[0] == upright[2] == pytest.approx(width / 2, abs=0.01)
    assert level[0] < 0.1 * width < 0.9 * width < level[2]
    assert min(upright[1], upright[3]) < 0.1 * height < 0.9 * height < max(upright[1], upright[3])


def test_a_term_shows_its_sentence_where_it_stands(opened: Any) -> None:
    tip = opened.find_element("id", "tip")
    for term in opened.find_elements("css selector", "[data-term]"):
        opened.execute_script("arguments[0].focus()", term)
        assert tip.is_displayed()
        assert tip.text == words(opened, f"term-{term.get_attribute('data-term')}")
    for edge in ("start", "end"):
        box = opened.execute_script(
            "const term = document.querySelector('[data-term=energy]'); term.blur();"
            "term.scrollIntoView({block: arguments[0]}); term.focus();"
            "const box = document.getElementById('tip').getBoundingClientRect();"
            "return [box.top, box.bottom, innerHeight]",
            edge,
        )
        assert 0 <= box[0] < box[1] <= box[2]
    opened.switch_to.active_element.send_keys("\ue00c")
    assert not tip.is_displayed()


def test_the_picture_as_svg_has_every_token_and_trail(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'leader', tokens: 9})")
    asked(opened, "hook.seek(60)")
    drawn = ElementTree.fromstring(asked(opened, "hook.svg()"))  # noqa: S314  # what the page itself made
    paths = drawn.findall("{http://www.w3.org/2000/svg}path")
    assert sum(path.get("fill") not in (None, "none") for path in paths) == 9 + 1
    assert sum(path.get("stroke", "").startswith("hsl") for path in paths) >= 9
    # On a sphere, whose radius is 1, there is no bar of a length.
    assert drawn.findall("{http://www.w3.org/2000/svg}text") == []
    assert drawn.findtext("{http://www.w3.org/2000/svg}title") == words(opened, "summary")


def discs_in(svg: str) -> np.ndarray:
    """The middles of the tokens of a picture, from left to right."""
    real = r"(-?[\d.]+)"
    discs = re.findall(rf'<path d="M{real},{real}a{real},[^"]*" fill="hsl', svg)
    return np.array(sorted((float(x) + float(r), float(y)) for x, y, r in discs))


@pytest.mark.parametrize(("preset", "frame"), [("rotary", 0), ("rotary", 10.5), ("leader", 60), ("leader", 60.25)])
def test_tokens_are_drawn_where_they_are_also_between_two_frames(preset: str, frame: float, opened: Any) -> None:
    asked(opened, "hook.set({preset: arguments[0]})", preset)
    states = []
    for place in (int(frame), int(frame) + 1):
        asked(opened, "hook.seek(arguments[0])", place)
        state = asked(opened, "hook.state()")
        states.append(np.reshape(state["states"], (state["tokens"], -1)))
    share = frame % 1
    points = (1 - share) * states[0] + share * states[1]
    svg = opened.execute_script("return svgOf(movie, arguments[0])", frame)
    width, height = (float(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    radius = 0.45 * min(width, height)
    if preset == "leader":
        right = np.array([-np.sin(0.7), np.cos(0.7), 0.0])
        upwards = np.cross([np.cos(0.35) * np.cos(0.7), np.cos(0.35) * np.sin(0.7), np.sin(0.35)], right)
        seen, scale = points @ np.stack([right, upwards], axis=1), radius
    else:
        # The bar at the bottom says how long it is: everything is drawn at that scale.
        left, end = re.findall(r'd="M([\d.]+),[\d.]+L([\d.]+),[^>]*stroke-width="3"', svg)[0]
        length = float(re.findall(r">([\d.]+)</text>", svg)[0])
        seen, scale = points, (float(end) - float(left)) / length
        assert np.abs(scale * seen).max() <= radius + 0.1
    wanted = np.array(sorted(zip(width / 2 + scale * seen[:, 0], height / 2 - scale * seen[:, 1], strict=True)))
    np.testing.assert_allclose(discs_in(svg), wanted, atol=0.5)


def test_a_run_is_played_to_its_end_and_then_anew(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'leader', tokens: 4})")
    asked(opened, "hook.seek(299)")
    ended = opened.execute_async_script(f"""
    const done = arguments[0], hook = {HOOK};
    hook.play();
    setTimeout(() => done(hook.state()), 1500);
    """)
    assert (ended["frame"], ended["playing"]) == (300, False)
    asked(opened, "hook.play()")
    again = asked(opened, "hook.state()")
    assert again["frame"] < 200
    assert again["playing"]


def test_a_head_whose_ov_is_zero_moves_nothing(opened: Any) -> None:
    eye = np.eye(3)
    flow = td.Flow(td.Attention(np.array([eye, 2 * eye]), np.array([eye, 0 * eye])), td.Sphere())
    start = td.Sphere().sample(5, 3, seed=4)
    run = td.simulate(flow, start, [0.0, 1.0], rtol=1e-11, atol=1e-13)
    given = numbers_of(flow, start), 1.0, [0.0, 1.0]
    solved = asked(opened, "hook.solve(arguments[0], arguments[1], arguments[2])", *given)
    np.testing.assert_allclose(np.reshape(solved["states"][-1], (5, 3)), run.tensor[-1].numpy(), atol=1e-8)


@pytest.mark.slow
def test_pictures_and_settings_keep_no_memory(opened: Any) -> None:
    def heap() -> float:
        opened.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        return opened.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]

    once = (
        "for (let place = 0; place < 30; place++) "
        "{ hook.set({beta: 1 + (place % 7), tokens: 8}); hook.seek(300); hook.drawing(120); }"
    )
    heaps = []
    for _ in range(10):
        opened.execute_script(f"const hook = {HOOK}; {once}")
        heaps.append(heap())
    # In the first rounds the browser keeps what it compiles, and at any time it may throw some of that away.
    assert min(heaps[7:]) < 1.05 * min(heaps[3:6])


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "weights", "heads", "words_of_rate"),
    [
        ("asymptotic-4.1", "softmax", (1, 2, 3, 4), "at least like exp(−{rate} t)"),
        ("perspective-6.4", "softmax", (1,), "at least like C exp(−{rate} t)"),
        ("perspective-6.4", "exponential", (1,), "at least like C exp(−{rate} t)"),
    ],
)
def test_rates_are_those_of_check_at_any_beta(
    name: str, weights: Any, heads: tuple[int, ...], words_of_rate: str, opened: Any
) -> None:
    statement = named(name)
    rng = np.random.default_rng(5)
    betas, wanted, given = [], [], []
    for count in heads:
        qk, ov = rng.normal(size=(count, 3, 3)), rng.uniform(0.2, 2, size=(count, 1, 1)) * np.eye(3)
        start = torch.as_tensor(np.abs(rng.normal(size=(6, 3))) + 0.1)
        flow = td.Flow(td.Attention(qk, ov), td.Sphere())
        table = _statements.at_controls(flow, start)
        of_weights = [
            table["rows"][row]
            for row in table["index"][_statements.WEIGHTS.index(weights)]
            if table["rows"][row]["title"] == _statements._title(name)
        ]
        (terms,) = (row["rate"] for row in of_weights)
        for beta in 2 ** rng.uniform(-2, 4, size=1000 // len(heads)):
            now = changed(flow, beta=beta, causal=False, weights=weights, positions=True, peak=peak(flow, start))
            prediction = statement.predict(now, start)
            rate = sum(c * np.exp(-k) for c, k in prediction.bound)
            assert words_of_rate.replace("{rate}", number(rate)) in prediction.text
            betas.append(beta)
            wanted.append(rate)
            given.append(terms)
    rates = asked(opened, "arguments[0].map((terms, at) => hook.rate(terms, arguments[1][at]))", given, betas)
    np.testing.assert_allclose(rates, wanted, rtol=1e-11)


def test_a_printed_rate_follows_the_slider(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'one-cluster', beta: 0.5})")
    first = opened.execute_script("return document.getElementById('statements').textContent")
    asked(opened, "hook.set({beta: 3})")
    second = opened.execute_script("return document.getElementById('statements').textContent")
    assert "at least like exp(−0.03" in first
    # exp(−2β) of Theorem 4.1: five units of the exponent less.
    shown = re.findall(r"at least like exp\(−([^)]*) t\)", second)[0]
    assert re.match(r"0\.000266|0\.00027", shown), shown
    assert "{rate}" not in first + second


def test_the_sweep_is_what_runs_at_each_beta_end_with(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'leader', tokens: 4})")
    values = asked(opened, "hook.sweep()")
    assert len(values) == 25
    for place in (0, 12, 24):
        asked(opened, "hook.set({beta: arguments[0]})", float(2 ** (-2 + place / 4)))
        asked(opened, "hook.seek(300)")
        assert values[place] == pytest.approx(asked(opened, "hook.state()")["similarity"], abs=1e-6)


STILL = """
window.requestAnimationFrame = () => 0;
addEventListener("DOMContentLoaded", () => {
  const { data } = document.getElementById("sweep").getContext("2d").getImageData(0, 0, 200, 46);
  window.first = { words: document.getElementById("sweep-words").textContent, inks: new Set(data).size };
});
"""
"""Of a page that gets no time to compute: what the strip is as soon as the page is read."""


def test_the_strip_of_a_start_is_there_before_anything_is_computed(browser: Any, address: str) -> None:
    emulate(browser)
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": STILL})
    try:
        browser.get("about:blank")
        browser.get(address)
        first = browser.execute_script("return window.first")
        assert first["words"] == (
            "Mean cosine of all pairs at t = 15 for β from 0.25 to 16, on a scale from −1 to 1; "
            "the bar marks the β that is set. Computed by Python, when this page was made."
        )
        assert first["inks"] > 20
        browser.get("about:blank")
        browser.get(f"{address}#mask=causal")
        blank = browser.execute_script("return window.first")
        assert blank["words"].endswith("the β that is set. Being computed …")
        assert blank["inks"] < first["inks"]
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


RECOMPUTED = "movie.system.sweep = null; sweep.key = ''; return hook.sweep()"


@pytest.mark.few(2)
@pytest.mark.parametrize("preset", ["one-cluster", "metastability", "leader", "rotary", "repulsion"])
def test_the_strip_of_python_is_that_which_the_page_computes(preset: str, opened: Any) -> None:
    asked(opened, "hook.set({preset: arguments[0]})", preset)
    of_python = asked(opened, "hook.sweep()")
    assert words(opened, "sweep-words").endswith("Computed by Python, when this page was made.")
    recomputed = opened.execute_script(f"const hook = {HOOK}; {RECOMPUTED}")
    assert words(opened, "sweep-words").endswith("Computed by this page.")
    # The page has six decimals of Python's, whose rtol is 1e-8.
    np.testing.assert_allclose(of_python, recomputed, rtol=0, atol=2e-6)
    assert np.ptp(of_python) > 5e-4


@pytest.mark.slow
def test_with_another_control_the_page_computes_the_strip_itself(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'repulsion'})")
    of_python = asked(opened, "hook.sweep()")
    asked(opened, "hook.set({beta: 9})")
    assert words(opened, "sweep-words").endswith("Computed by Python, when this page was made.")
    for changes in ({"tokens": 6}, {"mask": "causal"}, {"weights": "linear"}):
        asked(opened, "hook.set({preset: 'repulsion', ...arguments[0]})", changes)
        assert words(opened, "sweep-words").endswith("Being computed …")
        computed = asked(opened, "hook.sweep()")
        assert words(opened, "sweep-words").endswith("Computed by this page.")
        assert max(abs(one - other) for one, other in zip(of_python, computed, strict=True) if other is not None) > 1e-2
    asked(opened, "hook.set({preset: 'repulsion', tokens: 32})")
    assert asked(opened, "hook.sweep()") == of_python


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "seed", [1, 3, 19, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_strip_of_any_flow_is_that_which_the_page_computes(seed: int, browser: Any, tmp_path: Path) -> None:
    """Of all spaces, masks, weights, heads and positions; where tokens fly apart, neither has a number."""
    flow, start = random_flow(seed)
    emulate(browser)
    browser.get(td.simulate(flow, start, [0.0, 0.3, 0.6]).explore(tmp_path / "page.html").as_uri())
    of_python = [np.nan if one is None else one for one in asked(browser, "hook.sweep()")]
    assert words(browser, "sweep-words").endswith("Computed by Python, when this page was made.")
    recomputed = browser.execute_script(f"const hook = {HOOK}; {RECOMPUTED}")
    np.testing.assert_allclose(of_python, [np.nan if one is None else one for one in recomputed], rtol=0, atol=3e-6)


def test_a_state_is_in_the_address_and_comes_back_from_it(opened: Any, address: str) -> None:
    asked(opened, "hook.set({preset: 'leader', beta: 2.5, mask: 'full', tokens: 11})")
    asked(opened, "hook.seek(77)")
    before, where = asked(opened, "hook.state()"), opened.current_url
    opened.get("about:blank")
    opened.get(where)
    assert asked(opened, "hook.state()") == before
    assert opened.execute_script("return document.getElementById('notice').hidden")


def test_an_address_holds_the_view_and_what_is_kept_beside(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'one-cluster', beta: 9, tokens: 12})")
    opened.find_element("id", "keep").click()
    asked(opened, "hook.set({beta: 2, mask: 'causal'})")
    asked(opened, "hook.seek(40)")
    opened.find_element("id", "stage").send_keys("\ue012\ue013")
    svg, kept, where = asked(opened, "hook.svg()"), words(opened, "kept-words"), opened.current_url
    opened.get("about:blank")
    opened.get(where)
    assert kept == words(opened, "kept-words") == "Kept, dashed below: β = 9, full mask, softmax weights, 12 tokens"
    assert opened.find_element("id", "kept-stage").is_displayed()
    drawn, again = discs_in(svg), discs_in(asked(opened, "hook.svg()"))
    np.testing.assert_allclose(again, drawn, atol=0.5)
    assert (
        np.abs(again - discs_in(opened.execute_script("Object.assign(view, VIEW); return svgOf(movie, 40)"))).max() > 5
    )


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("fragment", "sentence"),
    [
        ("turn=NaN", "turn = NaN is no number from −10 to 10"),
        ("kept=beta%3D99", "kept beside: beta = 99 is no number from 0.25 to 16"),
        ("kept=kept%3Dbeta%253D99", "kept beside: kept beside: beta = 99 is no number from 0.25 to 16"),
        ("beta=NaN", "beta = NaN is no number from 0.25 to 16"),
        ("beta=1e9", "beta = 1e9 is no number from 0.25 to 16"),
        ("beta=1e400", "beta = 1e400 is no number from 0.25 to 16"),
        ("beta=-1", "beta = -1 is no number from 0.25 to 16"),
        ("beta=%D9%A3", "beta = ٣ is no number from 0.25 to 16"),
        ("beta=%E0%A4%A", "is no number from 0.25 to 16"),
        ("%CE%B2=3", "β is no setting"),
        ("beta=" + "9" * 5000, "beta = 99999999999999999999 is no number from 0.25 to 16"),
        ("preset=" + "x" * 5000, "the start “xxxxxxxxxxxxxxxxxxxx” is not known"),
        ("tokens=1000000", "tokens = 1000000 is no whole number from 2 to 32"),
        ("tokens=2.5", "tokens = 2.5 is no whole number from 2 to 32"),
        ("tokens=1", "tokens = 1 is no whole number from 2 to 32"),
        ("tokens=[4]", "tokens = [4] is no whole number from 2 to 32"),
        ("weights=hardmax", "weights = hardmax is not known"),
        ("positions=on", "this start has no positions"),
        ("frame=301", "frame = 301 is no whole number from 0 to 300"),
        ("preset=%3Cb%3E", "the start “<b>” is not known"),
        ("mask=none", "mask = none is not known"),
        ("frame=-1", "frame = -1 is no whole number from 0 to 300"),
        ("evil=1", "evil is no setting"),
        ("__proto__=1", "__proto__ is no setting"),
        ("constructor=1", "constructor is no setting"),
        ("%3Cscript%3Ealert(1)", "<script>alert(1) is no setting"),
    ],
)
def test_an_address_that_was_tampered_with_is_said_and_the_usual_stands(
    fragment: str, sentence: str, opened: Any, address: str
) -> None:
    opened.get("about:blank")
    opened.get(f"{address}#{fragment}")
    assert sentence in words(opened, "notice")
    state = asked(opened, "hook.state()")
    assert (state["preset"], state["beta"], state["tokens"], state["mask"]) == ("one-cluster", 1, 32, "full")


def run_of(qk: float, tokens: int, of_attention: dict[str, Any] | None = None) -> td.Trajectory:
    """A run on the sphere, live unless `of_attention` says otherwise."""
    attention = td.Attention(**{"qk": qk * np.eye(3), "ov": np.eye(3)} | (of_attention or {}))
    start = td.Sphere().sample(tokens, 3, seed=1)
    return td.simulate(td.Flow(attention, td.Sphere()), start, np.linspace(0.0, 5.0, 51))


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("qk", "tokens", "of_attention"),
    [(100.0, 6, {}), (0.01, 6, {}), (2.0, 1, {}), (1.0, 6, {"qk": td.Sinusoidal(np.eye(3), 1.0, 1.0, 0.0)})],
    ids=["sharp", "flat", "one token", "played"],
)
def test_every_page_understands_the_address_that_it_writes(
    qk: float, tokens: int, of_attention: dict[str, Any], browser: Any, tmp_path: Path
) -> None:
    emulate(browser)
    browser.get(run_of(qk, tokens, of_attention).explore(tmp_path / "page.html").as_uri())
    asked(browser, "hook.seek(7)")
    state, where = asked(browser, "hook.state()"), browser.current_url
    browser.get("about:blank")
    browser.get(where)
    assert words(browser, "notice") == ""
    assert asked(browser, "hook.state()") == state
    if not of_attention:
        slider = "const one = document.getElementById('beta'); return [one.min, one.value, one.max].map(Number)"
        low, value, high = browser.execute_script(slider)
        assert low <= np.log2(qk) <= high
        assert value == pytest.approx(np.log2(qk), abs=0.05)
        assert len(asked(browser, "hook.sweep()")) == 25
        ends = f"for β from {number(min(0.25, qk))} to {number(max(16.0, qk))}"
        assert ends in words(browser, "sweep-words")
        return
    browser.get("about:blank")
    browser.get(f"{where}&beta=4")
    assert "beta cannot be set where saved states are played" in words(browser, "notice")


@pytest.mark.slow
def test_of_one_token_the_page_says_that_there_is_one(browser: Any, tmp_path: Path) -> None:
    emulate(browser)
    browser.get(run_of(2.0, 1).explore(tmp_path / "page.html").as_uri())
    assert words(browser, "summary") == "At t = 0 there is one token: a spread and clusters need two."
    assert asked(browser, "hook.state().clusters") is None


@pytest.mark.slow
def test_only_tokens_of_one_place_have_met(browser: Any, tmp_path: Path) -> None:
    """In free space tokens that point one way are apart where their norms differ, and a token at zero has no angle."""
    emulate(browser)
    start = [[0.0, 0.0], [0.5, 1.0], [-0.3, 1.0]]
    run = td.simulate(td.Flow(td.Attention(2 * np.eye(2), np.eye(2)), td.Free()), start, np.linspace(0.0, 12.0, 49))
    browser.get(run.explore(tmp_path / "page.html").as_uri())
    assert words(browser, "summary") == "At t = 0 a token is at zero, which has no direction."
    asked(browser, "hook.seek(20)")
    assert words(browser, "summary").startswith("At t = 5 the directions of the 3 tokens draw together: one cluster")
    undefined = "Seen: from t = 0 to 5 no change of the spread, which is undefined at the first of these times."
    assert words(browser, "theory-seen") == undefined
    asked(browser, "hook.seek(48)")
    largest = number(float(np.linalg.norm(run.states[-1], axis=-1).max()))
    assert words(browser, "summary") == f"At t = 12 all 3 tokens point one way. The largest norm is {largest}."
    asked(browser, "hook.seek(0)")
    assert words(browser, "theory-seen") == "Seen: nothing yet."


@pytest.mark.long
def test_a_run_of_layers_is_played_by_its_layers(browser: Any, tmp_path: Path) -> None:
    flow, start = td.Flow(td.Attention(2 * np.eye(3), np.eye(3)), td.Sphere()), td.Sphere().sample(6, 3, seed=1)
    run = td.simulate(flow, start, np.arange(11), engine="layers", tau=0.2)
    emulate(browser)
    browser.get(run.explore(tmp_path / "page.html").as_uri())
    asked(browser, "hook.seek(10)")
    np.testing.assert_allclose(np.ravel(asked(browser, "hook.state().states")), np.ravel(run.states[-1]), atol=2e-6)
    assert words(browser, "time-value") == "layer 10"
    assert "Each time is a layer" in words(browser, "sentence")
    text = '[attention]\nqk = { identity = 2.0 }\nov = "identity"\n[space]\nkind = "sphere"\n[start]\ntokens = 4\n'
    solver = '[time]\nend = 5\npoints = 6\n[solver]\nengine = "layers"\ntau = 0.2\n'
    (system,) = _page.systems_of(parse(f'{text}law = "uniform"\ndim = 3\nseed = 1\n{solver}', "a.toml"))
    assert (system["flow"], system["clock"], system["times"]) == (None, "layer", [0, 1, 2, 3, 4, 5])


def test_the_button_says_whether_a_setting_is_kept(opened: Any) -> None:
    acts = ("hook.set({preset: 'leader'})", "document.getElementById('reset').click()", "hook.tour(0)")
    for act in acts:
        asked(opened, "hook.set({preset: 'one-cluster'})")
        opened.find_element("id", "keep").click()
        assert words(opened, "keep") == "Stop comparing"
        assert opened.find_element("id", "kept-stage").is_displayed()
        asked(opened, act)
        assert words(opened, "keep") == "Keep to compare"
        assert not opened.find_element("id", "kept-stage").is_displayed()


def test_something_moves_before_a_click_unless_a_reader_wants_no_motion(browser: Any, address: str) -> None:
    for calm in (False, True):
        emulate(browser, calm=calm)
        browser.get("about:blank")
        browser.get(address)
        began = browser.execute_async_script(
            f"const done = arguments[0]; setTimeout(() => done({HOOK}.state().frame), 1000)"
        )
        assert (began > 0) != calm


def test_nothing_is_requested_nothing_complains_and_it_fits_a_phone(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'metastability'})")
    asked(opened, "hook.seek(300)")
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    requests = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert opened.get_log("browser") == []
    assert width_on_a_phone(opened) <= PHONE
    with on_a_phone(opened):
        assert opened.execute_script("return document.getElementById('stage').getBoundingClientRect().width") > 250


def test_every_control_has_a_name_and_is_reached_by_the_keyboard(opened: Any) -> None:
    unnamed = opened.execute_script("""
    const named = (one) => (one.labels && one.labels.length) || one.textContent.trim() || one.ariaLabel;
    return [...document.querySelectorAll('input, select, button')].filter((one) => !named(one)).map((one) => one.id);
    """)
    assert unnamed == []
    stage = opened.find_element("id", "stage")
    picture = "return document.getElementById('stage').toDataURL()"
    before = opened.execute_script(picture)
    stage.send_keys("\ue012")
    assert opened.execute_script(picture) != before


def test_frames_of_python_are_played(browser: Any, tmp_path: Path) -> None:
    flow = td.Flow(td.Attention(td.Sinusoidal(np.eye(3), 1.0, 1.0, 0.0), np.eye(3)), td.Sphere())
    run = td.simulate(flow, np.random.default_rng(0).normal(size=(6, 3)), np.linspace(0, 5, 20))
    emulate(browser)
    browser.get(run.explore(tmp_path / "page.html").as_uri())
    asked(browser, "hook.seek(19)")
    state = asked(browser, "hook.state()")
    np.testing.assert_allclose(np.reshape(state["states"], (6, 3)), run.tensor[-1].numpy(), atol=2e-6)
    assert "depend on time" in words(browser, "sentence")
    assert browser.execute_script("return document.getElementById('live').hidden")


def test_an_observable_of_the_user_has_a_chart_and_its_value(browser: Any, tmp_path: Path) -> None:
    run = td.simulate(td.Flow(td.Attention(np.eye(3), np.eye(3)), td.Sphere()), np.eye(3)[:2], [0.0, 1.0, 2.0])
    given = {"first": lambda state: float(state[0, 0]), "never": lambda state: float("nan")}
    emulate(browser)
    browser.get(run.explore(tmp_path / "page.html", observables=given).as_uri())
    for frame in (0, 2):
        asked(browser, "hook.seek(arguments[0])", frame)
        assert words(browser, "added-0-value") == number(float(run.states[frame, 0, 0]))
        assert words(browser, "added-1-value") == "undefined"
    drawn = "return new Set(document.getElementById('added-0').getContext('2d').getImageData(0, 0, 300, 60).data).size"
    assert browser.execute_script(drawn) > 2
    assert violations(browser) == []


@pytest.mark.few(2)
@pytest.mark.parametrize("value", ["NaN", "", "1e9", "-1e9"])
def test_no_value_of_a_slider_leaves_its_range(value: str, opened: Any) -> None:
    for ident, low, high in (("beta", 0.25, 16), ("tokens", 2, 32)):
        opened.execute_script(
            "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('input'))",
            ident,
            value,
        )
        assert low <= asked(opened, "hook.state()")[ident] <= high


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("changes", "words_of_refusal"),
    [
        ("{beta: NaN}", "beta = NaN is no number from 0.25 to 16"),
        ("{tokens: 1e6}", "tokens = 1000000 is no whole number from 2 to 32"),
        ("{mask: 'x'}", "mask = x is not known"),
        ("{preset: 'nope'}", "the start “nope” is not known"),
    ],
)
def test_a_console_cannot_set_what_the_page_cannot(changes: str, words_of_refusal: str, opened: Any) -> None:
    before = asked(opened, "hook.state()")
    refusal = f"try {{ {HOOK}.set({changes}); return '' }} catch (error) {{ return error.message }}"
    assert opened.execute_script(refusal) == words_of_refusal
    assert asked(opened, "hook.state()") == before


@pytest.mark.parametrize("missing", ["scripts", "canvas"])
def test_where_nothing_moves_a_picture_and_the_words_stand(missing: str, browser: Any, address: str) -> None:
    emulate(browser, scripts=missing != "scripts")
    no_canvas = {"source": "HTMLCanvasElement.prototype.getContext = () => null"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", no_canvas)
    browser.get("about:blank")
    browser.get(address)
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    emulate(browser)
    still = browser.find_element("id", "still")
    assert still.is_displayed()
    assert still.text == "All tokens start in one half of the sphere, attend to each other, and meet in one point."
    assert len(still.find_elements("tag name", "polyline")) == 32
    assert not browser.find_element("id", "columns").is_displayed()
    why = ("tag name", "noscript") if missing == "scripts" else ("id", "notice")
    assert ("scripts are off" if missing == "scripts" else "nothing moves here") in browser.find_element(*why).text
    browser.get(address)
    assert not browser.find_element("id", "still").is_displayed()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("width", "ratio", "size"), [(1280, 1, "200%"), (640, 2, ""), (PHONE, 1, ""), (PHONE, 1, "200%")]
)
def test_larger_text_and_smaller_screens_cut_and_cover_nothing(width: int, ratio: int, size: str, opened: Any) -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": ratio, "mobile": width == PHONE}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        opened.execute_script(
            "document.documentElement.style.fontSize = arguments[0]; document.getElementById('tour-start').click();"
            "document.querySelectorAll('details').forEach((one) => { one.open = true; })",
            size,
        )
        assert opened.execute_script(COVERED) == []
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


COVERED = """
const words = (one) => /^(INPUT|SELECT|CANVAS)$/.test(one.tagName)
  || [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
const shown = [...document.querySelectorAll("main *, header *")].filter((one) => one.checkVisibility()
  && one.getBoundingClientRect().width > 0 && !one.closest(".hidden, option") && words(one));
const problems = shown.filter((one) => getComputedStyle(one).display !== "inline" && one.clientWidth > 0
  && one.scrollWidth > one.clientWidth + 2).map((one) => `cut: ${one.id} ${one.textContent.slice(0, 40)}`);
shown.forEach((one, at) => shown.slice(at + 1).forEach((other) => {
  if (one.contains(other) || other.contains(one)) return;
  const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
  const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  if (wide > 2 && tall > 2) problems.push(`covered: ${one.id} ${one.textContent} | ${other.id} ${other.textContent}`);
}));
return problems;
"""
"""Texts and controls of the page that are cut, or that another one covers."""


def stops_of_tab(browser: Any) -> list[dict[str, Any]]:
    """Where the Tab key goes, from the first control to the last."""
    browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    stops: list[dict[str, Any]] = []
    for _ in range(80):
        browser.switch_to.active_element.send_keys("\ue004")
        stop = browser.execute_script("""
        const one = document.activeElement, box = one.getBoundingClientRect();
        const group = one.closest("form, .middle, #theory");
        if (one === document.body || one.matches(".skip")) return null;
        const label = one.id || one.dataset.term || one.name || one.textContent.slice(0, 40);
        // In its group, which may scroll by itself.
        const top = box.top - (group ? group.getBoundingClientRect().top - group.scrollTop : -scrollY);
        return { label, top, left: box.left, group: group ? group.id || group.className : "" };
        """)
        if stop is None or stop in stops:
            if stops:
                break
            continue
        stops.append(stop)
    return stops


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("width", "groups"), [(1400, ["controls", "middle", "theory"]), (PHONE, ["middle", "controls", "theory"])]
)
def test_the_tab_key_goes_as_the_eye_reads_and_reaches_every_control(
    width: int, groups: list[str], opened: Any
) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        stops = stops_of_tab(opened)
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    inside = [stop["group"] for stop in stops if stop["group"]]
    assert [group for at, group in enumerate(inside) if at == 0 or inside[at - 1] != group] == groups
    for before, after in pairwise(stops):
        if before["group"] == after["group"]:
            # One row after the other, and a row from left to right.
            assert after["top"] > before["top"] - 25, (before, after)
            assert after["top"] > before["top"] + 5 or after["left"] > before["left"], (before, after)
    wanted = opened.execute_script(
        "return [...document.querySelectorAll('button, input, select, canvas[tabindex], summary')]"
        ".filter((one) => one.checkVisibility() && !one.disabled && (one.type !== 'radio' || one.checked))"
        ".map((one) => one.id || one.name || one.textContent.slice(0, 40))"
    )
    assert set(wanted) <= {stop["label"] for stop in stops}


def test_the_keyboard_moves_every_control(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'rotary'})")

    def press(ident: str, key: str) -> dict[str, Any]:
        opened.find_element("id", ident).send_keys(key)
        return asked(opened, "hook.state()")

    left, right, down, end = "\ue012", "\ue014", "\ue015", "\ue010"
    assert press("beta", right)["beta"] > 1
    assert press("tokens", left)["tokens"] == 3
    assert press("mask", down)["mask"] == "causal"
    assert press("weights", down)["weights"] == "linear"
    assert press("positions", down)["positions"] == "off"
    assert press("time", end)["frame"] > 0
    assert press("play", " ")["playing"]
    assert not press("play", " ")["playing"]
    assert press("reset", " ")["mask"] == "full"
    (rotary,) = opened.find_elements("css selector", "input[name=preset]:checked")
    rotary.send_keys(down)
    state = asked(opened, "hook.state()")
    # A reader who wants no motion sees none until Play.
    assert (state["preset"], state["playing"]) == ("repulsion", False)


def saved_by(browser: Any, button: str) -> tuple[str, bytes]:
    """The name and the bytes of the file that a button saves."""
    browser.execute_script("download = (blob, name) => { window.saved = { blob, name }; }; window.saved = null")
    browser.find_element("id", button).click()
    name, content = browser.execute_async_script("""
    const done = arguments[0];
    const watch = setInterval(async () => {
      if (!window.saved) return;
      clearInterval(watch);
      done([window.saved.name, [...new Uint8Array(await window.saved.blob.arrayBuffer())]]);
    }, 20);
    """)
    return name, bytes(content)


def test_picture_and_numbers_are_saved_as_they_are_seen(opened: Any) -> None:
    asked(opened, "hook.set({preset: 'leader', tokens: 5})")
    asked(opened, "hook.seek(60)")
    name, png = saved_by(opened, "save-png")
    size = opened.execute_script("const one = document.getElementById('stage'); return [one.width, one.height]")
    assert (name, png[:8]) == ("tokens.png", b"\x89PNG\r\n\x1a\n")
    assert [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)] == size
    assert len(png) > 5000
    name, svg = saved_by(opened, "save-svg")
    assert name == "tokens.svg"
    assert len(discs_in(svg.decode())) == 5
    name, csv = saved_by(opened, "save-csv")
    header, *rows = csv.decode().split("\n")
    assert (name, header) == ("tokens.csv", "time,token,feature_0,feature_1,feature_2")
    numbers = np.array([row.split(",") for row in rows], dtype=float)
    assert numbers.shape == (301 * 5, 5)
    assert numbers[60 * 5 : 61 * 5, 1].tolist() == [0, 1, 2, 3, 4]
    state = asked(opened, "hook.state()")
    np.testing.assert_array_equal(numbers[60 * 5 : 61 * 5, 2:].ravel(), state["states"])
    assert set(numbers[60 * 5 : 61 * 5, 0]) == {state["time"]}


def test_numbers_of_played_states_are_named_by_what_they_are(browser: Any, tmp_path: Path) -> None:
    emulate(browser)
    flow = td.Flow(td.Attention(td.Sinusoidal(np.eye(5), 1.0, 1.0, 0.0), np.eye(5)), td.Sphere())
    run = td.simulate(flow, td.Sphere().sample(4, 5, seed=1), [0.0, 1.0])
    browser.get(run.explore(tmp_path / "page.html").as_uri())
    header, *rows = saved_by(browser, "save-csv")[1].decode().split("\n")
    assert header == "time,token,direction_0,direction_1,direction_2"
    assert len(rows) == 8


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [3, 5, 11, 12, 17, 22, 26])
def test_the_code_of_any_flow_makes_that_flow(seed: int, browser: Any, tmp_path: Path) -> None:
    """Of ellipsoids, several heads, other weights, masks and positions; with fewer tokens, and another β."""
    flow, start = random_flow(seed)
    emulate(browser)
    times = np.linspace(0.0, 0.4, 5)
    browser.get(td.simulate(flow, start, times).explore(tmp_path / "page.html").as_uri())
    title = 'of "heads" [3] \\ 2'
    browser.execute_script("movie.system.title = arguments[0]", title)
    asked(browser, "hook.set(arguments[0])", {"beta": 2.5, "tokens": max(2, len(start) - 1)})
    asked(browser, "hook.seek(4)")
    python, toml = asked(browser, "hook.code('python')"), asked(browser, "hook.code('toml')")
    names: dict[str, Any] = {}
    exec(python.replace("print(run.summary())", ""), names)  # noqa: S102  # what the page gives its reader
    run = names["run"]
    states = np.array(asked(browser, "hook.state().states")).reshape(run.tensor.shape[1:])
    np.testing.assert_allclose(states, run.tensor[-1].numpy(), rtol=0, atol=1e-6 * float(run.tensor[-1].abs().max()))
    several = (
        isinstance(flow.attention.positions, td.RotaryPositions)
        and len(numbers_of(flow, start)["positions"]["query"]) > 1
    )
    assert (toml == "") == several
    if toml:
        assert tomllib.loads(toml)["title"] == title
        setup = build(parse(toml, "explorer.toml"))
        torch.testing.assert_close(
            setup.flow.velocity(setup.start), names["flow"].velocity(setup.start), rtol=1e-12, atol=1e-14
        )


def test_a_film_is_recorded(opened: Any) -> None:
    if not opened.execute_script(
        "return typeof MediaRecorder !== 'undefined' && MediaRecorder.isTypeSupported('video/webm')"
    ):
        pytest.skip("this browser has no MediaRecorder for WebM")
    opened.execute_script("download = (blob, name) => { window.saved = { blob, name }; }")
    opened.find_element("id", "save-webm").click()
    assert words(opened, "copied") == "Recording until the end of the run …"
    name, kind, first, length = opened.execute_async_script(f"""
    const done = arguments[0];
    setTimeout(() => {HOOK}.seek(300), 1500);
    const watch = setInterval(async () => {{
      if (!window.saved) return;
      clearInterval(watch);
      const bytes = new Uint8Array(await window.saved.blob.arrayBuffer());
      done([window.saved.name, window.saved.blob.type, [...bytes.slice(0, 4)], bytes.length]);
    }}, 100);
    """)
    assert (name, kind) == ("tokens.webm", "video/webm")
    # EBML, which begins every WebM.
    assert bytes(first).hex() == "1a45dfa3"
    assert length > 2000
    assert words(opened, "copied") == "The film was saved."


@pytest.mark.parametrize(
    "missing",
    [
        "HTMLCanvasElement.prototype.captureStream = undefined",
        "delete window.MediaRecorder",
        "MediaRecorder.isTypeSupported = () => false",
    ],
)
def test_a_browser_that_records_no_film_says_so(missing: str, opened: Any) -> None:
    opened.execute_script(missing)
    opened.find_element("id", "save-webm").click()
    assert words(opened, "copied") == "This browser records no film."
    assert not asked(opened, "hook.state().playing")
