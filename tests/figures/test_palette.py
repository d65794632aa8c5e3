"""Legibility, computed: contrast of text and of drawn lines on both papers, and lightness steps that survive grey."""

from __future__ import annotations

import pytest

from tokendynamics.figures import palette


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def twin(colour: str) -> str:
    return palette._DARK[colour]


@pytest.mark.parametrize("colour", [palette.INK, palette.MUTED])
def test_text_is_legible_on_both_papers(colour: str) -> None:
    assert contrast(colour, palette.PAPER) >= 4.5
    assert contrast(twin(colour), twin(palette.PAPER)) >= 4.5


@pytest.mark.parametrize("colour", [palette.BLUE, palette.ORANGE, palette.NEGATIVE, palette.POSITIVE, palette.AXIS])
def test_lines_and_marks_stand_out_on_both_papers(colour: str) -> None:
    assert contrast(colour, palette.PAPER) >= 3
    assert contrast(twin(colour), twin(palette.PAPER)) >= 3


@pytest.mark.parametrize("dark", [False, True])
def test_component_bars_differ_in_grey(dark: bool) -> None:
    bars = [palette.ATTENTION, palette.FEED_FORWARD]
    shown = [twin(bar) if dark else bar for bar in bars]
    assert contrast(*shown) >= 2


def test_positions_in_the_prompt_grow_steadily_darker() -> None:
    steps = [luminance(colour) for colour in palette.POSITIONS]
    assert steps == sorted(steps, reverse=True)
    shown = [luminance(twin(colour)) for colour in palette.POSITIONS]
    assert shown == sorted(shown)


def test_every_colour_has_a_dark_twin_and_a_rule() -> None:
    rules = palette.dark_rules()
    for colour in palette._DARK:
        assert f'svg [fill="{colour}"]' in rules
        assert f'svg [stroke="{colour}"]' in rules
