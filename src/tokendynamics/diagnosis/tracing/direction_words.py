"""Shared directions and source tokens in sentences: how much, written by which parts and heads, read as which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import part_of_layer
from tokendynamics.numerics.printable import token_label
from tokendynamics.results import Refused
from tokendynamics.words import Finding, fixed, indefinite, listing, percent

SHARED = 0.05
"""Share of a token's direction along a shared direction from which the direction is described."""

ONE_SOURCE = 0.25
"""Share of what heads add from which one position is named as its source, and"""

TIMES_EVEN = 1.5
"""how many times its share must be at least of what all tokens of a text would bring alike: of three tokens each brings
a third."""

MOST_WRITERS = 3
"""Parts named at most as those that write the larger half of a direction."""

HEAD_NAMED = 0.05
"""Share of a direction from which the head that writes the largest one is named."""

_ENTRIES = 3
"""Vocabulary entries that a sentence names."""


@dataclass(frozen=True)
class Writer:
    """One part, or one head, and its signed share of a direction.

    Attributes:
        source: The layer, 0 for the embedding.
        name: As sentences name it.
        share: Of the mean component of the tokens along the direction; all parts add up to 1.
    """

    source: int
    name: str
    share: float


def writers_of(directions: xr.Dataset, text: bool) -> list[Writer]:
    """Return all parts that write a direction after the last layer, the largest share first.

    Args:
        directions: From `shared_directions`.
        text: Whether to average over the directions of texts instead of taking the common one.
    """
    shares = _after_last(directions.written, text).transpose("source", "component")
    known = directions.written.sel(component="attention").isnull() | (
        directions.written.sel(component="attention") != 0
    )
    split = known.any(["direction", "layer"])  # elsewhere the attention was not read, and the layer is one part
    writers = [
        Writer(source, _part_name(str(part), source, bool(split.sel(source=source))), float(share))
        for source in shares.source.values.tolist()
        for part, share in zip(shares.component.values, shares.sel(source=source).values, strict=True)
    ]
    return sorted((writer for writer in writers if writer.share), key=lambda writer: -writer.share)


def _part_name(part: str, source: int, split: bool) -> str:
    return "the embedding" if source == 0 else part_of_layer(part, source) if split else f"layer {source}"


def heads_of_direction(directions: xr.Dataset, text: bool) -> list[Writer]:
    """Return the heads that write a direction after the last layer, the largest share first; none where unknown.

    Args:
        directions: From `shared_directions`.
        text: See `writers_of`.
    """
    if "written_by_head" not in directions:
        return []
    shares = _after_last(directions.written_by_head, text).transpose("source", "head").values
    writers = [
        Writer(source, f"layer {source} head {head}", float(shares[source, head]))
        for source, head in np.argwhere(np.isfinite(shares)).tolist()
        if source > 0
    ]
    return sorted(writers, key=lambda writer: -writer.share)


def _after_last(values: xr.DataArray, text: bool) -> xr.DataArray:
    last = values.isel(layer=-1, drop=True)
    return last.isel(direction=slice(1, None)).mean("direction") if text else last.isel(direction=0, drop=True)


def entries_of(directions: xr.Dataset, direction: int) -> list[str]:
    """Return the vocabulary entries of a direction after the last layer, with visible signs; none without a head.

    Args:
        directions: From `shared_directions`.
        direction: Its number, 0 for the common one.
    """
    if "token_text" not in directions:
        return []
    last = directions.isel(direction=direction, layer=-1)
    known = last.token_id.values >= 0
    return [token_label(str(text)) for text in last.token_text.values[known]]


def amounts_of(directions: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of a token's direction along the common one and, a median over texts, along that of its text.

    Args:
        directions: From `shared_directions`.

    Returns:
        Two arrays over layers 0 … L; NaN where a direction is undefined.
    """
    similarity = directions.similarity.transpose("direction", "layer")
    return similarity[0].values, similarity[1:].median("direction").values


def directions_findings(
    directions: xr.Dataset | Refused | None, sources: xr.Dataset | Refused | None
) -> tuple[Finding, ...]:
    """Return what tokens share after the last layer in words, and which tokens attention brings it from.

    Args:
        directions: From `shared_directions`; nothing is said of one that was refused.
        sources: From `source_tokens`; likewise.
    """
    if not isinstance(directions, xr.Dataset):
        return ()
    noun = str(directions.attrs["prompt_noun"])
    common, of_text = (float(along[-1]) for along in amounts_of(directions))
    findings = [_amounts(common, of_text, noun)]
    if common >= SHARED:
        findings.append(_writers(directions, False, "the common direction"))
        if entries := entries_of(directions, 0):
            quoted = listing([f"“{entry}”" for entry in entries[:_ENTRIES]])
            text = f"The final norm and the language head map the common direction to the tokens {quoted}."
            findings.append(Finding(text, "directions", {"entries": entries}))
    if of_text >= SHARED:
        findings.append(_writers(directions, True, f"{indefinite(noun)}'s own direction"))
    if isinstance(sources, xr.Dataset):
        findings += [finding for kind in ("common", "text") if (finding := _of_sources(sources, kind)) is not None]
    return tuple(findings)


def _amounts(common: float, of_text: float, noun: str) -> Finding:
    values = {"common": common, "text": of_text}
    if not (common >= SHARED or of_text >= SHARED):
        text = (
            f"After the last layer, the directions of tokens hardly have a mean, over all {noun}s or within one: less "
            f"than {SHARED:g} of a token's direction lies along it."
        )
        return Finding(text, "directions", values)
    parts = []
    if common >= SHARED:
        parts.append(f"{fixed(common)} of a token's direction lies along a direction common to all {noun}s")
    if of_text >= SHARED:
        of = "" if parts else " of a token's direction lies"
        parts.append(f"{fixed(of_text)}{of} along its {noun}'s own (median)")
    return Finding(f"After the last layer, {listing(parts)}.", "directions", values)


def _writers(directions: xr.Dataset, text: bool, name: str) -> Finding:
    """Say which parts write the larger half of a direction, if they are few, and which head writes most of all."""
    writers, heads = writers_of(directions, text), heads_of_direction(directions, text)
    shares = np.array([writer.share for writer in writers])
    enough = int(np.searchsorted(np.cumsum(shares), 0.5)) + 1
    values: dict[str, Any] = {"parts": {writer.name: writer.share for writer in writers[:MOST_WRITERS]}}
    if enough > min(MOST_WRITERS, max(1, len(writers) // 4)):
        largest = writers[0]
        most = f"{largest.name} writes the largest share ({fixed(largest.share, sign=True)})"
        words = f"No small set of parts writes {name}; {most}."
    else:
        chosen, total = writers[:enough], float(shares[:enough].sum())
        named = listing([f"{writer.name} ({fixed(writer.share, sign=True)})" for writer in chosen])
        verb = "writes" if enough == 1 else "write"
        words = f"{named[0].upper()}{named[1:]} {verb} most of {name}."
        words += f" The other parts undo {fixed(total - 1)} of it." if round(total - 1, 2) > 0 else ""
    if heads and heads[0].share >= HEAD_NAMED:
        words += f" The largest share of a single head is {fixed(heads[0].share, sign=True)} ({heads[0].name})."
        values["heads"] = {writer.name: writer.share for writer in heads[:MOST_WRITERS]}
    return Finding(words, "directions", values)


@dataclass(frozen=True)
class Source:
    """Where heads bring a shared direction from, in the layer in which they add most to it.

    Attributes:
        layer: Counted from 1.
        position: Of the tokens that they bring most from, over all texts.
        share: What comes from them of all that heads add there.
        even: What would come from them if all tokens of a text brought the same.
        part: What heads add there, relative to the mean component of the tokens along the direction after the layer.
        along: Share of a token's direction along the shared one after that layer, a median over texts.
    """

    layer: int
    position: int
    share: float
    even: float
    part: float
    along: float

    @property
    def matters(self) -> bool:
        """Whether the direction is shared, and heads add to it: what a bias writes has no source among the tokens."""
        return self.along >= SHARED and self.part >= SHARED

    @property
    def stands_out(self) -> bool:
        """Whether the position is worth naming."""
        return self.share >= max(ONE_SOURCE, TIMES_EVEN * self.even)


def source_of(sources: xr.Dataset, kind: str) -> Source | None:
    """Return the layer whose heads add most to a shared direction, and its largest source; None where none adds.

    Args:
        sources: From `source_tokens`.
        kind: "common" or "text".
    """
    added = sources.added.sel(kind=kind).transpose("prompt", "layer").values
    if not np.nanmax(added.sum(axis=0), initial=0.0) > 0:
        return None
    place = int(np.nanargmax(added.sum(axis=0)))
    shares = sources.by_position.sel(kind=kind).transpose("layer", "token").values[place]
    position, along = int(np.nanargmax(shares)), sources.component.sel(kind=kind).isel(layer=place).values
    share = round(float(shares[position]), 6)  # beyond that is rounding, and all of it would read 99.99999 %
    there = np.isfinite(sources.contribution.sel(kind=kind).transpose("layer", "prompt", "token").values[place])
    alike = there[:, position] / np.maximum(there.sum(axis=1), 1)
    even = float((added[:, place] * alike).sum() / added[:, place].sum())
    part = float(added[:, place].sum() / along.sum())
    return Source(place + 1, position, share, even, part, float(np.nanmedian(along) ** 2))


def summary_of(sources: xr.Dataset) -> str:
    """Say where most of what the tokens of a text share comes from.

    Args:
        sources: From `source_tokens`.
    """
    shared = f"the direction that the tokens of {indefinite(sources.attrs['prompt_noun'])} share"
    source = source_of(sources, "text")
    if source is None:
        return f"In no layer do heads add to {shared}."
    return _sentence(source, shared)


def _sentence(source: Source, shared: str, first: str = "its first token") -> str:
    where = f"Relative to the tokens' norm, heads add most to {shared} in layer {source.layer}."
    token = first if source.position == 0 else f"the token at position {source.position}"
    if round(source.even, 2) == 1:
        return f"{where} All of it comes from the only token that attention reads there."
    if not source.stands_out and round(source.share, 2) < 1:
        return f"{where} No position stands out there: the largest contribution of one is {percent(source.share)}."
    if not source.share <= 1:
        return (
            f"{where} {token[0].upper()}{token[1:]} adds more than the total there, and other tokens undo the excess."
        )
    return f"{where} There, {percent(source.share)} of it comes from {token}."


def _of_sources(sources: xr.Dataset, kind: str) -> Finding | None:
    source = source_of(sources, kind)
    if source is None or not source.matters:
        return None
    noun = sources.attrs["prompt_noun"]
    if kind == "common":
        text = _sentence(source, "the common direction", f"the first token of each {noun}")
    else:
        text = _sentence(source, f"the direction that the tokens of {indefinite(noun)} share")
    values = {"layer": source.layer, "position": source.position, "share": source.share, "along": source.along}
    return Finding(text, "directions", values)


def source_in_short(sources: xr.Dataset | Refused | None) -> str:
    """Say without symbols from which token attention brings what the tokens of a text share; empty for many or unknown.

    Args:
        sources: From `source_tokens`.
    """
    source = source_of(sources, "text") if isinstance(sources, xr.Dataset) else None
    if not isinstance(sources, xr.Dataset) or source is None or not source.matters:
        return ""
    if not source.stands_out or source.share > 1:
        return ""
    shared = f"what the tokens of {indefinite(sources.attrs['prompt_noun'])} share"
    token = "its first token" if source.position == 0 else f"the token at position {source.position}"
    return f"In layer {source.layer}, {percent(source.share)} of what heads add to {shared} comes from {token}."
