"""Sentence of a comparison on stored tensors: which differ, in which layers, and which more than in other layers."""

from __future__ import annotations

import numpy as np

from tokendynamics.diagnosis._tensor_differences import TensorDifferences, standing_out
from tokendynamics.diagnosis.compared_words import of_norm, where_differing, without_partner
from tokendynamics.words import Finding, in_layers, plural

MOST_NAMED = 4
"""Tensors that are named; the others are counted."""

STORED = 1e-5
"""Relative difference from which a tensor differs by more than rounding in single precision."""


def tensors_finding(names: tuple[str, str], compared: TensorDifferences) -> Finding:
    """Say which stored tensors differ and, if all layers differ, which more than in other layers.

    Args:
        names: Of the first network and the other one.
        compared: From `tensor_differences`.
    """
    if compared.why:
        text = f"The stored tensors of {names[1]} and {names[0]} were not compared because {compared.why}."
        return Finding(text, "weights", {"why": compared.why})
    values = compared.table.tensor_difference.values
    tensors, layers = compared.table.tensor.values.astype(str), compared.table.layer.values
    differing = np.nan_to_num(values, nan=0.0) > STORED
    rest = without_partner(compared.unmatched)
    if not differing.any():
        text = f"All stored tensors of the blocks of {names[1]} and {names[0]} are equal, including biases and norms."
        return Finding(text + rest, "weights", {"tensors": []})
    outliers = [(layer, place) for layer, place in standing_out(values) if differing[layer, place]]
    known = np.isfinite(values).any(axis=1)
    changed = layers[differing.any(axis=1)]
    everywhere = bool(differing.any(axis=1)[known].all()) and int(known.sum()) > 1
    named = outliers or ([] if everywhere else [(int(row), int(place)) for row, place in np.argwhere(differing)])
    words = _named(values, named, tensors, layers, compared.vectors)
    subject = f"Stored tensors of {names[1]} and {names[0]} differ {where_differing(changed, int(known.sum()))}"
    if named and everywhere:
        text = f"{subject}. More than in other layers: {words}."
    elif named:
        text = f"{subject}: {words}."
    else:
        median = of_norm(float(np.median(values[differing])), "their")
        text = f"{subject}, by {median} in the median; none differs more than in other layers."
    return Finding(text + rest, "weights", {"tensors": [f"{layers[layer]} {tensors[place]}" for layer, place in named]})


def tensors_of_layer(compared: TensorDifferences, layer: int) -> list[str]:
    """Return the names of the tensors of one layer that differ more than in other layers, largest first.

    Args:
        compared: From `tensor_differences`.
        layer: From 1.
    """
    if compared.why:
        return []
    values = compared.table.tensor_difference.values
    places = [place for row, place in standing_out(values) if row == layer - 1 and values[row, place] > STORED]
    return [
        str(compared.table.tensor.values[place])
        for place in sorted(places, key=lambda place: -values[layer - 1, place])
    ]


def _named(
    values: np.ndarray,
    chosen: list[tuple[int, int]],
    tensors: np.ndarray,
    layers: np.ndarray,
    vectors: tuple[str, ...],
) -> str:
    """Write tensors by name, each with its layers and its largest difference, in decreasing order."""
    places = sorted(
        {place for _, place in chosen}, key=lambda place: -max(values[at] for at in chosen if at[1] == place)
    )
    words = []
    for place in places[:MOST_NAMED]:
        rows = [row for row, column in chosen if column == place]
        kind = " (a bias or norm)" if tensors[place] in vectors else ""
        size = f"by {'up to ' * (len(rows) > 1)}{of_norm(max(values[row, place] for row in rows))}"
        words.append(f"{tensors[place]}{kind} in {in_layers(layers[rows].tolist())}, {size}")
    more = f"; and {plural(len(places) - MOST_NAMED, 'more tensor')}" if len(places) > MOST_NAMED else ""
    return "; ".join(words) + more
