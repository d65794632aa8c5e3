"""Each threshold from both sides, and which layer is the worst."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tokendynamics.diagnosis.tracing.layer_states import (
    ANISOTROPIC,
    CONSENSUS,
    LINE_EXCESS,
    ONE_POINT,
    SPREAD,
    State,
    layer_states,
    state_of,
    states_within,
    worst_layer,
)
from tokendynamics.diagnosis.verdict import Verdict, Worst

A_LITTLE = 1e-9


@pytest.mark.parametrize(
    ("common", "kappa", "excess", "state"),
    [
        (0.0, SPREAD - A_LITTLE, 0.0, "spread"),
        (0.0, SPREAD, 0.0, "drawing together"),
        (0.0, CONSENSUS - A_LITTLE, 0.0, "drawing together"),
        (0.0, CONSENSUS, 0.0, "consensus"),
        (0.0, 0.0, LINE_EXCESS - A_LITTLE, "spread"),
        (0.0, 0.0, LINE_EXCESS, "rank collapse"),
        (0.0, CONSENSUS, LINE_EXCESS, "consensus"),
        (0.0, CONSENSUS - A_LITTLE, LINE_EXCESS, "rank collapse"),
        (ANISOTROPIC - A_LITTLE, 0.0, 0.0, "spread"),
        (ANISOTROPIC, 0.0, 0.0, "anisotropic"),
        (ANISOTROPIC, SPREAD, 0.0, "drawing together"),
        (1 - ONE_POINT - A_LITTLE, 0.0, 0.0, "anisotropic"),
        (1 - ONE_POINT + A_LITTLE, 0.0, 0.0, "one point"),
        (1 - ONE_POINT + A_LITTLE, SPREAD, 0.0, "one point"),
        (1 - ONE_POINT + A_LITTLE, 0.0, LINE_EXCESS, "one point"),
        (1 - ONE_POINT + A_LITTLE, CONSENSUS, 0.0, "one point"),
        (1.0, np.nan, np.nan, "one point"),
        (0.99, np.nan, np.nan, "anisotropic"),
        (0.5, np.nan, np.nan, "undetermined"),
        (np.nan, np.nan, np.nan, "undetermined"),
        (0.0, -0.2, 0.0, "spread"),
        (0.0, 0.9, np.nan, "consensus"),
    ],
)
def test_every_threshold_from_both_sides(common: float, kappa: float, excess: float, state: State) -> None:
    assert state_of(common, kappa, excess) == state


def a_trace(
    common: list[float],
    kappa: list[float],
    excess: list[float],
    width: float = 0.0,
    repeats: tuple[int, ...] = (-1, -1),
) -> xr.Dataset:
    """A trace of given measures after each layer, with intervals of one width."""

    def over(values: list[float], *dims: str) -> tuple[tuple[str, ...], np.ndarray]:
        return ("layer", "site", *dims), np.array(values, dtype=float).reshape(-1, 1, *(1 for _ in dims))

    def around(values: list[float], *dims: str) -> tuple[tuple[str, ...], np.ndarray]:
        names, middle = over(values, *dims)
        return (*names, "bound"), np.stack([middle - width, middle + width], axis=-1)

    return xr.Dataset(
        {
            "shares": over(common, "share"),
            "shares_interval": around(common, "share"),
            "consensus_relative": over(kappa),
            "consensus_relative_interval": around(kappa),
            "line_excess": over(excess),
            "line_excess_interval": around(excess),
            "repeats": ("prompt", list(repeats)),
        },
        coords={"site": ["feed_forward"], "share": ["common"], "layer": range(len(kappa))},
    )


@pytest.mark.parametrize(
    ("common", "kappa", "excess", "states", "worst"),
    [
        ([0.1] * 4, [0, 0.3, 0.9, 0.2], [0.0] * 4, ("drawing together", "consensus", "drawing together"), 2),
        ([0.1, 0.9, 0.9, 0.9], [0, 0.0, 0.3, 0.0], [0.0] * 4, ("anisotropic", "drawing together", "anisotropic"), 1),
        ([0.1, 0.9999, 0.9995, 0.1], [0, 0, 0, 0.9], [0.0] * 4, ("one point", "one point", "consensus"), 1),
        ([0.1, 0.9, 0.95, 0.9], [0.0] * 4, [0.0] * 4, ("anisotropic",) * 3, 2),
        ([0.1] * 4, [0.0] * 4, [0, 0.3, 0.0, 0.5], ("rank collapse", "spread", "rank collapse"), 3),
        ([0.1] * 4, [0, 0.9, 0.9, 0.9], [0.0] * 4, ("consensus",) * 3, 1),
        ([np.nan] * 4, [np.nan] * 4, [np.nan] * 4, ("undetermined",) * 3, 1),
        ([0.1] * 4, [0, 0.8, 0.02, 0.02], [0, 0, 0.3, 0.9], ("consensus", "rank collapse", "rank collapse"), 3),
    ],
)
def test_the_worst_layer_is_by_state_then_by_measure(
    common: list[float], kappa: list[float], excess: list[float], states: tuple[State, ...], worst: int
) -> None:
    trace = a_trace(common, kappa, excess)
    assert layer_states(trace) == states
    assert worst_layer(trace, states) == worst


@pytest.mark.parametrize(
    ("layers", "final", "headline"),
    [
        (("spread",) * 3, None, "spread after every layer"),
        (("spread",) * 3, "spread", "spread after every layer"),
        (("spread",) * 3, "one point", "spread after every layer, one point after the final norm"),
        (("spread",), None, "spread after the only layer"),
        (("spread", "consensus", "spread"), None, "spread after the last layer; worst: consensus, layer 2"),
        (("consensus",) * 2, None, "consensus after the last layer"),
        (("undetermined", "spread"), None, "spread after the last layer"),
    ],
)
def test_the_headline_has_a_worse_state_only_where_there_is_one(
    layers: tuple[State, ...], final: State | None, headline: str
) -> None:
    worst = Worst(layers[1] if layers[1:] else layers[0], min(2, len(layers)))
    assert Verdict(layers[-1], worst, layers, (), (), final).headline == headline


def test_one_text_or_the_same_one_again_determines_nothing() -> None:
    measures = ([0.1, 0.1], [0.0, 0.9], [0.0, 0.0])
    assert layer_states(a_trace(*measures, repeats=(-1,))) == ("undetermined",)
    assert layer_states(a_trace(*measures, repeats=(-1, 0, 0))) == ("undetermined",)
    assert layer_states(a_trace(*measures, repeats=(-1, 0, -1))) == ("consensus",)


def test_the_states_within_the_intervals() -> None:
    near = a_trace([0.1, 0.1], [0.0, CONSENSUS + 0.02], [0.0, 0.0], width=0.01)
    assert states_within(near, -1) == ("consensus",)
    assert states_within(near.assign(consensus_relative_interval=near.consensus_relative_interval - 0.02), -1) == (
        "drawing together",
        "consensus",
    )
    assert states_within(near.assign(consensus_relative_interval=near.consensus_relative_interval * np.nan), -1) == ()


def test_the_thresholds_in_the_document_are_those_of_the_code() -> None:
    table = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
    for words in (
        f"κ′ < {SPREAD:g} |",
        f"{SPREAD:g} ≤ κ′ < {CONSENSUS:g} |",
        f"κ′ ≥ {CONSENSUS:g} |",
        f"line excess ≥ {LINE_EXCESS:g} and κ′ < {CONSENSUS:g} |",
        f"common ≥ {ANISOTROPIC:g} and κ′ < {SPREAD:g} |",
        f"1 − common < {ONE_POINT:g} |",
    ):
        assert words in table
