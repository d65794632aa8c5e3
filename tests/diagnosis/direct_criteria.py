"""What a prompt's tokens are seen to do, from raw states alone: angles to the mean of the others, axes, angles between
prompts. No measure of the library, and none of the numbers that states are decided by, is used here.

The states of a layer are a list of arrays (token, dim), one for each prompt.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

MASSIVE = 4.0


def that_count(prompt: np.ndarray) -> np.ndarray:
    """Leave out tokens longer than four times the prompt's median."""
    norms = np.linalg.norm(prompt, axis=1)
    return prompt[norms <= MASSIVE * np.sort(norms)[(len(norms) - 1) // 2]]


def units(prompt: np.ndarray) -> np.ndarray:
    return prompt / np.linalg.norm(prompt, axis=1, keepdims=True)


def beyond_common(prompts: list[np.ndarray]) -> list[np.ndarray]:
    """Take from each direction the mean direction of the other prompts."""
    directions = [units(that_count(prompt.astype(float))) for prompt in prompts]
    means = np.stack([direction.mean(axis=0) for direction in directions])
    others = (means.sum(axis=0) - means) / (len(means) - 1)
    return [entry - other for entry, other in zip(directions, others, strict=True)]


def angles_to_others(prompt: np.ndarray) -> np.ndarray:
    """Angle in degrees of each token with the sum of the other tokens of its prompt."""
    rows = units(prompt)
    rest = rows.sum(axis=0) - rows
    sizes = np.linalg.norm(rest, axis=1)
    return np.degrees(np.arccos(np.clip((rows * rest).sum(axis=1) / np.maximum(sizes, 1e-300), -1, 1)))


def typical_angle(prompts: list[np.ndarray]) -> float:
    """Median over all tokens of the angle to the others of their prompt, beyond what is common: 90 where unrelated."""
    return float(
        np.median(np.concatenate([angles_to_others(entry) for entry in beyond_common(prompts) if len(entry) > 1]))
    )


def widest_angles(prompts: list[np.ndarray]) -> np.ndarray:
    """For each prompt the largest of its tokens' angles to the others."""
    return np.array([angles_to_others(entry).max() for entry in beyond_common(prompts) if len(entry) > 1])


def on_axes(prompts: list[np.ndarray], axes: int) -> float:
    """Share of a prompt's directions on their first few axes: the median over the prompts long enough to tell."""
    values = []
    for entry in beyond_common(prompts):
        if len(entry) > 2 * axes:
            squared = np.linalg.svd(units(entry), compute_uv=False) ** 2
            values.append(squared[:axes].sum() / squared.sum())
    return float(np.median(values)) if values else 0.0


def angle_to_all(prompts: list[np.ndarray]) -> float:
    """Angle in degrees within which nineteen of twenty tokens of all prompts stand to their common mean."""
    rows = np.concatenate([units(that_count(prompt.astype(float))) for prompt in prompts])
    mean = rows.mean(axis=0)
    return float(np.quantile(np.degrees(np.arccos(np.clip(rows @ mean / np.linalg.norm(mean), -1, 1))), 0.95))


def is_point(prompts: list[np.ndarray], start: list[np.ndarray]) -> bool:
    """Every token of every prompt within 45 degrees of the others of its prompt, which it was not at the start."""
    return widest_angles(prompts).max() < 45 < np.median(widest_angles(start))


def on_few_axes(prompts: list[np.ndarray], start: list[np.ndarray], axes: int) -> bool:
    """Nine tenths on a few axes, and twice as much off them at the start, with tokens of one prompt far apart."""
    return (
        on_axes(prompts, axes) > 0.9
        and 1 - on_axes(start, axes) > 2 * (1 - on_axes(prompts, axes))
        and np.median(widest_angles(prompts)) > 45
    )


def is_anisotropic(prompts: list[np.ndarray], start: list[np.ndarray]) -> bool:
    """All tokens of all prompts one way, and beyond that no nearer to their own prompt than at the start; or so much
    one way that there is no beyond."""
    return angle_to_all(prompts) < 35 and (is_apart(prompts, start) or angle_to_all(prompts) < 3)


def is_one_point(prompts: list[np.ndarray], start: list[np.ndarray]) -> bool:
    """The tokens of all prompts within three degrees of their common mean, which they were not at the start."""
    return angle_to_all(prompts) < 3 < angle_to_all(start)


def is_apart(prompts: list[np.ndarray], start: list[np.ndarray]) -> bool:
    """Tokens at right angles to the others of their prompt (beyond what is common), or as at the start."""
    return typical_angle(prompts) > min(80.0, typical_angle(start) - 5)


def is_spread(prompts: list[np.ndarray], start: list[np.ndarray]) -> bool:
    return is_apart(prompts, start) and angle_to_all(prompts) > 35 and on_axes(prompts, 3) < on_axes(start, 3) + 0.2


def is_between(prompts: list[np.ndarray], start: list[np.ndarray]) -> bool:
    """Nearer to the own prompt than at the start, and no point yet."""
    return not is_apart(prompts, start) and not is_point(prompts, start)


def holds(state: str, prompts: list[np.ndarray], start: list[np.ndarray], axes: int = 1) -> bool:
    """Tell whether a state of the diagnosis is what is seen directly."""
    if state == "rank collapse":
        return bool(on_few_axes(prompts, start, axes))
    check = {
        "spread": is_spread,
        "drawing together": is_between,
        "consensus": is_point,
        "anisotropic": is_anisotropic,
        "one point": is_one_point,
    }
    return bool(check[state](prompts, start))


def attention_weights(network: Any, ids: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each layer the weights (query, token), a mean over heads, beside those of equal attention under its mask."""
    plain, computed = torch.nn.functional.scaled_dot_product_attention, []

    def watched(
        q: Tensor, k: Tensor, *rest: Any, attn_mask: Tensor | None = None, is_causal: bool = False, **more: Any
    ):
        scores = q @ k.mT * (more.get("scale") or q.shape[-1] ** -0.5)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        seen = seen.tril() if is_causal else seen
        if attn_mask is not None:
            seen = seen & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > -1e9)[0, 0]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)[0].mean(dim=0)
        computed.append((weights.numpy(), (seen / seen.sum(dim=-1, keepdim=True)).numpy()))
        return plain(q, k, *rest, attn_mask=attn_mask, is_causal=is_causal, **more)

    with mock.patch("torch.nn.functional.scaled_dot_product_attention", watched), torch.no_grad():
        network(torch.tensor([ids]))
    return computed


def most_received(layers: list[tuple[np.ndarray, np.ndarray]], queries: int = 8) -> float:
    """Largest attention that a token gets beyond the equal share, from the queries at least four tokens later; a token
    with few of them tells nothing."""
    count = len(layers[0][0])
    beyond = [
        float((weights - equal)[token + 4 :, token].mean())
        for weights, equal in layers
        for token in range(count - 3 - queries)
    ]
    return max(beyond, default=float("nan"))


def has_sink(network: Any, prompts: list[list[int]]) -> bool:
    """Whether in half of the prompts a token gets a quarter of all attention, beyond the equal share."""
    values = [most_received(attention_weights(network, ids)) for ids in prompts]
    return bool(np.median([share for share in values if not np.isnan(share)] or [0.0]) > 0.25)


def has_massive_tokens(layers: list[list[np.ndarray]]) -> bool:
    """Whether at some layer half of the prompts have a token longer than four times their median."""
    return any(np.median([len(that_count(p)) < len(p) for p in prompts]) > 0.5 for prompts in layers)
