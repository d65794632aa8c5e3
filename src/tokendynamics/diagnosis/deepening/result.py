"""The result of `deeper`: variants of a network side by side over passes, decoded texts, and sentences on both.

Each sentence follows from its numbers, whichever direction they take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.deepening.repeated_passes import COLLAPSED, THERE_ARE_NONE
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.numerics.decline import DeclineEstimate
from tokendynamics.results.result import Readable
from tokendynamics.words import Convention, count, digits_apart, fixed, is_share, listing, number, percent, plural

DECODED = (1, 2, 5, 10, 20, 50, 100)
"""Passes after which the text is decoded; a text that degrades has done so by the last."""


REPETITIVE = 0.25
"""Share of different tokens below which a text is called repetitive: each token occurs four times on average."""

_WEIGHTS = {
    "fixed": "their own weights",
    "resample": "weights drawn anew for each pass",
    "law": "weights drawn anew for each pass, from their distribution",
}

_FED_BACK = {
    "after_norm": "fed back after the final norm",
    "before_norm": "fed back before the final norm",
    "there is no final norm": "without a final norm",
}


@dataclass(frozen=True, repr=False)
class Deeper(Readable):
    """A network and its variants, made deeper by running their blocks on their own output; returned by `deeper`.

    Attributes:
        table: The measures of `passes`, with a leading dim ``variant``; NaN after the end of a run. Also
            ``median_consensus`` (variant, pass), the median of E over prompts while all of them are finite,
            ``median_half_life`` and ``median_collapse_pass`` (variant, estimate) of it, ``fit_first`` and ``fit_last``
            (variant), the range of passes that the half-life is fitted to. Where texts were decoded, ``decoded`` and
            ``distinct_1`` (variant, decoded_pass), empty and NaN after the end of a run.
        sentences: The findings, each with its numbers.
        conventions: Every choice that the numbers depend on.
        refused: The reason for each variant that was not run, by name.
        undecoded: The reason why there is no decoded text; empty if there is.

    >>> from tokendynamics.diagnosis import deeper
    >>> repeated = deeper("random:gpt2-tiny", ["one fish", "two red birds"], 1)
    >>> repeated.variants
    ('full', 'no-ffn', 'no-norm', 'attention-only')
    """

    table: xr.Dataset
    sentences: tuple[str, ...]
    conventions: tuple[Convention, ...]
    refused: dict[str, str] = field(default_factory=dict)
    undecoded: str = ""

    @property
    def text(self) -> str:
        """The sentences as one text."""
        return " ".join(self.sentences)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants that ran."""
        return tuple(map(str, self.table.variant.values))

    @property
    def headline(self) -> str:
        """How many passes of which variants."""
        return f"{plural(self.table.sizes['pass'] - 1, 'pass', 'passes')} of {listing(self.variants)}"

    @property
    def findings(self) -> tuple[str, ...]:
        """The sentences."""
        return self.sentences

    def __getitem__(self, name: str) -> xr.DataArray:
        """Return a variable of `table`."""
        return self.table[name]


def sentences_of(table: xr.Dataset, refused: Mapping[str, str], undecoded: str) -> tuple[str, ...]:
    """Return what was measured, in sentences.

    Args:
        table: See `Deeper.table`.
        refused: Why a variant was not run, by its name.
        undecoded: Why there is no decoded text.
    """
    attrs, prompts = table.attrs, table.sizes["prompt"]
    over = "" if prompts == 1 else f" (median over {prompts} {noun_in(table)}s)"
    times = "once" if attrs["asked_for"] == 1 else f"{attrs['asked_for']:,} times"
    setup = (
        f"The blocks ran {times} on their own output, with {_WEIGHTS[attrs['weights']]}, "
        f"{_FED_BACK[attrs['feed_back']]}. Consensus E{over} is 0 if all tokens point along one line."
    )
    sentences = [setup]
    for name in map(str, table.variant.values):
        row = table.sel(variant=name)
        texts = [_of_consensus(row, attrs["resolution"]), _of_kappa(row), _of_the_end(row)]
        texts += [] if undecoded else [_of_the_text(row)]
        sentences.append(f"{name}: {' '.join(text for text in texts if text)}")
    sentences += [f"{name} was not run: {why}." for name, why in refused.items()]
    if undecoded:
        sentences.append(f"No text was decoded: {undecoded}.")
    return tuple(sentences)


def _of_consensus(row: xr.Dataset, resolution: float) -> str:
    """Say whether E falls below the bound, will, or does not fall."""
    values = row.median_consensus.values
    last = known_until(values)
    if last < 0:
        return "nothing is measured because tokens have no directions before the first pass."
    if last == 0:
        return f"E is {number(float(values[0]), 2)} at the embedding and undefined after every pass."
    # As many digits as distinguish each from the bound.
    ends = (float(values[place]) for place in (0, last))
    start, end = (number(value, digits_apart(value, COLLAPSED, 2, number)) for value in ends)
    half, reached = (
        DeclineEstimate(*map(float, row[f"median_{name}"].values)) for name in ("half_life", "collapse_pass")
    )
    half_life = _half_life(half, rounded=bool((values[: last + 1] <= resolution).any()))
    if values[0] < COLLAPSED:
        return f"E is already below {COLLAPSED:g} before the first pass."
    first_below = seen_below(values)
    if first_below is not None:
        name = "E" if row.sizes["prompt"] == 1 else "The median of E"
        later = f" It is {end} again after pass {count(last)}."
        later = _in_how_many(row, last) if values[last] < COLLAPSED else later
        falls = f"{name} falls from {start} to below {COLLAPSED:g} at pass {count(first_below)}"
        return f"{falls}; {half_life}.{later}"
    if values[last] <= resolution:
        return f"E falls from {start} to {end}, which is within rounding; {half_life}."
    if math.isnan(half.value):
        return f"E goes from {start} to {end} in {plural(last, 'pass', 'passes')}; {half_life}."
    first = int(row.fit_first)
    if math.isinf(half.value):
        verb = "does not fall" if values[last] >= values[0] else "stops falling"
        after = f"{number(values[first], 2)} after pass {count(first)}, {end} after pass {count(last)}"
        return f"E {verb}: {start} at the embedding, {after}."
    if math.isinf(half.high):
        return (
            f"E goes from {start} to {end} in {count(last)} passes. From pass {count(first)} on its fall is not "
            f"significant: {half_life}."
        )
    return (
        f"E falls from {start} to {end} in {count(last)} passes and has not reached {COLLAPSED:g}; {half_life}. "
        f"At this rate it is reached at about pass {_passes(reached.value)} ({_between(reached)})."
    )


def _in_how_many(row: xr.Dataset, last: int) -> str:
    """Say in how many prompts E itself is below the bound at the end, which a median does not show."""
    prompts, noun = row.sizes["prompt"], noun_in(row)
    if prompts == 1:
        return ""
    below = int((row.consensus.isel({"pass": last}) < COLLAPSED).sum())
    prompts_below = f"all {prompts} {noun}s" if below == prompts else f"{below} of {prompts} {noun}s"
    return f" After the last pass ({count(last)}), E is below {COLLAPSED:g} in {prompts_below}."


def seen_below(values: np.ndarray) -> int | None:
    """Return the first pass after which E is below the bound; None if it never is.

    >>> seen_below(np.array([0.5, 0.01, 1e-4])), seen_below(np.array([0.5, np.nan]))
    (2, None)
    """
    below = np.flatnonzero(values < COLLAPSED)
    return int(below[0]) if len(below) else None


def known_until(values: np.ndarray) -> int:
    """Return the last place before the first undefined value; −1 if the first value is undefined.

    >>> known_until(np.array([1.0, 0.5, np.nan, 0.2]))
    1
    """
    undefined = np.flatnonzero(~np.isfinite(values))
    return int(undefined[0]) - 1 if len(undefined) else len(values) - 1


def _half_life(half: DeclineEstimate, *, rounded: bool) -> str:
    """Write the half-life, or why it is undefined.

    Args:
        half: From the fit.
        rounded: Whether values are within rounding, which the fit leaves out.
    """
    if math.isnan(half.value):
        why = "too few passes are above rounding" if rounded else "E is measured after too few passes"
        return f"the half-life is undefined because {why}"
    if math.isinf(half.value):
        return "there is no half-life because E falls no further"
    passes = f"{_passes(half.value)} {'pass' if _passes(half.value) == '1' else 'passes'}"
    if math.isinf(half.high):
        return f"the half-life is {passes} (90 % CI {_passes(half.low)} or more)"
    return f"the half-life is {passes} ({_between(half)})"


def _between(measured: DeclineEstimate) -> str:
    return f"90 % CI {_passes(measured.low)}–{_passes(measured.high)}"


def _of_kappa(row: xr.Dataset) -> str:
    kappa, common = row.consensus_within.values, row.share_common.values
    last = known_until(kappa)
    if last < 1:
        return ""
    course = (
        f"From the embedding to pass {count(last)}, similarity κ goes from {fixed(kappa[0])} to {fixed(kappa[last])}"
    )
    if not is_share([common[0], common[last]]):  # an estimate outside 0 … 1 is no share
        return f"{course}."
    return f"{course} and the share common to all {noun_in(row)}s from {fixed(common[0])} to {fixed(common[last])}."


def _of_the_end(row: xr.Dataset) -> str:
    """Say which prompts become non-finite."""
    lost = [place for place in first_lost(row) if place is not None]
    total = row.sizes["prompt"]
    if not lost:
        return ""
    return (
        f"States become non-finite in {len(lost)} of {plural(total, noun_in(row))}, first after pass "
        f"{count(min(lost))}; medians end there."
    )


def first_lost(row: xr.Dataset) -> list[int | None]:
    """Return, for each prompt, the first pass after which it is not finite; None if it is finite to the end.

    Args:
        row: One variant of `Deeper.table`.
    """
    done = row.status.values == "all passes done"
    ends = [known_until(values) + 1 for values in row.log_norm.transpose("prompt", "pass").values]
    return [None if complete else end for complete, end in zip(done, ends, strict=True)]


def _of_the_text(row: xr.Dataset) -> str:
    """Say whether the decoded text becomes repetitive."""
    shares = row.distinct_1.values
    steps = row.decoded_pass.values[np.isfinite(shares)]
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return "No text can be decoded."
    first, last = float(shares[0]), float(shares[-1])
    shown = [percent(share, digits_apart(share, REPETITIVE, 2, percent)) for share in (first, last)]
    distinct = f"{shown[0]} of its tokens are different after pass {steps[0]}"
    if len(shares) == 1:
        return f"The decoded text is {'' if first < REPETITIVE else 'not '}repetitive: {distinct}."
    distinct += f", {shown[1]} after pass {steps[-1]}"
    if first < REPETITIVE:
        later = "" if last < REPETITIVE else ", but not at the end"
        return f"The decoded text is repetitive from the start{later}: {distinct}."
    return f"The decoded text {'becomes' if last < REPETITIVE else 'does not become'} repetitive: {distinct}."


def _passes(value: float) -> str:
    return count(round(value)) if 100 <= value < math.inf else number(value, 2)


def conventions_of(table: xr.Dataset) -> tuple[Convention, ...]:
    """Return every choice that the numbers depend on, in words.

    Args:
        table: See `Deeper.table`.
    """
    attrs, noun = table.attrs, noun_in(table)
    drawn = "" if attrs["weights"] == "fixed" else f" (seed {attrs['seed']})"
    conventions = [
        Convention("weights", _WEIGHTS[attrs["weights"]] + drawn, "own and drawn weights collapse at different rates"),
        *_of_what_is_there(attrs),
        Convention(
            "E", attrs["consensus"], "with another reference token, or as the mean over pairs, the numbers differ"
        ),
        Convention(
            "half-life",
            f"of the median of E over {noun}s, {attrs['half_life']}",
            f"a fit from the first pass on would mix two regimes; the data hold the fit of each {noun}",
        ),
        Convention("tokens that count", attrs["tokens"], "a verdict excludes massive tokens"),
        Convention("precision", attrs["precision"], "in half precision the decline ends earlier"),
    ]
    if "decoded" in table:
        conventions.append(
            Convention(
                "decoded text",
                f"the most likely next token at every position of the first {noun}; repetitive if fewer than "
                f"{percent(REPETITIVE)} of the tokens are different",
                "generated token by token, a text becomes repetitive earlier; another share moves the threshold",
            )
        )
    return tuple(conventions)


def _of_what_is_there(attrs: Mapping[Any, Any]) -> Iterator[Convention]:
    """Yield the choices about the final norm and the positions, of a network that has any."""
    if attrs["feed_back"] in ("after_norm", "before_norm"):
        yield Convention(
            "feed-back",
            f"the output of the blocks is {_FED_BACK[attrs['feed_back']]}",
            "on the other side of the final norm, E falls at another rate or not at all",
        )
    if attrs["positions_act"] != THERE_ARE_NONE:
        yield Convention(
            "positions",
            f"{attrs['positions']}; they act {attrs['positions_act']}",
            "positions added at every pass keep tokens apart",
        )
