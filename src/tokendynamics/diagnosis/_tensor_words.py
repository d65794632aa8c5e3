"""What a comparison says of stored tensors: which differ, in which layers, and which differ unlike their neighbours."""

from __future__ import annotations

import numpy as np

from tokendynamics.diagnosis._tensor_differences import TensorDifferences, standing_out
from tokendynamics.words import Finding, in_layers, plural

MOST_NAMED = 4
"""So many tensors are named one by one."""

STORED = 1e-5
"""Relative difference from which a tensor differs by more than the rounding of single precision."""


def tensors_finding(names: tuple[str, str], found: TensorDifferences) -> Finding:
    """Say which stored tensors differ; of those that differ in every layer, which do so unlike the others.

    Args:
        names: Of the first network and the other one.
        found: From `tensor_differences`.
    """
    if found.why:
        text = f"The stored tensors of {names[1]} and {names[0]} are not compared: {found.why}."
        return Finding(text, "weights", {"why": found.why})
    values = found.table.tensor_difference.values
    tensors, layers = found.table.tensor.values.astype(str), found.table.layer.values
    differing = np.nan_to_num(values, nan=0.0) > STORED
    rest = _lonely(found.unmatched)
    if not differing.any():
        text = f"Every stored tensor of the blocks of {names[1]}, biases and norms included, is that of {names[0]}."
        return Finding(text + rest, "weights", {"tensors": []})
    alone = [(layer, place) for layer, place in standing_out(values) if differing[layer, place]]
    known = np.isfinite(values).any(axis=1)
    everywhere = bool(differing.any(axis=1)[known].all()) and int(known.sum()) > 1
    where = "in every layer" if everywhere else f"in {in_layers(layers[differing.any(axis=1)].tolist())} alone"
    named = alone or ([] if everywhere else [(int(row), int(place)) for row, place in np.argwhere(differing)])
    words = _named(values, named, tensors, layers, found.vectors)
    if named and everywhere:
        where += "; unlike the same ones of other layers"
        text = f"Stored tensors of {names[1]} and {names[0]} differ {where}: {words}."
    elif named:
        text = f"Stored tensors of {names[1]} and {names[0]} differ {where}: {words}."
    else:
        middle = float(np.median(values[differing]))
        text = (
            f"Stored tensors of {names[1]} and {names[0]} differ {where}, in the median by {middle:.2g} of their size, "
            "and none unlike the same one of other layers."
        )
    return Finding(text + rest, "weights", {"tensors": [f"{layers[layer]} {tensors[place]}" for layer, place in named]})


def tensors_of_layer(found: TensorDifferences, layer: int) -> list[str]:
    """Return the names of the tensors of one layer that differ unlike the same ones of other layers, largest first.

    Args:
        found: From `tensor_differences`.
        layer: From 1.
    """
    if found.why:
        return []
    values = found.table.tensor_difference.values
    places = [place for number, place in standing_out(values) if number == layer - 1 and values[number, place] > STORED]
    return [
        str(found.table.tensor.values[place]) for place in sorted(places, key=lambda place: -values[layer - 1, place])
    ]


def _named(
    values: np.ndarray,
    chosen: list[tuple[int, int]],
    tensors: np.ndarray,
    layers: np.ndarray,
    vectors: tuple[str, ...],
) -> str:
    """Write tensors by name, each with its layers and its largest difference, the largest first."""
    places = sorted(
        {place for _, place in chosen}, key=lambda place: -max(values[at] for at in chosen if at[1] == place)
    )
    words = []
    for place in places[:MOST_NAMED]:
        there = [layer for layer, each in chosen if each == place]
        kind = " (a bias or norm)" if tensors[place] in vectors else ""
        size = f"by {'up to ' * (len(there) > 1)}{max(values[layer, place] for layer in there):.2g} of its size"
        words.append(f"{tensors[place]}{kind} in {in_layers(layers[there].tolist())}, {size}")
    more = f"; and {plural(len(places) - MOST_NAMED, 'more tensor')}" if len(places) > MOST_NAMED else ""
    return "; ".join(words) + more


def _lonely(unmatched: tuple[str, ...]) -> str:
    if not unmatched:
        return ""
    more = f" and {len(unmatched) - MOST_NAMED} more" if len(unmatched) > MOST_NAMED else ""
    return f" Without a partner of its name and shape: {', '.join(unmatched[:MOST_NAMED])}{more}."
