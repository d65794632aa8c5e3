"""The noun for the prompts of a network in sentences: text, image, or prompt if they are neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import xarray as xr

from tokendynamics.pretrained.inputs import is_image


def noun_of(prompts: Mapping[str, Any]) -> str:
    """Return the noun for prompts as `tokendynamics.trace` takes them: "text", "image", or else "prompt".

    >>> noun_of({"a": "some words", "b": [5, 9]}), noun_of({"a": {"input_features": [0.5, 0.25]}})
    ('text', 'prompt')
    """
    return _only(_noun(item) for item in prompts.values())


def noun_in(trace: xr.Dataset) -> str:
    """Return the noun recorded in a trace; "text" in traces of earlier versions, which have none."""
    return str(trace.attrs.get("prompt_noun", "text"))


def _noun(item: Any) -> str:
    if isinstance(item, Mapping):
        return _only(_of_argument(name, value) for name, value in item.items())
    return "image" if is_image(item) else "text"


def _of_argument(name: str, value: Any) -> str:
    if name == "pixel_values":
        return "image"
    # Token ids and masks are integers; sounds and precomputed states have no common name.
    return "prompt" if torch.as_tensor(value).is_floating_point() else "text"


def _only(nouns: Iterable[str]) -> str:
    distinct = set(nouns)
    return distinct.pop() if len(distinct) == 1 else "prompt"
