"""Legibility, computed: lines stand out on white, and are told apart without colour and by colour-blind readers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from tokendynamics.figures import style as style


def linear(colour: str) -> np.ndarray:
    channels = np.array(to_rgb(colour))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", [*(colour for colour, _ in style.LINES), style.PATH, style.AXIS])
def test_lines_stand_out_on_white_paper(colour: str) -> None:
    assert contrast(colour, "#ffffff") >= 3


@pytest.mark.parametrize("colour", [style.INK, style.MUTED])
def test_text_is_legible(colour: str) -> None:
    assert contrast(colour, "#ffffff") >= 4.5


def test_no_two_lines_share_a_dash() -> None:
    dashes = [dash for _, dash in style.LINES]
    assert all(one != other for one, other in itertools.combinations(dashes, 2))


# Confusion of red and green as seen with no long-wave or no medium-wave cones, on linear RGB (Viénot et al. 1999).
BLIND = {
    "protan": np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]),
    "deutan": np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]),
}


@pytest.mark.parametrize("kind", BLIND)
def test_the_first_three_lines_differ_for_colour_blind_readers(kind: str) -> None:
    seen = [BLIND[kind] @ linear(colour) for colour, _ in style.LINES[:3]]
    for one, other in itertools.combinations(seen, 2):
        assert np.abs(one - other).max() >= 0.15


def test_start_end_and_paths_differ_in_grey() -> None:
    assert contrast(style.START, style.END) >= 3
    assert contrast(style.PATH, style.END) >= 2
    assert contrast(style.INK, style.END) >= 3


def test_hidden_things_are_paler_than_those_in_front() -> None:
    for front, hidden in (
        (style.PATH, style.PATH_HIDDEN),
        (style.WIRE, style.WIRE_HIDDEN),
        (style.END, style.END_HIDDEN),
    ):
        assert luminance(hidden) > luminance(front) + 0.1
    assert luminance(style.SURFACE) > luminance(style.WIRE_HIDDEN)


def test_the_median_stands_out_from_the_single_lines_and_these_from_the_band() -> None:
    assert contrast(style.PATH, style.THIN) >= 2.5
    assert contrast(style.THIN, style.BAND) >= 1.5
