"""What is said of a network that was made deeper: each sentence follows from its numbers, whichever way they point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._passes import COLLAPSED, THERE_ARE_NONE
from tokendynamics.numerics._decline import Estimate
from tokendynamics.words import Convention, fixed, is_share, plural

REPETITIVE = 0.25
"""Share of different tokens below which a text is called repetitive: each token comes four times on average."""

_WEIGHTS = {
    "fixed": "their own weights",
    "resample": "weights drawn anew for each pass",
    "law": "weights drawn anew for each pass, by their law",
}
_FED_BACK = {
    "after_norm": "fed back after the final norm",
    "before_norm": "fed back before the final norm",
    "there is no final norm": "without a final norm",
}


def sentences_of(table: xr.Dataset, refused: Mapping[str, str], undecoded: str) -> tuple[str, ...]:
    """Return what was measured, in sentences.

    Args:
        table: See `Deeper.table`.
        refused: Why a variant was not run, by its name.
        undecoded: Why there is no decoded text.
    """
    attrs, prompts = table.attrs, table.sizes["prompt"]
    over = "" if prompts == 1 else f", here the median over {prompts} prompts,"
    begun = (
        f"The blocks ran {_times(attrs['asked_for'])} on their own output, with {_WEIGHTS[attrs['weights']]}, "
        f"{_FED_BACK[attrs['feed_back']]}; E{over} is 0 where all tokens point the way of the first or its opposite."
    )
    found = [begun]
    for name in map(str, table.variant.values):
        row = table.sel(variant=name)
        said = [_of_consensus(row, attrs["resolution"]), _of_kappa(row), _of_the_end(row)]
        said += [] if undecoded else [_of_the_text(row)]
        found.append(f"{name}: {' '.join(each for each in said if each)}")
    found += [f"{name} was not run: {why}." for name, why in refused.items()]
    if undecoded:
        found.append(f"Nothing was decoded: {undecoded}.")
    return tuple(found)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _of_consensus(row: xr.Dataset, resolution: float) -> str:
    """Say whether E falls below the bound, will, or does not fall."""
    values = row.median_consensus.values
    last = known_until(values)
    if last < 0:
        return "tokens have no directions before the first pass, and nothing is measured."
    if last == 0:
        return f"E is {_small(float(values[0]))} at the embedding, and nothing is known of later passes."
    start, end = (_small(float(values[place])) for place in (0, last))
    half, reached = (Estimate(*map(float, each.values)) for each in (row.median_half_life, row.median_collapse_pass))
    if values[0] < COLLAPSED:
        return f"E is below {COLLAPSED:g} before the first pass, so that nothing can fall."
    seen = seen_below(values)
    if seen is not None:
        name = "E" if row.sizes["prompt"] == 1 else "The median of E"
        later = _in_how_many(row, last) if values[last] < COLLAPSED else f", but is {end} again after pass {last:,}"
        return f"{name} falls from {start} to below {COLLAPSED:g} at pass {seen:,}{later}; {_half_life(half)}."
    if values[last] <= resolution:
        return f"E falls from {start} to {end}, no more than rounding leaves; {_half_life(half)}."
    if math.isnan(half.value):
        return f"E goes from {start} to {end} in {'1 pass' if last == 1 else f'{last:,} passes'}; {_half_life(half)}."
    first = int(row.fit_first)
    if math.isinf(half.value):
        verb = "does not fall" if values[last] >= values[0] else "does not go on falling"
        after = f"{_small(values[first])} after pass {first}, {end} after pass {last:,}"
        return f"E {verb}: {start} at the embedding, {after}."
    if math.isinf(half.high):
        return (
            f"E goes from {start} to {end} in {last:,} passes, and from pass {first} on its fall cannot be told from "
            f"none: {_half_life(half)}."
        )
    return (
        f"E falls from {start} to {end} in {last:,} passes and is not below {COLLAPSED:g} yet; {_half_life(half)}, at "
        f"which it would be at about pass {_many(reached.value)} ({_many(reached.low)} to "
        f"{_many(reached.high)})."
    )


def _in_how_many(row: xr.Dataset, last: int) -> str:
    """Say in how many prompts E itself is below the bound at the end: a median is silent about the others."""
    prompts = row.sizes["prompt"]
    if prompts == 1:
        return ""
    below = int((row.consensus.isel({"pass": last}) < COLLAPSED).sum())
    many = f"all {prompts} prompts" if below == prompts else f"{below} of {prompts} prompts"
    return f", and E itself is below it in {many} after pass {last:,}, the last"


def seen_below(values: np.ndarray) -> int | None:
    """Return the first pass after which E is below the bound; None where that was not seen.

    >>> seen_below(np.array([0.5, 0.01, 1e-4])), seen_below(np.array([0.5, np.nan]))
    (2, None)
    """
    below = np.flatnonzero(values < COLLAPSED)
    return int(below[0]) if len(below) else None


def known_until(values: np.ndarray) -> int:
    """Return the last place before the first that is undefined; −1 where that is the first of all.

    >>> known_until(np.array([1.0, 0.5, np.nan, 0.2]))
    1
    """
    undefined = np.flatnonzero(~np.isfinite(values))
    return int(undefined[0]) - 1 if len(undefined) else len(values) - 1


def _half_life(half: Estimate) -> str:
    if math.isnan(half.value):
        return "too few passes above what rounding leaves for a half-life"
    if math.isinf(half.value):
        return "no half-life, for it falls no further"
    if math.isinf(half.high):
        return f"a half-life of {_many(half.value)} passes ({_many(half.low)} or more)"
    return f"a half-life of {_many(half.value)} passes ({_many(half.low)} to {_many(half.high)})"


def _of_kappa(row: xr.Dataset) -> str:
    kappa, common = row.consensus_within.values, row.share_common.values
    last = known_until(kappa)
    if last < 1:
        return ""
    moves = f"From the embedding to pass {last:,} κ goes from {fixed(kappa[0])} to {fixed(kappa[last])}"
    if not is_share([common[0], common[last]]):  # an estimate outside 0 … 1 is no share
        return f"{moves}."
    return f"{moves}, and what all prompts share of a direction from {fixed(common[0])} to {fixed(common[last])}."


def _of_the_end(row: xr.Dataset) -> str:
    """Say which prompts stop being finite."""
    lost = [place for place in first_lost(row) if place is not None]
    total = row.sizes["prompt"]
    if not lost:
        return ""
    return (
        f"States are not finite any more in {len(lost)} of {plural(total, 'prompt')}, first after pass "
        f"{min(lost):,}; medians end there."
    )


def first_lost(row: xr.Dataset) -> list[int | None]:
    """Return the first pass after which a prompt is not finite, for each; None where it is to the end.

    Args:
        row: One variant of `Deeper.table`.
    """
    done = row.status.values == "all passes done"
    ends = [known_until(values) + 1 for values in row.log_norm.transpose("prompt", "pass").values]
    return [None if whole else end for whole, end in zip(done, ends, strict=True)]


def _of_the_text(row: xr.Dataset) -> str:
    """Say whether what is decoded turns repetitive."""
    shares = row.distinct_1.values
    steps = row.decoded_pass.values[np.isfinite(shares)]
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return "Nothing can be decoded."
    first, last = float(shares[0]), float(shares[-1])
    said = f"of its tokens {fixed(first)} are different after pass {steps[0]}"
    if len(shares) == 1:
        return f"The decoded text is {'' if first < REPETITIVE else 'not '}repetitive: {said}."
    said += f", {fixed(last)} after pass {steps[-1]}"
    if first < REPETITIVE:
        return f"The decoded text is repetitive from the start{'' if last < REPETITIVE else ', and later not'}: {said}."
    return f"The decoded text {'turns' if last < REPETITIVE else 'does not turn'} repetitive: {said}."


def _small(value: float) -> str:
    return f"{value:.2g}"


def _many(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def conventions_of(table: xr.Dataset) -> tuple[Convention, ...]:
    """Return every choice the numbers hang on, in words.

    Args:
        table: See `Deeper.table`.
    """
    attrs: Mapping[Any, Any] = table.attrs
    drawn = "" if attrs["weights"] == "fixed" else f" (seed {attrs['seed']})"
    found = [
        Convention(
            "weights", _WEIGHTS[attrs["weights"]] + drawn, "a network's own and drawn ones collapse at other paces"
        ),
        *_of_what_is_there(attrs),
        Convention("E", attrs["consensus"], "against another token, or as the mean over pairs, the numbers differ"),
        Convention(
            "half-life",
            f"of the median of E over prompts, {attrs['half_life']}",
            "a fit from the first pass on would mix two regimes; each prompt's own is in the data",
        ),
        Convention("tokens that count", attrs["tokens"], "a verdict leaves massive tokens out"),
        Convention("precision", attrs["precision"], "half precision ends the decline earlier"),
    ]
    if "decoded" in table:
        found.append(
            Convention(
                "decoded text",
                f"the likeliest next token at every position of the first prompt; repetitive where fewer than "
                f"{REPETITIVE:.0%} of the tokens are different",
                "generated token by token, a text repeats itself sooner; another share moves the border",
            )
        )
    return tuple(found)


def _of_what_is_there(attrs: Mapping[Any, Any]) -> Iterator[Convention]:
    """Yield the choices about the final norm and the positions of a network that has any."""
    if attrs["feed_back"] in ("after_norm", "before_norm"):
        yield Convention(
            "feed-back",
            f"the output of the blocks is {_FED_BACK[attrs['feed_back']]}",
            "on the other side of the final norm E falls at another pace, if it falls",
        )
    if attrs["positions_act"] != THERE_ARE_NONE:
        yield Convention(
            "positions",
            f"{attrs['positions']}; they act {attrs['positions_act']}",
            "a table added at every pass keeps tokens apart",
        )
