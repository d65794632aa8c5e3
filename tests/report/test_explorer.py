"""The explorer's page: what its presets claim, what it says of theorems, and what it refuses."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics import observables
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.report.explorer import _page as page
from tokendynamics.report.explorer import _statements, _system
from tokendynamics.report.explorer._flow import changed, numbers_of, peak, sharpness, why_not_live
from tokendynamics.report.explorer._system import measured
from tokendynamics.specification import parse

EYE = torch.eye(3, dtype=torch.float64)


def data_of(html: str) -> list[dict[str, Any]]:
    """The systems that a page carries."""
    return json.loads(html.partition('id="explorer-data">')[2].partition("</script>")[0])["systems"]


@pytest.fixture(scope="module")
def presets(presets_page: Path) -> dict[str, dict[str, Any]]:
    return {system["name"]: system for system in data_of(presets_page.read_text("utf-8"))}


def run_of(system: dict[str, Any], **settings: Any) -> td.Trajectory:
    """Simulate a system of the page from its numbers alone, as a reader of the page would."""
    flow = system["flow"]
    beta, positions = settings.get("beta", system["beta"]), flow["positions"]
    qk, scheme = np.array(flow["qk"]), None
    if positions and settings.get("positions", True):
        rows = positions["query"], positions["key"]
        scheme = td.RotaryPositions(*rows, scale=beta * positions["scale"], frequencies=positions["frequencies"])
    space = {"sphere": td.Sphere(), "free": td.Free()}[flow["space"]["kind"]]
    attention = td.Attention(
        qk if scheme else beta * qk,
        np.array(flow["ov"]),
        causal=settings.get("causal", flow["causal"]),
        normalization=flow["normalization"],
        positions=scheme,
    )
    return td.simulate(td.Flow(attention, space), np.array(flow["start"]), system["times"])


@pytest.mark.long
def test_one_cluster_is_what_its_sentence_says(presets: dict[str, Any]) -> None:
    run = run_of(presets["one-cluster"])
    assert observables.hemisphere(run.tensor[0]).margin > 0
    assert float(1 - observables.mean_pair_cosine(run.tensor[-1])) < 1e-9


@pytest.mark.long
def test_two_clusters_last_from_20_to_200_and_then_meet(presets: dict[str, Any]) -> None:
    system = presets["metastability"]
    clusters = np.array([int(observables.clusters(states, 0.1)) for states in run_of(system).tensor])
    times = np.array(system["times"])
    assert (clusters[(times >= 20) & (times <= 200)] == 2).all()
    assert clusters[-1] == 1
    # The later, the larger β is: at twice the sharpness they have not met in the same time.
    assert int(observables.clusters(run_of(system, beta=8.0).tensor[-1], 0.1)) > 1


@pytest.mark.long
def test_all_tokens_go_to_the_first_which_does_not_move(presets: dict[str, Any]) -> None:
    states = run_of(presets["leader"]).tensor
    assert float((states[:, 0] - states[0, 0]).abs().max()) < 1e-12
    assert float((states[-1] - states[0, 0]).norm(dim=-1).max()) < 1e-2
    moving = run_of(presets["leader"], causal=False).tensor
    assert float((moving[-1, 0] - moving[0, 0]).norm()) > 0.1


@pytest.mark.slow
def test_rotary_positions_make_tokens_grow_that_shrink_without(presets: dict[str, Any]) -> None:
    for positions, grows in ((True, True), (False, False)):
        sizes = run_of(presets["rotary"], positions=positions).tensor.norm(dim=-1).amax(dim=-1)
        assert (float(sizes[-1]) > 10 * float(sizes[0])) == grows
        assert (float(sizes[-1]) < float(sizes[0])) != grows


@pytest.mark.long
def test_repulsion_spreads_tokens_over_the_sphere(presets: dict[str, Any]) -> None:
    states = run_of(presets["repulsion"]).tensor
    assert observables.hemisphere(states[0]).margin > 0
    assert observables.hemisphere(states[-1]).margin == 0
    assert float(observables.effective_rank(states[-1])) > 2.99


@pytest.mark.long
def test_rows_are_what_check_says_at_each_value_of_the_controls() -> None:
    start = td.Sphere().sample(6, 3, seed=2)
    flow = td.Flow(td.Attention(2.0 * EYE, EYE), td.Sphere())
    table = _statements.at_controls(flow, start)
    masks, weights = (table["axes"][name] for name in ("causal", "weights"))
    betas = table["axes"]["beta"]
    assert betas == list(_statements.BETAS)
    assert len(table["index"]) == 6 * len(betas)
    combinations = list(enumerate((causal, kind) for causal in masks for kind in weights))
    for beta, (place, (causal, kind)) in ((b, one) for b in (0.3, 2.0, 11.0) for one in combinations):
        # On the page no exponential weight is above 1: the offset is the largest logit, β.
        offset = beta if kind == "exponential" else 0.0
        attention = td.Attention(beta * EYE, EYE, causal=causal, weights=kind, offset=offset)
        flow = td.Flow(attention, td.Sphere())
        nearest = min(range(len(betas)), key=lambda at: abs(np.log(betas[at] / beta)))
        rows = [table["rows"][row] for row in table["index"][6 * nearest + place]]
        # Away from the grid, only what does not say of which β it is.
        rows = [row for row in rows if beta in betas or not row.get("of_beta")]
        named = {
            _statements._title(one.statement): one for one in td.check(flow, start, statements=_statements._OF_FLOWS)
        }
        checks = [named[row["title"]] for row in rows]
        assert len(named) == table["elsewhere"] + len(table["index"][0])
        assert not any(one.structure for title, one in named.items() if title not in titles(table))
        assert len(rows) > 12
        assert [row["applies"] for row in rows] == [one.applies for one in checks]
        rates = [sum(c * np.exp(-k * beta) for c, k in row.get("rate", ())) for row in rows]
        predictions = [
            row["prediction"] and row["prediction"].replace("{rate}", f"{rate:.3g}")
            for row, rate in zip(rows, rates, strict=True)
        ]
        assert predictions == [one.prediction and one.prediction.text for one in checks]
        assert [[table["hypotheses"][one]["holds"] for one in row["hypotheses"]] for row in rows] == [
            [one.holds for one in check.hypotheses] for check in checks
        ]


def shown_rows(table: dict[str, Any], beta: float, place: int) -> dict[str, dict[str, Any]]:
    """The rows of a table at a value of its β and a combination of the other controls, by title."""
    combinations = math.prod(len(table["axes"][name]) for name in ("causal", "weights", "positions"))
    row = table["index"][combinations * table["axes"]["beta"].index(beta) + place]
    return {table["rows"][at]["title"]: table["rows"][at] for at in row}


@pytest.mark.long
@pytest.mark.parametrize("beta", [0.25, 4.0])
def test_a_rate_that_is_printed_of_exponential_weights_is_that_of_the_flow_that_is_shown(
    beta: float, presets: dict[str, Any]
) -> None:
    system = presets["one-cluster"]
    flow = td.Flow(td.Attention(system["flow"]["qk"], EYE, normalization="plain"), td.Sphere())
    top = system["flow"]["peak"]
    now = changed(flow, beta=beta, causal=False, weights="exponential", positions=True, peak=top)
    times = np.arange(0.0, 300.0)
    states = td.simulate(now, system["flow"]["start"], times, rtol=1e-10, atol=1e-14).tensor
    widths = np.array([float(observables.diameter(state)) for state in states])
    end = int(np.flatnonzero(widths < 1e-4)[0])
    before, after = widths[end : end + 2]
    rows = shown_rows(system["statements"], beta, 2)
    prediction = rows[_statements._title("perspective-6.1")]["prediction"]
    (rate,) = re.findall(r"like exp\(−([\d.]*) ?t\)", prediction)
    assert math.log(before / after) == pytest.approx(float(rate or 1), rel=1e-3)
    # From the start on, the rate that the page evaluates is no faster than what is seen.
    (row,) = (row for title, row in rows.items() if "(perspective 6.4)" in title)
    least = sum(c * math.exp(-k * beta) for c, k in row["rate"])
    assert "like C exp(−{rate} t) from the start on" in row["prediction"]
    assert 0 < least < math.log(widths[0] / before) / end


def test_every_statement_that_applies_says_what_it_predicts(presets: dict[str, Any]) -> None:
    for system in presets.values():
        for row in system["statements"]["rows"]:
            assert bool(row["prediction"]) == row["applies"], row["title"]


@pytest.mark.slow
def test_a_flow_whose_exponentials_overflow_has_a_page(tmp_path: Any) -> None:
    start = 10 * td.Sphere().sample(6, 3, seed=1)
    weights: Any
    for weights in ("linear", "softmax"):
        run = td.simulate(td.Flow(td.Attention(2 * EYE, EYE, weights=weights), td.Free()), start, [0.0, 1.0])
        (system,) = page.systems_of(run)
        table = system["certificates"]
        settings = [kind for _ in table["beta"] for _ in (False, True) for kind in _statements.WEIGHTS]
        by_weights: dict[str, list[int]] = {kind: [] for kind in _statements.WEIGHTS}
        for kind, places in zip(settings, table["index"], strict=True):
            by_weights[kind] += places
        assert not by_weights["exponential"]
        assert by_weights["softmax"]


def titles(table: dict[str, Any]) -> set[str]:
    """What the rows of a page's table are about."""
    return {row["title"] for row in table["rows"]}


def test_rows_that_depend_on_beta_alone_say_of_which_they_are() -> None:
    """Of no value of β does a table speak whose rows are the same at all; the cone of 6.4 has a rate in closed form."""
    flow, start = td.Flow(td.Attention(2.0 * EYE, EYE), td.Sphere()), td.Sphere().sample(4, 3, seed=2)
    table = _statements.at_controls(flow, start)
    marked = {row["title"] for row in table["rows"] if row.get("of_beta")}
    assert marked
    assert not any("(asymptotic" in title for title in marked)
    assert _statements._title("metastability-main") in marked


def printed(one: dict[str, Any]) -> tuple[str, str, float, float]:
    """The statement of a certificate on the page, its outcome, and its margin and tolerance as printed."""
    sign = one["words"].translate(str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")).replace(" × 10", "e").replace(",", "")
    margin, tolerance = re.findall(r"\(margin (\S+) tolerance (\S+)\)$", sign)[0]
    assert one["words"].startswith(f"{one['outcome']} in Python's run to t = ")
    return one["title"], one["outcome"], float(margin), float(tolerance)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "betas"),
    [
        ("one-cluster", (0.25, 2.0, 16.0)),
        ("leader", (0.25, 2.0, 16.0)),
        ("metastability", (4.0, 8.0)),
        pytest.param("one-cluster", None, marks=pytest.mark.slow),
        pytest.param("leader", None, marks=pytest.mark.slow),
        pytest.param("metastability", None, marks=pytest.mark.slow),
    ],
)
def test_each_printed_certificate_is_what_certify_says_of_that_run(
    name: str, betas: tuple[float, ...] | None, presets: dict[str, Any]
) -> None:
    system = presets[name]
    table, flow = system["certificates"], system["flow"]
    as_shown = td.Flow(td.Attention(flow["qk"], flow["ov"], normalization=flow["normalization"]), td.Sphere())
    times = np.array(system["times"])[::10]
    combinations: list[tuple[bool, Any]] = [(c, w) for c in (False, True) for w in _statements.WEIGHTS]
    outcomes = set()
    for place, (beta, (causal, weights)) in enumerate((b, one) for b in table["beta"] for one in combinations):
        shown = [table["certified"][one] for one in table["index"][place]]
        if betas is not None and beta not in betas:
            continue
        now = changed(as_shown, beta=beta, causal=causal, weights=weights, positions=True, peak=flow["peak"])
        certificates = td.certify(td.simulate(now, flow["start"], times, **_statements.RUN))
        wanted = [
            (_statements._title(one.statement), str(one.outcome), one.margin, one.tolerance) for one in certificates
        ]
        assert len(shown) == len(wanted)
        assert shown or weights != "softmax"
        for on_page, recomputed in zip(map(printed, shown), wanted, strict=True):
            assert on_page[:2] == recomputed[:2]
            if recomputed[1:3] == ("undecided", 0.0):
                continue  # Nothing was measured: the tolerance is that of any condition without an answer.
            # Runs of several β at once round otherwise.
            assert on_page[2:] == pytest.approx(recomputed[2:], rel=0.02, abs=0.01 * recomputed[3])
            outcomes.add(on_page[1])
    assert outcomes == {"holds", "undecided"}


@pytest.mark.long
def test_a_certificate_says_fails_of_a_run_that_is_not_its_flow() -> None:
    flow = td.Flow(td.Attention(EYE, EYE), td.Sphere())
    run = td.simulate(flow, np.abs(np.random.default_rng(1).normal(size=(5, 3))) + 0.1, np.linspace(0, 6, 13))
    words = {}
    for name, backwards in (("along", False), ("against", True)):
        states = run.tensor.flip(0) if backwards else run.tensor
        played = replace(run, states=states, tensor=states)
        system = page.played_system(played, "why", name=name, title=name, sentence="")
        words[name] = {one["title"]: one for one in system["statements"]["certified"]}
    theorem = _statements._title("asymptotic-4.1")
    assert words["along"][theorem]["outcome"] == "undecided"
    assert words["against"][theorem]["outcome"] == "fails"
    assert re.search(r"first at t = 0\.5: .*\(margin −", words["against"][theorem]["words"])


@pytest.mark.long
@pytest.mark.parametrize("weights", ["softmax", pytest.param("exponential", marks=pytest.mark.slow)])
def test_a_strip_is_how_alike_runs_end_at_each_beta(weights: Any) -> None:
    qk, ov = np.random.default_rng(4).normal(size=(2, 2, 3, 3))
    start = torch.as_tensor(td.Sphere().sample(5, 3, seed=1))
    offset = 3.0 if weights == "exponential" else 0.0
    flow = td.Flow(td.Attention(qk, ov, causal=True, weights=weights, offset=offset), td.Sphere())
    values = _system.strip(flow, start, np.array([0.0, 0.5, 2.0]))
    assert values is not None
    betas = np.geomspace(0.25, 16, 25)
    np.testing.assert_allclose(_system.swept(flow), betas, rtol=1e-12)
    for place in (0, 7, 24):
        at = td.Attention(betas[place] * qk, ov, causal=True, weights=weights, offset=betas[place] * offset)
        run = td.simulate(td.Flow(at, td.Sphere()), start, [0.0, 2.0], rtol=1e-10, atol=1e-12)
        assert values[place] == pytest.approx(float(observables.mean_pair_cosine(run.tensor[-1])), abs=1e-6)
    assert np.ptp(np.array(values, dtype=float)) > 0.1


@pytest.mark.slow
def test_a_strip_has_no_value_where_tokens_fly_apart_and_is_left_to_the_page_where_runs_are_long() -> None:
    """Tokens beyond 10⁹ are followed by no browser; without steps enough, or with too many tokens, Python has none."""
    start = torch.tensor([[1.0, 0.2], [-0.3, 0.9]], dtype=torch.float64)
    growing = td.Flow(td.Attention(EYE[:2, :2], 3 * EYE[:2, :2], weights="linear"), td.Free())
    assert _system.strip(growing, start, np.array([0.0, 1.0])) == [None] * 25
    slow = td.Flow(td.Attention(EYE[:2, :2], 0.1 * EYE[:2, :2], weights="linear"), td.Free())
    values = _system.strip(slow, start, np.array([0.0, 1.0]))
    assert values is not None
    assert None not in values[:12]
    assert set(values[-3:]) == {None}
    turning = td.Flow(td.Attention(EYE[:2, :2], [[0.0, -1e3], [1e3, 0.0]]), td.Sphere())
    assert _system.strip(turning, start, np.array([0.0, 10.0])) is None
    many = td.Sphere().sample(128, 3, seed=1)
    heads = td.Flow(td.Attention(np.stack([EYE] * 8), np.stack([EYE] * 8)), td.Sphere())
    assert _system.strip(heads, torch.as_tensor(many), np.array([0.0, 1.0])) is None
    assert _system.strip(slow, start[:1], np.array([0.0, 1.0])) is None


@pytest.mark.parametrize(("third", "value"), [([0.0, 1.0], 2 / 3), ([0.0, 0.0], None)])
def test_a_token_at_the_origin_has_no_direction_and_one_on_an_axis_has(third: list[float], value: float | None) -> None:
    at_rest = td.Flow(td.Attention(EYE[:2, :2], 0 * EYE[:2, :2]), td.Free())
    start = torch.tensor([[0.0, 2.0], [-(3**0.5), 1.0], third], dtype=torch.float64)
    values = _system.strip(at_rest, start, np.array([0.0, 1.0]))
    assert values == ([None if value is None else pytest.approx(value, abs=1e-6)] * 25)


@pytest.mark.long
def test_a_flow_whose_runs_take_long_has_no_certificates() -> None:
    flow, times = td.Flow(td.Attention(EYE, EYE), td.Sphere()), np.array([0.0, 1.0])
    start = td.Sphere().sample(6, 3, seed=2)
    assert _statements.certificates(flow, start, times) is not None
    heads = np.array([np.eye(16)] * 13)
    wide = td.Flow(td.Attention(heads, heads), td.Sphere())
    assert _statements.certificates(wide, td.Sphere().sample(32, 16, seed=2), times) is None


def test_a_theorem_applies_to_the_leader_only_under_its_mask(presets: dict[str, Any]) -> None:
    table = presets["leader"]["statements"]
    combinations = [(c, w) for c in (False, True) for w in _statements.WEIGHTS]
    settings = combinations * len(table["axes"]["beta"])
    for (causal, weights), places in zip(settings, table["index"], strict=True):
        applying = {table["rows"][place]["title"] for place in places if table["rows"][place]["applies"]}
        assert (_statements._title("asymptotic-5.1") in applying) == (causal and weights == "softmax")


def test_no_exponential_weight_of_the_page_is_above_one() -> None:
    x, rng = td.Sphere().sample(6, 3, seed=3), np.random.default_rng(4)
    qk, table, rows = rng.normal(size=(2, 3, 3)), rng.normal(size=(6, 3)), rng.normal(size=(2, 2, 3, 2))
    ellipsoid = td.Ellipsoid(torch.diag(torch.tensor([0.3, 1.0, 4.0]).double()))
    for space in (td.Sphere(), ellipsoid):
        for positions in (None, td.AbsolutePositions(table), td.RotaryPositions(*rows, scale=2.0)):
            flow = td.Flow(td.Attention(qk, np.stack([EYE, EYE]), positions=positions), space)
            for kept in (True, False):
                settings = {"beta": 5.0, "causal": False, "weights": "exponential", "positions": kept}
                shown = changed(flow, **settings, peak=peak(flow, x))
                largest = float(shown.attention.pattern(space.project(x)).max()) * 6
                assert 0 < largest <= 1
    alone = td.Flow(td.Attention(2 * EYE, EYE, weights="exponential", offset=0.5), td.Free())
    assert peak(alone, x) == 0.25
    assert peak(td.Flow(td.Attention(2 * EYE, EYE), td.Free()), x) == 0.0


def test_beta_is_the_multiple_of_the_identity_that_qk_is() -> None:
    assert sharpness(td.Flow(td.Attention(4.0 * EYE, EYE), td.Sphere())) == 4.0
    assert sharpness(td.Flow(td.Attention(-4.0 * EYE, EYE), td.Sphere())) == 1.0
    assert sharpness(td.Flow(td.Attention(EYE + 0.1, EYE), td.Sphere())) == 1.0
    flow = td.Flow(td.Attention(4.0 * EYE, EYE), td.Sphere())
    assert numbers_of(flow, td.Sphere().sample(2, 3, seed=0))["qk"] == [EYE.tolist()]
    x = td.Sphere().sample(5, 3, seed=1)
    same = changed(flow, beta=4.0, causal=False, weights="softmax", positions=True)
    assert torch.equal(same.velocity(x), flow.velocity(x))
    other = changed(flow, beta=2.0, causal=True, weights="softmax", positions=True)
    wanted = td.Flow(td.Attention(2.0 * EYE, EYE, causal=True), td.Sphere())
    assert torch.equal(other.velocity(x), wanted.velocity(x))


def test_beta_multiplies_every_logit_beside_rotary_positions() -> None:
    positions = td.RotaryPositions(EYE[:, :2], EYE[:, :2], scale=0.5, base=3.0)
    flow = td.Flow(td.Attention(2.0 * EYE, EYE, positions=positions), td.Free())
    x = td.Sphere().sample(5, 3, seed=1)
    sharper = changed(flow, beta=3.0, causal=False, weights="softmax", positions=True)
    torch.testing.assert_close(sharper.attention.logits(x), 3.0 * flow.attention.logits(x), rtol=1e-14, atol=0)
    without = changed(flow, beta=3.0, causal=False, weights="softmax", positions=False)
    torch.testing.assert_close(without.attention.logits(x), 6.0 * (x @ x.mT)[None], rtol=1e-14, atol=1e-14)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flow", "tokens", "words"),
    [
        (td.Flow(td.Attention(EYE, EYE), td.Sphere()), 129, "129 tokens; a browser follows at most 128"),
        (td.Flow(td.Attention(np.eye(17), np.eye(17)), td.Free()), 3, "17 features"),
        (td.Flow(td.Attention(np.array([np.eye(3)] * 17), np.array([np.eye(3)] * 17)), td.Free()), 3, "17 heads"),
        (td.Flow(td.Attention(td.Sinusoidal(EYE, 1.0, 1.0, 0.0), EYE), td.Free()), 3, "depend on time"),
        (td.Flow(td.Attention(EYE, EYE), td.Free()), 3, ""),
    ],
)
def test_what_no_browser_integrates_is_played_with_the_reason(flow: td.Flow, tokens: int, words: str) -> None:
    start = np.random.default_rng(0).normal(size=(tokens, flow.dim))
    why = why_not_live(flow, torch.as_tensor(start))
    assert words in why
    assert bool(why) == bool(words)
    if words:
        run = td.simulate(flow, start, np.linspace(0, 0.1, 4), rtol=1e-3)
        (system,) = page.systems_of(run)
        assert system["flow"] is None
        assert words in system["why_not_live"]
        frames = np.array(system["frames"])
        assert frames.shape == (4, tokens, min(3, flow.dim))
        last = run.tensor[-1]
        wanted = (1 - float(observables.mean_pair_cosine(last)), float(observables.effective_rank(last)))
        assert [system["measures"][-1][name] for name in ("spread", "rank")] == pytest.approx(wanted)
        assert system["measures"][-1]["clusters"] == int(observables.clusters(last, 0.1))
        if flow.dim == 3:
            np.testing.assert_allclose(frames, run.tensor.numpy(), rtol=1e-5)


def file_of(tokens: int) -> Any:
    text = '[attention]\nqk = { identity = 3.0 }\nov = "identity"\n[space]\nkind = "sphere"\n[start]\nlaw = "uniform"\n'
    return parse(f"{text}tokens = {tokens}\ndim = 3\nseed = 1\n[time]\nend = 0.1\npoints = 3", "a.toml")


@pytest.mark.long
def test_a_file_with_too_many_tokens_for_a_browser_is_played_with_the_reason() -> None:
    (system,) = page.systems_of(file_of(129))
    assert system["flow"] is None
    assert system["why_not_live"].startswith("It has 129 tokens; a browser follows at most 128 live.")
    assert np.array(system["frames"]).shape == (3, 129, 3)


def test_a_million_tokens_are_refused_with_the_number_that_is_possible_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "run", lambda file: pytest.fail("it ran"))
    wanted = "expected at most 90,300 tokens, of which a browser moves at most 128 live, got 1,000,000"
    with pytest.raises(ArgumentValueError, match=wanted):
        page.systems_of(file_of(1_000_000))


def test_the_still_picture_is_the_view_that_the_page_begins_with(presets: dict[str, Any]) -> None:
    system = presets["one-cluster"]
    run = run_of(system).tensor
    still = page.still_of(system | {"still": run.tolist()})
    assert still is not None
    assert still["sphere"]
    right = np.array([-np.sin(0.7), np.cos(0.7), 0.0])
    towards = np.array([np.cos(0.35) * np.cos(0.7), np.cos(0.35) * np.sin(0.7), np.sin(0.35)])
    upwards = np.cross(towards, right)
    last = run[-1].numpy()
    ends = np.stack([200 + 180 * last @ right, 200 - 180 * last @ upwards], axis=-1)
    np.testing.assert_allclose([path["end"] for path in still["paths"]], ends, atol=0.06)
    starts = [path["points"].split()[0].split(",") for path in still["paths"]]
    first = np.array(system["flow"]["start"])
    np.testing.assert_allclose(np.array(starts, dtype=float)[:, 0], 200 + 180 * first @ right, atol=0.06)
    assert "still" not in system


def test_two_tokens_have_a_spread_and_one_has_none() -> None:
    two = torch.tensor([[2.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    assert measured(two)["spread"] == pytest.approx(0.4, abs=1e-12)
    assert measured(two)["clusters"] == 2
    assert measured(two[:1]) == {"spread": None, "rank": pytest.approx(1.0), "clusters": None}
    assert measured(torch.zeros(3, 2, dtype=torch.float64)) == {"spread": None, "rank": None, "clusters": None}


@pytest.mark.long
def test_a_page_follows_one_system_of_many_and_says_so() -> None:
    start = np.random.default_rng(0).normal(size=(4, 5, 3))
    run = td.simulate(td.Flow(td.Attention(EYE, EYE), td.Sphere()), start, np.linspace(0, 1, 5))
    (system,) = page.systems_of(run)
    assert "first system of several" in system["sentence"]
    np.testing.assert_allclose(system["flow"]["start"], start[0] / np.linalg.norm(start[0], axis=-1, keepdims=True))


def test_of_several_systems_that_no_browser_integrates_the_first_is_played() -> None:
    start = np.random.default_rng(0).normal(size=(2, 2, 4, 3))
    flow = td.Flow(td.Attention(td.Sinusoidal(EYE, 1.0, 1.0, 0.0), EYE), td.Free())
    run = td.simulate(flow, start, np.linspace(0, 1, 5))
    (system,) = page.systems_of(run)
    assert "first system of several" in system["sentence"]
    np.testing.assert_allclose(system["frames"], run.tensor[0, 0].numpy(), rtol=1e-5, atol=1e-9)


@pytest.mark.long
def test_statements_are_asked_of_rescaled_noisy_and_time_dependent_runs_that_are_played() -> None:
    start, times = np.random.default_rng(0).normal(size=(5, 3)), np.linspace(0, 3, 7)
    free = td.Flow(td.Attention(EYE, EYE), td.Free())
    moving = td.Flow(td.Attention(td.Sinusoidal(EYE, 1.0, 1.0, 0.0), EYE), td.Sphere())
    noisy = td.Flow(td.Attention(EYE, EYE, weights="exponential"), td.Sphere())
    runs = {
        "clusters-8-hull": td.simulate(free, start, times, frame="rescaled"),
        "noise-transition": td.simulate(noisy, start, times, noise=td.Noise(0.1, seed=1), step=0.1),
        "asymptotic-remark-4.2": td.simulate(moving, start, times),
    }
    for name, run in runs.items():
        (system,) = page.systems_of(run)
        assert run.flow is not None
        wanted = td.check(run.flow, run.tensor[0], run.times, statements=[name], noise=run.noise)[0].applies
        rows = {row["title"]: row["applies"] for row in system["statements"]["rows"]}
        assert rows[_statements._title(name)] is wanted is True
        assert run.noise is None or sum(rows.values()) == 1
        assert system["why_no_statements"] == ""
    (lost,) = page.systems_of(replace(runs["clusters-8-hull"], flow=None))
    assert (lost["statements"], lost["why_no_statements"]) == (
        None,
        "Not known: this run does not know its flow any more.",
    )
    (first,) = page.systems_of(td.simulate(moving, np.stack([start, start]), times))
    assert first["statements"] is None
    assert first["why_no_statements"].startswith("Not asked of systems in a batch: ")


def test_wide_states_are_drawn_in_the_directions_in_which_they_differ_most() -> None:
    start = np.zeros((4, 6))
    start[:, 4], start[:, 2] = [-3, -1, 1, 3], [1, -1, -1, 1]
    run = td.simulate(td.Flow(td.Attention(0 * np.eye(6), 0 * np.eye(6)), td.Free()), start, [0.0, 1.0])
    (system,) = page.systems_of(run)
    assert np.argmax(np.abs(system["plane"]["vectors"]), axis=1)[:2].tolist() == [4, 2]
    assert [name.split("(")[1] for name in system["plane"]["names"][:2]] == ["83%)", "17%)"]


@pytest.mark.slow
def test_a_result_is_explored_from_its_own_method_and_from_a_file(tmp_path: Any) -> None:
    run = td.simulate(td.Flow(td.Attention(EYE, EYE), td.Sphere()), EYE, [0.0, 1.0])
    (system,) = data_of(run.explore(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert system["flow"]["start"] == EYE.tolist()
    text = 'title = "<b>mine</b>"\n[attention]\nqk = { identity = 3.0 }\nov = "identity"\n[space]\nkind = "sphere"\n'
    file = parse(
        f'{text}[start]\nlaw = "uniform"\ntokens = 5\ndim = 3\nseed = 1\n[time]\nend = 2.0\npoints = 9', "a.toml"
    )
    html = page.explorer_page(file)
    (system,) = data_of(html)
    assert (system["title"], system["beta"], len(system["times"])) == ("<b>mine</b>", 3.0, 9)
    assert "<b>mine" not in html


@pytest.mark.slow
def test_observables_of_the_user_are_computed_by_python_at_every_state_that_is_played(tmp_path: Any) -> None:
    flow = td.Flow(td.Attention(EYE, EYE), td.Sphere())
    run = td.simulate(flow, td.Sphere().sample(5, 3, seed=2), [0.0, 1.0, 3.0])
    given = {"height": lambda state: state[:, 2].mean(), "<b>": lambda state: 1.0 if state[0, 2] < 0 else math.nan}
    html = run.explore(tmp_path / "page.html", observables=given).read_text(encoding="utf-8")
    (system,) = data_of(html)
    assert (system["flow"], system["added"]) == (None, ["height", "<b>"])
    assert "observables of your own" in system["why_not_live"]
    heights = [one["added"][0] for one in system["measures"]]
    np.testing.assert_allclose(heights, run.states[..., 2].mean(axis=-1), rtol=1e-12)
    assert [one["added"][1] for one in system["measures"]] == [None if one[0, 2] >= 0 else 1.0 for one in run.states]
    assert "<b>" not in html
    (live,) = data_of(run.explore(tmp_path / "page.html", observables={}).read_text(encoding="utf-8"))
    assert live["flow"] is not None
    text = '[attention]\nqk = "identity"\nov = "identity"\n[space]\nkind = "sphere"\n[start]\nlaw = "uniform"\n'
    file = parse(f"{text}tokens = 5\ndim = 3\nseed = 1\n[time]\nend = 2.0\npoints = 9", "a.toml")
    (system,) = data_of(page.explorer_page(file, given={"tokens": len}))
    assert [one["added"] for one in system["measures"]] == [[5.0]] * 9


@pytest.mark.parametrize(
    ("subject", "given", "words"),
    [
        ("run", {"rank": len}, "observables: expected names that no variable has, got 'rank'"),
        ("run", {"": len}, "observables: expected names that no variable has, got ''"),
        ("run", {"a": 3}, r"observables\['a'\]: expected a function of states, got 3"),
        ("run", [len], "observables: expected functions of states by name, got "),
        ("run", {"a": str}, r"observables\['a'\]: expected a number for each state, got "),
        (None, {"a": len}, r"observables: expected None where no run is played, got a; trace\(observables=\)"),
        ("diagnosis", {"a": len}, "observables: expected None where no run is played, got a"),
    ],
)
def test_observables_that_cannot_be_shown_are_refused(
    subject: str | None, given: Any, words: str, diagnosis: td.Diagnosis
) -> None:
    run = td.simulate(td.Flow(td.Attention(EYE, EYE), td.Sphere()), EYE, [0.0, 1.0])
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=words):
        page.explorer_page({"run": run, "diagnosis": diagnosis, None: None}[subject], given=given)


def test_every_term_is_explained_by_one_sentence_and_every_step_names_a_control(
    presets_page: Path,
) -> None:
    glossary = page.glossary()
    assert set(page.TERMS) <= set(glossary)
    assert len({one["term"] for one in glossary.values()}) == len(glossary)
    for one in glossary.values():
        assert one["definition"].endswith(".")
        assert one["definition"].count(". ") == 0
        assert len(one["definition"].split()) <= 25
    html = presets_page.read_text("utf-8")
    assert set(re.findall(r'data-term="([^"]*)"', html)) == set(page.TERMS)
    names = {preset["name"] for preset in data_of(html)}
    for step in page.tour():
        assert step["preset"] in names
        assert f'id="{step["control"]}"' in html
        assert len(step["text"].partition(".")[0].split()) <= 25


def test_what_does_not_move_has_no_explorer() -> None:
    with pytest.raises(ArgumentTypeError, match="expected a trajectory, a simulation or the file of one"):
        page.systems_of(3.5)
    with pytest.raises(ArgumentTypeError, match="texts: expected None where no network reads them"):
        page.explorer_page(texts=["one fish"])
