"""What the page says of shared directions is what was measured, and nothing of a token acts on the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from report.conftest import HOSTILE, synthetic
from report.reading import page_of, saved
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.report.diagnosis._directions import section
from tokendynamics.results import Refused

LAYERS, TOKENS = 3, 20


def directions() -> xr.Dataset:
    draw = np.random.default_rng(4)
    written = np.tril(np.ones((LAYERS + 1, LAYERS + 1)))[None, ..., None] * draw.normal(size=(3, 4, 4, 2))
    variables: dict[str, Any] = {
        "similarity": (("direction", "layer"), draw.uniform(0.1, 0.5, (3, 4))),
        "carried": (("direction", "layer"), np.ones((3, 4))),
        "written": (("direction", "layer", "source", "component"), written),
        "written_by_head": (("direction", "layer", "source", "head"), draw.normal(size=(3, 4, 4, 2))),
        "token_id": (("direction", "layer", "rank"), np.tile([1, 2], (3, 4, 1))),
        "token_text": (("direction", "layer", "rank"), np.tile([HOSTILE, "\n"], (3, 4, 1))),
    }
    coords = {"direction": ["common", "prose", HOSTILE], "layer": range(4), "source": range(4)}
    attrs = {"prompt_noun": "text", "no_heads": "", "no_reading": ""}
    return xr.Dataset(variables, coords={**coords, "component": ["attention", "feed_forward"]}, attrs=attrs)


def sources() -> xr.Dataset:
    """Layer 2 adds most, in the second prompt, of which token 4 gives 7 of 10 parts and token 5 takes one away."""
    contribution = np.zeros((2, 2, LAYERS, TOKENS))
    contribution[:, :, 1, :4] = 0.1
    contribution[1, :, 1, 4], contribution[1, :, 1, 5] = 0.7, -0.1
    contribution[0, :, :, 12:] = np.nan
    added = np.nansum(contribution, axis=-1)
    variables: dict[str, Any] = {
        "contribution": (("prompt", "kind", "layer", "token"), contribution),
        "added": (("prompt", "kind", "layer"), added),
        "component": (("prompt", "kind", "layer"), np.full_like(added, 0.5)),
        "by_position": (("kind", "layer", "token"), np.nansum(contribution, axis=0) / 1.4),
        "token_text": (("prompt", "token"), np.array([["a"] * TOKENS, [HOSTILE] * TOKENS])),
    }
    coords = {"prompt": ["prose", HOSTILE], "kind": ["common", "text"], "layer": [1, 2, 3]}
    return xr.Dataset(variables, coords=coords, attrs={"prompt_noun": "text"})


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return replace(synthetic(layers=LAYERS, heads=2), directions=directions(), sources=sources())


@pytest.mark.usefixtures("undrawn")
def test_numbers_of_the_figures_are_those_of_the_tables(diagnosis: Diagnosis) -> None:
    table, page = directions(), page_of(diagnosis)
    _, *rows = saved(page, "directions-chart")
    np.testing.assert_allclose([float(row[1]) for row in rows], table.similarity[0])
    np.testing.assert_allclose([float(row[2]) for row in rows], table.similarity[1:].median("direction"))
    _, *rows = saved(page, "directions-writers-text")
    np.testing.assert_allclose(
        [[float(entry) for entry in row[1:]] for row in rows], table.written[1:, -1].mean("direction")
    )
    _, *rows = saved(page, "directions-sources-common")
    assert [float(row[2]) for row in rows[:6]] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.7, -0.1])
    assert sum(float(row[2]) for row in rows) == pytest.approx(1.0)
    assert "in the layer in which they add most relative to the tokens" in page


@pytest.mark.long
def test_text_of_tokens_and_prompts_is_escaped(diagnosis: Diagnosis) -> None:
    assert HOSTILE not in page_of(diagnosis)


def test_the_largest_writers_come_first(diagnosis: Diagnosis) -> None:
    given = section(diagnosis)
    assert given is not None
    shares = [float(row[2].value) for row in given.tables[0].rows]  # pyright: ignore[reportArgumentType]
    for start in range(0, len(shares), 3):
        assert shares[start : start + 3] == sorted(shares[start : start + 3], reverse=True)


def test_what_is_missing_is_said_with_its_reason(diagnosis: Diagnosis) -> None:
    attrs = {"prompt_noun": "text", "no_heads": "no factors", "no_reading": "no head"}
    table = directions().drop_vars(["written_by_head", "token_id", "token_text"]).assign_attrs(attrs)
    given = section(replace(diagnosis, directions=table, sources=Refused("no factors")))
    assert given is not None
    assert given.notes == (
        "Heads are not shown: no factors.", "The directions are not read as vocabulary entries: no head.",
    )  # fmt: skip
    assert len(given.tables) == 1
    assert len(given.variants) == 2
    few = section(replace(diagnosis, directions=Refused("one text")))
    assert few is not None
    assert few.sentences == ("Shared directions were not measured: one text.",)
    for absent in (None, Refused("it was not requested")):
        assert section(replace(diagnosis, directions=absent)) is None


def test_a_direction_to_which_no_attention_adds_has_no_sources(diagnosis: Diagnosis) -> None:
    given = section(replace(diagnosis, sources=sources().assign(added=-sources().added)))
    assert given is not None
    assert [variant.drawn is None for variant in given.variants] == [False, False, True, True]
