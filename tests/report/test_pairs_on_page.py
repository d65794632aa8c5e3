"""Cosines of pairs: the histogram against a count by hand, and which drawing comes first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis.test_heads import ids_of, network_of
from report.conftest import synthetic
from report.reading import page_of, saved
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing import prompt_shares
from tokendynamics.report.diagnosis._pairs import section


@pytest.mark.long
def test_shares_of_pairs_are_those_of_a_count_by_hand() -> None:
    """Texts of different lengths count alike; a text twice counts once."""
    model, ids = network_of("llama"), ids_of(3)
    table = td.trace(model, [*ids, ids[0]], sinks=())
    counts = np.zeros((4, 40))
    for token_id in ids:
        with torch.no_grad():
            states = model.model(torch.tensor([token_id]), output_hidden_states=True).hidden_states
        for layer in range(4):  # what transformers gives last stands behind the final norm
            x = states[layer][0].double().numpy()
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            cosines = (x @ x.T)[np.triu_indices(len(x), 1)]
            counts[layer] += np.histogram(cosines.clip(-1, 1), bins=40, range=(-1, 1))[0] / len(cosines) / len(ids)
    np.testing.assert_allclose(table.pair_share[:4], counts, atol=1e-12)
    np.testing.assert_allclose(table.pair_share.sum("cosine"), 1, atol=1e-12)
    np.testing.assert_allclose(table.cosine, -1 + 0.05 * (np.arange(40) + 0.5), atol=1e-12)
    middle = float((table.pair_share * table.cosine).sum("cosine")[2])
    mean = table.mean_pair_cosine.sel(site="feed_forward", sinks="kept")[:3, 2].mean()
    assert middle == pytest.approx(float(mean), abs=0.025)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # the cosines of the second are not kept
def test_pieces_of_any_size_give_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("llama").to(dtype)
    ids = [[5, 9, 11, 2, 8, 3, 7, 1, 4], [9, 2, 12, 6, 30, 21], [7]]
    names = ["cosine_at_distance", "pair_share"]
    whole = td.trace(network, ids)[names]
    monkeypatch.setattr(prompt_shares, "_PIECE_BYTES", 8 * 9 * 2)
    xr.testing.assert_allclose(td.trace(network, ids)[names], whole, rtol=0, atol=1e-12)


@pytest.mark.long
def test_texts_without_pairs_have_no_shares() -> None:
    assert bool(td.trace(network_of("llama"), [[5], [9]]).pair_share.isnull().all())


def with_pairs(near: float) -> Diagnosis:
    """Of three layers, with adjacent tokens at that cosine after the last one and distant ones at 0.2."""
    result = synthetic(layers=3, heads=2)
    cosines = np.full((4, 4), 0.2)
    cosines[3, 0] = near
    shares = np.zeros((4, 40))
    shares[:, 25], shares[:, 30] = 0.75, 0.25
    trace = result.trace.drop_vars(["cosine_at_distance", "distance", "pair_share", "cosine"], errors="ignore")
    trace = trace.drop_dims(["distance", "cosine"], errors="ignore").assign(
        cosine_at_distance=(("layer", "distance"), cosines), pair_share=(("layer", "cosine"), shares)
    )
    return replace(result, trace=trace.assign_coords(distance=[1, 2, 4, 8], cosine=-1 + 0.05 * (np.arange(40) + 0.5)))


@pytest.mark.parametrize(("near", "first"), [(0.95, "Mean by distance"), (0.6, "All pairs over depth")])
def test_distance_comes_first_where_neighbours_merge(near: float, first: str) -> None:
    given = section(with_pairs(near))
    assert given is not None
    assert given.variants[0].label == first
    assert len(given.variants) == 2


@pytest.mark.long
def test_the_page_has_both_with_their_numbers() -> None:
    page = page_of(with_pairs(0.95))
    heads, *rows = saved(page, "pairs-distance")
    assert heads == ["Distance", "Embedding", "Layer 3"]
    assert [float(row[2]) for row in rows] == [0.95, 0.2, 0.2, 0.2]
    heads, *rows = saved(page, "pairs-map")
    assert (heads[1], heads[-1], float(rows[0][1]), float(rows[0][-1])) == ("0.25 to 0.30", "0.50 to 0.55", 0.75, 0.25)
    assert "Most pairs have a cosine of 0.25 to 0.30 at the embedding" in page


def test_an_older_trace_has_no_such_section() -> None:
    trace = with_pairs(0.6).trace.drop_vars(["cosine_at_distance", "pair_share"])
    assert isinstance(trace, xr.Dataset)
    assert section(replace(with_pairs(0.6), trace=trace)) is None
