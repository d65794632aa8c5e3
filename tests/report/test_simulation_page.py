"""The page of a simulation: what it says and draws is what the run holds, measured again here by other means."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

import tokendynamics as td
from report.reading import close, figure_of, page_of, plain_spaces, ragged, saved, table_of, value_of
from tokendynamics import specification
from tokendynamics.dynamics import Trajectory
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.report.simulation._ends import _PHRASES
from tokendynamics.report.simulation._page import Account, simulation_page
from tokendynamics.specification.examples import example_names, example_text

pytestmark = pytest.mark.usefixtures("undrawn")

HOSTILE = "<script>alert(1)</script>\"'&\x00\u202eevil"


def free(qk: list, ov: list, **options: object) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, **options), td.Free())  # type: ignore[arg-type]


def findings_of(page: str) -> list[str]:
    part = page[page.index('<ol class="findings">') :]
    return [unescape(one) for one in re.findall(r"<li>(.*?)</li>", part[: part.index("</ol>")])]


def ended(page: str) -> list[list[str]]:
    """The rows of the table of systems."""
    part = page[page.index('<section id="systems"') :]
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def units(states: np.ndarray) -> np.ndarray:
    return states / np.linalg.norm(states, axis=-1, keepdims=True)


def cosine(states: np.ndarray) -> float:
    """The mean over pairs, from the Gram matrix."""
    gram = units(states) @ units(states).T
    return float((gram.sum() - np.trace(gram)) / (len(gram) * (len(gram) - 1)))


def groups(states: np.ndarray) -> int:
    """Single linkage by scipy, cut at 5°: the chord of that angle."""
    chord = 2 * np.sin(np.radians(5) / 2)
    return int(fcluster(linkage(pdist(units(states)), "single"), chord, "distance").max())


@pytest.fixture
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of the time: only the tests that look at drawings have it."""
    if "drawn" not in request.fixturenames:
        blank = lambda *arguments, **options: Markup("<svg></svg>")  # noqa: E731
        monkeypatch.setattr("tokendynamics.figures.figure.draw_for_screens", blank)


@pytest.fixture
def drawn() -> None:
    """Asks for drawings."""


@pytest.fixture(scope="module")
def clustering() -> Trajectory:
    x0 = np.random.default_rng(1).normal(size=(9, 3))
    return td.simulate(td.Flow(td.Attention(8 * np.eye(3), np.eye(3)), td.Sphere()), x0, np.linspace(0, 6, 13))


@pytest.fixture(scope="module")
def mixed() -> Trajectory:
    """Twenty systems of which some reach the horizon, some a consensus, and some a norm that ends them."""
    x0 = np.random.default_rng(2).normal(size=(20, 4, 2)) * np.geomspace(0.02, 3, 20)[:, None, None]
    bounds = (td.events.NormAbove(20.0), td.events.Consensus(0.3))
    return td.simulate(
        free([[0.1, 0.0], [0.0, 0.1]], [[1.0, 0.2], [0.0, 0.7]]), x0, np.linspace(0, 3, 7), events=bounds
    )


def test_the_curves_hold_what_is_measured_again(clustering: Trajectory) -> None:
    page, states = page_of(clustering), np.asarray(clustering.states)
    wanted: dict[str, Callable[[np.ndarray], float]] = {
        "cosine": cosine,
        "clusters": groups,
        "consensus": lambda x: float(np.mean(1 - np.abs(units(x) @ units(x)[0]))),
        "diameter": lambda x: float(np.arccos(np.clip(units(x) @ units(x).T, -1, 1)).max()),
        "potential": lambda x: float(-0.5 * np.exp(8 * x @ x.T).sum()),
    }
    for ident, measure in wanted.items():
        rows = saved(page, ident)[1:]
        assert [float(row[0]) for row in rows] == clustering.times.tolist()
        again = [measure(x) for x in states]
        drawn = [float(row[1]) for row in rows]
        assert drawn == pytest.approx(again, rel=1e-6, abs=1e-9)
        assert close([row[1] for row in table_of(page, ident)], np.array([float(row[1]) for row in rows]))
    assert 'id="norms"' not in page  # on a sphere every norm is 1


def test_the_angle_of_several_systems_is_between_tokens_of_one() -> None:
    # Two pairs at rest, 90° and 60° apart; a token of the first and one of the second are 150° apart.
    pairs = [[[1.0, 0.0], [0.0, 1.0]], [[math.cos(a), math.sin(a)] for a in (math.radians(90), math.radians(150))]]
    still = td.Flow(td.Attention(np.eye(2), np.zeros((2, 2))), td.Sphere())
    text = " ".join(findings_of(page_of(td.simulate(still, pairs, [0.0, 1.0]))))
    assert "form 2 clusters in 2 systems (tokens at most 5° apart are linked); " in text
    assert "the largest angle between two tokens of a system is 90°." in text


def test_the_sentences_hold_the_numbers_of_the_last_state(clustering: Trajectory) -> None:
    states = np.asarray(clustering.states)
    text = " ".join(findings_of(page_of(clustering)))
    assert "The run reached the end of the time interval at t = 6." in text
    count = groups(states[-1])
    assert 1 < count < 9
    assert f"directions of the 9 tokens form {count} clusters (tokens at most 5° apart" in text
    match = re.search(r"mean cosine of two tokens is (\S+) at the end; it was (\S+) at t = 0\.", text)
    assert match is not None
    assert [value_of(group) for group in match.groups()] == pytest.approx(
        [cosine(states[-1]), cosine(states[0])], rel=6e-3
    )
    widest = re.search(r"largest angle between two of them is (\S+)°", text)
    assert widest is not None
    assert value_of(widest[1]) == pytest.approx(
        np.degrees(np.arccos(np.clip(states[-1] @ states[-1].T, -1, 1)).max()), rel=6e-3
    )
    together = td.simulate(clustering.flow, np.ones((4, 3)) + 0.01 * np.eye(4, 3), [0.0, 30.0])  # type: ignore[arg-type]
    other = " ".join(findings_of(page_of(together)))
    assert "form 1 cluster (tokens" in other
    assert re.search(r"mean cosine of two tokens is 1( − \d\S* × 10\S+)? at the end", other)


@pytest.mark.long
def test_columns_have_one_number_of_places(clustering: Trajectory, mixed: Trajectory) -> None:
    assert ragged(page_of(clustering)) == []
    assert ragged(page_of(mixed)) == []


@pytest.mark.long
def test_a_batch_of_mixed_ends_counts_each_system_up_to_its_own(mixed: Trajectory) -> None:
    page, states = page_of(mixed), np.asarray(mixed.states)
    counts = {str(word): int((mixed.status == word).sum()) for word in np.unique(mixed.status)}
    assert len(counts) == 3
    text = findings_of(page)
    assert text[0].startswith("Of 20 systems, ")
    for status, count in counts.items():
        assert re.search(rf"{count} {_PHRASES[status]} at t = ", text[0])
    # 4 tokens × 20 systems: median, lowest and highest of those that still run, and how many these are.
    rows = saved(page, "norms")
    assert rows[0][-1] == "Systems that count"
    assert "towards the right they become fewer" in figure_of(page, "norms")
    whole = page_of(replace(mixed, reached=np.ones_like(mixed.reached)))
    assert "become fewer" not in whole
    for row, place in zip(rows[1:], range(len(mixed.times)), strict=True):
        sizes = np.median(np.linalg.norm(states[mixed.reached[:, place], place], axis=-1), axis=-1)
        assert int(row[-1]) == int(mixed.reached[:, place].sum())
        assert [float(entry) for entry in row[1:4]] == pytest.approx(
            [np.median(sizes), sizes.min(), sizes.max()] if len(sizes) else [], rel=1e-9
        )
    rows = saved(page, "systems-table-1")[1:]
    assert [row[1] for row in rows] == mixed.status.tolist()
    assert [float(row[2]) for row in rows] == pytest.approx(mixed.end_times.tolist())
    assert [float(row[3]) for row in rows] == pytest.approx([cosine(x[-1]) for x in states])
    assert [int(float(row[4])) for row in rows] == [groups(x[-1]) for x in states]
    assert [float(row[-1]) for row in rows] == pytest.approx(np.linalg.norm(states[:, -1], axis=-1).max(axis=-1))
    assert len(ended(page)) < 13


def test_systems_that_end_alike_are_one_line(mixed: Trajectory) -> None:
    status = np.array(["diverged", "equilibrium"] * 10)
    rows = ended(page_of(replace(mixed, status=status)))
    assert [row[1] for row in rows] == ["diverged", "equilibrium"]
    assert rows[0][0] == "0, 2, 4, 6, 8, 10, … (10 in all)"
    few = replace(mixed, status=np.array(["diverged"] * 15 + ["equilibrium"] * 5))
    assert [row[0] for row in ended(page_of(few))] == ["0–14", "15–19"]


@pytest.mark.long
def test_what_diverges_is_said_with_its_size_and_drawn_as_directions() -> None:
    bound = [td.events.NormAbove(1e6)]
    run = td.simulate(free([[0.0]], [[1.0]]), [[1.0], [2.0]], np.linspace(0, 20, 11), events=bound, rtol=1e-4)
    page = page_of(run)
    text = " ".join(findings_of(page))
    assert run.status == "diverged"
    assert f"diverged at t = {float(run.end_times):.4g}" in text
    last = np.abs(np.asarray(run.states)[-1]).ravel()
    match = re.search(r"median norm of the tokens is (.*?) at the end and was 1\.5 at the start", text)
    assert match is not None
    assert value_of(match[1]) == pytest.approx(float(np.median(last)), rel=6e-3)
    assert ">nan<" not in page
    flow = free(np.zeros((2, 2)).tolist(), np.eye(2).tolist())
    plane = td.simulate(flow, np.eye(2), [0.0, 1.0, 10.0], rtol=1e-4)
    assert "Directions x/|x| are drawn" in figure_of(page_of(plane), "paths")
    calm = td.simulate(flow, np.eye(2), [0.0, 0.5, 1.0])
    assert "Directions" not in figure_of(page_of(calm), "paths")


def test_numbers_that_are_not_finite_are_left_out_and_said() -> None:
    run = td.simulate(free([[0.0]], [[0.1]]), np.ones((3, 2, 1)), [0.0, 1.0, 2.0])
    states = np.asarray(run.states).copy()
    states[1, 1:] = np.nan
    broken = replace(
        run, tensor=run.tensor.new_tensor(states), status=np.array(["reached the horizon", "not finite"] * 2)[:3]
    )
    page = page_of(broken)
    assert "1 system of 3 ended in a non-finite state, whose measures are undefined." in findings_of(page)
    rows = saved(page, "norms")[1:]
    assert [row[2] for row in rows] == ["1.0", "", ""]
    assert rows[2][1] != ""
    whole = page_of(replace(broken, tensor=run.tensor))
    assert "non-finite" not in " ".join(findings_of(whole))


def test_one_token_one_dimension_and_a_token_at_zero() -> None:
    alone = page_of(td.simulate(free([[1.0]], [[-1.0]]), [[2.0]], [0.0, 1.0, 2.0]))
    assert "With one token there is no distance to measure." in findings_of(alone)
    assert 'id="cosine"' not in alone
    rows = saved(alone, "paths")[1:]
    assert [float(row[2]) for row in rows] == pytest.approx([2.0, 2 / np.e, 2 / np.e**2], rel=1e-6)
    still = page_of(td.simulate(free([[1.0]], [[0.0]]), [[0.0], [1.0]], [0.0, 1.0]))
    assert "The run ended with a token at zero, which has no direction." in findings_of(still)
    assert "Nothing is drawn: no token moves." in figure_of(still, "paths")
    moving = page_of(td.simulate(free([[1.0]], [[0.0]]), [[0.5], [1.0]], [0.0, 1.0]))
    assert "at zero" not in " ".join(findings_of(moving))


def test_a_single_time_has_no_curves(clustering: Trajectory) -> None:
    once = replace(clustering, tensor=clustering.tensor[:1], times=clustering.times[:1], reached=clustering.reached[:1])
    page = page_of(once)
    assert "Only one time is stored, so there are no curves." in page
    assert "<figure" not in page
    assert len(ended(page)) == 1


def test_what_stays_is_said_and_not_drawn() -> None:
    """Rotation of all tokens alike: norms and angles stay, up to rounding."""
    turn = [[0.0, -1.0], [1.0, 0.0]]
    x0 = np.array([[1.0, 0.0], [1.0, 0.0]])
    page = page_of(td.simulate(free(np.zeros((2, 2)).tolist(), turn), x0, np.linspace(0, 0.5, 3), rtol=1e-11))
    assert "Nothing is drawn: it is 1 at all times" in figure_of(page, "norms")
    assert "<svg" in figure_of(page, "paths")


def test_the_paths_are_the_states(mixed: Trajectory) -> None:
    page = simulation_page(mixed, Account(system=3))
    assert "System 3. " in figure_of(page, "paths")
    rows = np.array([[float(cell) for cell in row] for row in saved(page, "paths")[1:]])
    reached = mixed.reached[3]
    wanted = np.asarray(mixed.states)[3, reached]
    assert rows[:, 2:].reshape(wanted.shape) == pytest.approx(wanted)
    assert rows[:4, 1].tolist() == [1, 2, 3, 4]
    with pytest.raises(ArgumentValueError, match="system: expected a system from 0 to 19, got 20"):
        simulation_page(mixed, Account(system=20))


def test_on_the_circle_the_angle_is_drawn_without_jumps() -> None:
    flow = td.Flow(td.Attention([[0.0, 0.0], [0.0, 0.0]], [[0.0, -3.0], [3.0, 0.0]]), td.Sphere())
    run = td.simulate(flow, [[1.0, 0.0]], np.linspace(0, 4, 41))
    rows = saved(page_of(run), "paths")
    angles = np.array([float(row[2]) for row in rows[1:]])
    assert rows[0][2] == "Angle in degrees"
    assert np.abs(np.diff(angles)).max() < 30
    assert angles[-1] == pytest.approx(np.degrees(4 * 3 / np.sqrt(2)), rel=1e-5)  # 1/√dim of the paper's weights


@pytest.mark.slow
def test_a_large_batch_makes_a_small_page_that_says_what_was_chosen() -> None:
    rng = np.random.default_rng(0)
    some = td.simulate(td.Flow(td.Attention(np.eye(2), np.eye(2)), td.Sphere()), rng.normal(size=(2, 2)), [0.0, 1.0])
    states = rng.normal(size=(1000, 200, 64, 2)).astype(np.float32)
    states /= np.linalg.norm(states, axis=-1, keepdims=True)
    many = replace(
        some,
        tensor=some.tensor.new_tensor(states),
        times=np.linspace(0, 1, 200),
        status=np.array(["reached the horizon"] * 1000),
        reached=np.ones((1000, 200), dtype=bool),
        end_times=np.ones(1000),
    )
    page = page_of(many)
    assert len(page.encode()) < 2_000_000
    assert (
        "The curves show 50 of 1,000 systems at 81 of 200 times, evenly spaced. The statements above cover all systems."
        in page
    )
    assert [row[:2] for row in ended(page)] == [["0–999", "reached the horizon"]]
    assert len(saved(page, "systems-table-1")) == 1001
    chosen = np.unique(np.linspace(0, 999, 50).round().astype(int))
    middle = float(saved(page, "cosine")[1][1])
    assert middle == pytest.approx(np.median([cosine(states[system, 0].astype(float)) for system in chosen]), abs=1e-6)


def test_foreign_text_is_escaped_and_long_entries_are_cut(clustering: Trajectory) -> None:
    long = {"parameters": {"matrix": [*np.arange(900.0).tolist(), 7.0]}, "note": HOSTILE, "end_times": [1.0]}
    page = simulation_page(
        clustering, Account(title=HOSTILE, manifest=long, warnings=(HOSTILE,), files=("a b/?.zarr",))
    )
    assert "<script>alert" not in page
    assert "‹U+202E›evil" in page
    assert 'href="./a%20b/%3F.zarr"' in page
    assert "12, 13, 14" in page
    assert "897, 898" not in page
    assert not re.search(r'<[^>]+ (style|on\w+)="', page)
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.long
def test_statements_of_the_theory_are_listed_with_their_outcome(clustering: Trajectory) -> None:
    start = np.ones((3, 3)) + 0.1 * np.eye(3)
    certificates = tuple(td.certify(td.simulate(clustering.flow, start, [0.0, 1.0, 2.0])))[:2]  # type: ignore[arg-type]
    page = simulation_page(clustering, Account(certificates=certificates))
    rows = saved(page, "statements-table-1")[1:]
    assert [row[:2] for row in rows] == [[one.statement, one.outcome] for one in certificates]
    assert findings_of(page)[-1].startswith("2 statements of the theory apply: ")
    failed = tuple(replace(one, outcome="fails") for one in certificates)
    worse = findings_of(simulation_page(clustering, Account(certificates=failed)))[-1]
    assert worse == f"2 statements of the theory apply: 2 failed ({', '.join(one.statement for one in failed)})."
    none = findings_of(simulation_page(clustering, Account(certificates=())))[-1]
    assert none == "No statement of the theory applies."
    assert "theory" not in findings_of(page_of(clustering))[-1]


@pytest.mark.long
def test_a_trajectory_writes_its_page_also_after_it_was_opened(clustering: Trajectory, tmp_path: Path) -> None:
    path = clustering.report(tmp_path / "new" / "page.html")
    assert plain_spaces(path.read_text(encoding="utf-8")) == page_of(clustering)
    clustering.save(tmp_path / "run.zarr")
    again = Trajectory.open(tmp_path / "run.zarr").report(tmp_path / "again.html")
    assert findings_of(again.read_text(encoding="utf-8")) == findings_of(path.read_text(encoding="utf-8"))
    with pytest.raises(ArgumentValueError, match="path: expected a file name, got the folder"):
        clustering.report(tmp_path)
    with pytest.raises(ArgumentValueError, match="max_bytes"):
        clustering.report(tmp_path / "small.html", max_bytes=10)


def test_a_flow_that_is_not_known_still_has_a_page(clustering: Trajectory) -> None:
    page = page_of(replace(clustering, flow=None))
    assert "under a flow that is not stored" in page
    assert "potential" not in re.findall(r'<figure id="([^"]+)">', page)


QUICK = ("minimal", "fig2a")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in example_names() if name != "fig5"],
)
@pytest.mark.usefixtures("drawn")
def test_every_documented_model_has_a_page(name: str, tmp_path: Path) -> None:
    text = example_text(name)
    shorter = re.sub(r"points = \d+", "points = 11", text)
    simulation = specification.run(specification.parse(shorter, f"{name}.toml"))
    simulation.report(tmp_path / "report.html")
    page = plain_spaces((tmp_path / "report.html").read_text(encoding="utf-8"))
    drawn = re.findall(r'<figure id="([^"]+)">', page)
    tables = [ident for ident in drawn if "<tbody>" in figure_of(page, ident)]
    assert "paths" in tables
    assert "nan" not in {cell.lower() for ident in tables for row in table_of(page, ident) for cell in row}
    space = simulation.setup.flow.space.name
    assert {"free": "in free space", "sphere": "on the unit sphere", "ellipsoid": "on an ellipsoid"}[space] in page
    assert ("norms" in drawn) == (space == "free")
    assert ("potential" in drawn) == (name in ("minimal", "fig1", "fig2a", "fig2b", "fig5-left", "metastable"))
    record = json.loads(json.dumps(simulation.manifest, default=str))
    assert record["started"][:4] in page
