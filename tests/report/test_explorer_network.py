"""A network on the explorer's page: what is drawn, measured and left out, and the flow of its circuits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.test_heads import ids_of, network_of
from report.chromium import emulate
from tokendynamics import observables
from tokendynamics.report import explore
from tokendynamics.report.explorer import _network as network_page
from tokendynamics.words import number

HOOK = "window.tokendynamicsExplorer"
MASSIVE = 7


@pytest.fixture(scope="module", params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def checkpoint(request: pytest.FixtureRequest) -> Any:
    """A small network, one token of which is massive at every layer."""
    network = network_of(request.param, groups=1) if request.param == "llama" else network_of("gpt2")
    network.get_input_embeddings().weight.data[MASSIVE] *= 1e4
    return td.load(network)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """Three prompts; the first has the massive token once, and in the third place."""
    first, *others = [[token for token in ids if token != MASSIVE] for ids in ids_of(3)]
    return [[*first[:2], MASSIVE, *first[2:]], *others]


@pytest.fixture(scope="module")
def systems(checkpoint: Any, texts: list[list[int]]) -> list[dict[str, Any]]:
    return network_page.of_network(checkpoint, texts)


def systems_in(html: str) -> list[dict[str, Any]]:
    """The systems that a page carries."""
    return json.loads(html.partition('id="explorer-data">')[2].partition("</script>")[0])["systems"]


def followed(checkpoint: Any, texts: list[list[int]]) -> list[network_page.TextStates]:
    return [network_page._states_of(checkpoint, f"prompt {place}", ids) for place, ids in enumerate(texts, start=1)]


@pytest.mark.long
def test_tokens_are_drawn_where_their_directions_vary_most(
    checkpoint: Any, texts: list[list[int]], systems: list[dict[str, Any]]
) -> None:
    states = checkpoint.states(torch.tensor(texts[0])).feed_forward.double()
    kept = [place for place, token in enumerate(texts[0]) if token != MASSIVE]
    units = torch.nn.functional.normalize(states[:, kept], dim=-1).numpy()
    rows = units.reshape(-1, units.shape[-1])
    # By another route: eigenvectors of the covariance, whose signs are nobody's.
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    wanted = (rows - rows.mean(axis=0)) @ vectors[:, :-4:-1]
    frames = np.array(systems[0]["frames"])
    np.testing.assert_allclose(np.abs(frames.reshape(-1, 3)), np.abs(wanted), atol=1e-5)
    shares = values[:-4:-1] / values.sum()
    assert systems[0]["plane"]["names"] == [f"direction {at + 1} ({share:.0%})" for at, share in enumerate(shares)]
    assert systems[0]["times"] == [0, 1, 2, 3, 4]
    assert systems[0]["clock"] == "layer"


@pytest.mark.long
def test_measures_are_of_the_full_states_as_in_a_trace(
    checkpoint: Any, texts: list[list[int]], systems: list[dict[str, Any]]
) -> None:
    trace = td.trace(checkpoint, texts).sel(site="feed_forward", sinks="removed")
    states = checkpoint.states(torch.tensor(texts[0])).feed_forward.double()
    kept = [place for place, token in enumerate(texts[0]) if token != MASSIVE]
    for place, system in enumerate(systems[:3]):
        similarity = 1 - np.array([one["spread"] for one in system["measures"]])
        np.testing.assert_allclose(similarity, trace.mean_pair_cosine.values[place], atol=1e-6)
        ranks = [one["rank"] for one in system["measures"]]
        np.testing.assert_allclose(ranks, trace.effective_rank.values[place], rtol=1e-5)
    clusters = [int(observables.clusters(layer[kept], 0.1)) for layer in states]
    assert [one["clusters"] for one in systems[0]["measures"]] == clusters


@pytest.mark.long
def test_massive_tokens_are_left_out_and_named_with_their_norm(
    checkpoint: Any, texts: list[list[int]], systems: list[dict[str, Any]]
) -> None:
    largest = float(checkpoint.states(torch.tensor(texts[0])).feed_forward[:, 2].norm(dim=-1).max())
    assert f"1 massive token (“<id {MASSIVE}>”) left out: norms up to {number(largest)}." in systems[0]["sentence"]
    assert len(systems[0]["tokens"]) == len(texts[0]) - 1
    assert f"<id {MASSIVE}>" not in systems[0]["tokens"]
    assert "massive" not in systems[1]["sentence"]


def test_the_circuits_are_those_of_the_layer_that_writes_most_on_the_shared_directions(
    checkpoint: Any, texts: list[list[int]], systems: list[dict[str, Any]]
) -> None:
    several = followed(checkpoint, texts)
    layer, share = network_page.writing_layer(several)
    table = td.shared_directions(checkpoint, texts)
    written = table["written"].isel(direction=0, layer=-1).sel(component="attention").values[1:]
    assert layer == int(np.argmax(written)) + 1
    assert share == pytest.approx(written.max(), rel=1e-6)
    basis = network_page.shared_basis(several, layer)
    assert basis is not None
    torch.testing.assert_close(basis.mT @ basis, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)
    three = table["vector"].isel(direction=slice(0, 3), layer=layer).values
    np.testing.assert_allclose(basis[:, 0], three[0], atol=1e-6)
    np.testing.assert_allclose(three @ basis.numpy() @ basis.numpy().T, three, atol=1e-6)
    circuits = systems[3]
    assert circuits["title"].endswith(f"circuits of layer {layer}")
    start = checkpoint.states(torch.tensor(texts[0])).feed_forward[layer - 1].double() @ basis
    kept = [place for place, token in enumerate(texts[0]) if token != MASSIVE]
    wanted = torch.nn.functional.normalize(start[kept], dim=-1)
    np.testing.assert_allclose(circuits["flow"]["start"], wanted.numpy(), atol=1e-9)
    assert len(circuits["tokens"]) == len(kept)


def test_a_token_that_is_massive_before_that_layer_alone_does_not_start_there(
    checkpoint: Any, texts: list[list[int]], systems: list[dict[str, Any]]
) -> None:
    first, *others = followed(checkpoint, texts)
    layer, _ = network_page.writing_layer([first, *others])
    ends = [torch.nn.functional.normalize(text.layers[-1, text.counted(-1)], dim=-1) for text in (first, *others)]
    common = torch.stack([rows.mean(dim=0) for rows in ends]).mean(dim=0)
    # What is orthogonal to the common direction changes no share of who writes it.
    across = torch.nn.functional.normalize(torch.linalg.cross(common[:3], torch.ones(3).double()), dim=0)
    layers = first.layers.clone()
    layers[layer - 1, 0, :3] += 1e4 * float(layers[layer - 1].norm(dim=-1).median()) * across
    circuits = network_page.circuits_system(checkpoint, [replace(first, layers=layers), *others])
    assert isinstance(circuits, dict)
    assert circuits["title"] == systems[3]["title"]
    assert len(circuits["tokens"]) == len(systems[3]["tokens"]) - 1


def test_in_the_subspace_the_restricted_flow_is_the_flow_of_the_network(checkpoint: Any) -> None:
    flow = td.flow_of(checkpoint, layers=2)
    basis, _ = torch.linalg.qr(
        torch.randn(flow.dim, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    )
    x = td.Sphere().sample(6, 3, seed=4)
    inside = flow.velocity(x @ basis.mT) @ basis
    torch.testing.assert_close(network_page.restriction(flow, basis).velocity(x), inside, rtol=1e-9, atol=1e-11)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "count", "words"),
    [("gpt2", 2, "three directions need 3 texts"), ("deberta", 3, "this needs an attention whose factors are found")],
)
def test_without_such_a_flow_the_page_says_why(family: str, count: int, words: str) -> None:
    systems = network_page.of_network(td.load(network_of(family)), ids_of(count))
    assert len(systems) == count
    assert "The flow of its circuits is left out: " in systems[0]["sentence"]
    assert words in systems[0]["sentence"]


def test_texts_that_share_a_direction_have_no_basis(checkpoint: Any, texts: list[list[int]]) -> None:
    one = followed(checkpoint, texts[:1])
    assert network_page.shared_basis(one * 3, 2) is None


def test_of_a_long_text_the_first_tokens_are_drawn_and_all_are_measured(checkpoint: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(network_page, "MOST_TOKENS", 4)
    ids = [3, 9, 11, 20, 31, 44]
    (system,) = network_page.of_network(checkpoint, [ids])
    assert "The first 4 of 6 tokens are drawn; measures are of all." in system["sentence"]
    assert np.array(system["frames"]).shape == (5, 4, 3)
    last = checkpoint.states(torch.tensor(ids)).feed_forward[-1].double()
    assert system["measures"][-1]["spread"] == pytest.approx(1 - float(observables.mean_pair_cosine(last)), abs=1e-9)


@pytest.fixture(scope="module")
def diagnosis(texts: list[list[int]]) -> td.Diagnosis:
    network = network_of("gpt2")
    network.get_input_embeddings().weight.data[MASSIVE] *= 1e4
    nothing: dict[str, Any] = {"levers": False, "heads": False, "directions": False, "baseline": None}
    return td.diagnose(td.load(network), texts, **nothing)


def test_a_diagnosis_is_explored_in_the_plane_that_it_holds(diagnosis: td.Diagnosis, tmp_path: Path) -> None:
    html = diagnosis.explore(tmp_path / "page.html").read_text(encoding="utf-8")
    (system,) = systems_in(html)
    position = diagnosis.paths["position"].transpose("layer", "token", "axis").values
    kept = np.isfinite(position).all(axis=(0, 2))
    np.testing.assert_allclose(system["frames"], position[:, kept], atol=1e-5)
    trace = diagnosis.trace.isel(prompt=0).sel(site="feed_forward", sinks="removed")
    spread = 1 - trace.mean_pair_cosine.values
    np.testing.assert_allclose([one["spread"] for one in system["measures"]], spread, atol=1e-12)
    assert "1 massive token" in system["sentence"]


@pytest.mark.long
@pytest.mark.browser
def test_the_page_counts_layers_and_says_that_no_theorem_covers_a_network(
    systems: list[dict[str, Any]], checkpoint: Any, texts: list[list[int]], browser: Any, tmp_path: Path
) -> None:
    emulate(browser)
    browser.get(explore(tmp_path / "page.html", checkpoint, texts).as_uri())
    browser.execute_script(f"{HOOK}.seek(3)")
    state = browser.execute_script(f"return {HOOK}.state()")
    np.testing.assert_allclose(state["states"], np.ravel(systems[0]["frames"][3]))
    assert state["rank"] == pytest.approx(systems[0]["measures"][3]["rank"])
    words = {name: browser.find_element("id", name).text for name in ("time-value", "summary", "theory-answer")}
    assert words["time-value"] == "layer 3"
    assert words["summary"].startswith("At layer 3 ")
    assert words["theory-answer"].startswith("No theorem covers a whole network")
    browser.execute_script(f"{HOOK}.set({{preset: 'circuits'}})")
    assert browser.find_element("id", "time-value").text.startswith("t = ")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
@pytest.mark.pretrained
def test_the_page_of_smollm2_is_small(tmp_path: Path) -> None:
    path = explore(tmp_path / "page.html", "smollm2")
    html = path.read_text(encoding="utf-8")
    assert len(html.encode()) < 2_000_000
    systems = systems_in(html)
    assert [system["times"][-1] for system in systems[:3]] == [30, 30, 30]
    assert len(systems[3]["flow"]["qk"]) == 9
