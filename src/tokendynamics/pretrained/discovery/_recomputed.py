"""Recomputes an attention from the parts of its layout, by the maps of live modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokendynamics.pretrained._torch_attention import Projection, projection_of
from tokendynamics.pretrained.discovery._columns import Part, Storage, evaluated
from tokendynamics.pretrained.discovery._maps import USUAL_EPS, Affine, Norm, Probed, map_of
from tokendynamics.pretrained.discovery._plain_attention import attend
from tokendynamics.pretrained.discovery._rotation import turned
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.layout import AttentionLayout
from tokendynamics.pretrained.network import at_least_single, submodule

TRUSTED = 1e-5
"""Largest relative error of an attention recomputed from its factors, in float32: more is a wrong layout."""


def start_for(layout: AttentionLayout, x: Tensor, gain: Affine | None) -> Tensor:
    """Return what an attention projects from when its module reads x."""
    if layout.norm is None or gain is None or not layout.begins_with_norm:
        return x
    norm = layout.norm[1]
    return Norm(norm.kind, "weight", norm.eps, norm.width).apply(x, gain.weight[0], gain.bias)


def recomputed_error(
    layout: AttentionLayout, start: Tensor, angles: Tensor | None, read: Callable[[Part], Affine], seen: AttentionCall
) -> float:
    """Return the largest relative error of queries, keys, values and output recomputed from a layout's factors."""
    heads = {"query": layout.heads, "key": layout.kv_heads, "value": layout.kv_heads}
    tensors = {
        name: evaluated(getattr(layout, name), start, read).unflatten(-1, (count, -1)).transpose(1, 2)
        for name, count in heads.items()
    }
    if layout.rotation is not None and angles is not None:
        tensors |= {name: turned(tensors[name], angles, layout.rotation) for name in ("query", "key")}
    key, value, mask = tensors["key"], tensors["value"], seen.mask
    if seen.further is not None:
        key, value = (torch.cat(pair, dim=2) for pair in zip((key, value), seen.further, strict=True))
        mask = None if mask is None else pad(mask, (0, seen.further[0].shape[2]))
    output, _ = attend(
        tensors["query"],
        key,
        value,
        mask=mask,
        scale=layout.scale,
        soft_cap=layout.soft_cap,
        sinks=seen.sinks,
        bias=seen.bias,
    )
    there = seen.sees_any().transpose(1, 2)[..., None]
    pairs = (
        (tensors["query"], seen.query),
        (tensors["key"], seen.key),
        (tensors["value"], seen.value),
        (output * there, seen.output * there),
    )
    return max(relative_error(values, reference) for values, reference in pairs)


def epsilons_by_function(layout: AttentionLayout) -> tuple[AttentionLayout, ...]:
    """Return a layout with each epsilon that norms by functions may have, which no module names; else the layout."""

    def with_epsilon(parts: tuple[Part, ...], eps: float) -> tuple[Part, ...]:
        return tuple(
            replace(part, does=replace(part.does, eps=eps))
            if isinstance(part.does, Norm) and part.does.by_function
            else part
            for part in parts
        )

    sources = {"query": layout.query, "key": layout.key}
    if all(with_epsilon(parts, -1.0) == parts for parts in sources.values()):
        return (layout,)
    forms = [{name: with_epsilon(parts, eps) for name, parts in sources.items()} for eps in USUAL_EPS]
    return tuple(replace(layout, query=form["query"], key=form["key"]) for form in forms)


def with_factors_of_heads(
    layout: AttentionLayout, start: Tensor, angles: Tensor | None, read: Callable[[Part], Affine], seen: AttentionCall
) -> AttentionLayout:
    """Return a layout whose queries and keys have the factors that an attention has, such as learned ones.

    They are those of heads or, where positions turn nothing, of features.

    Args:
        layout: As found with other weights.
        start: What the attention projects from.
        angles: Of its rotation.
        read: Gives the affine map of a part.
        seen: The attention.
    """
    for name, heads, given in (("query", layout.heads, seen.query), ("key", layout.kv_heads, seen.key)):
        parts = getattr(layout, name)
        tensor = evaluated(parts, start, read).unflatten(-1, (heads, -1)).transpose(1, 2)
        if layout.rotation is not None and angles is not None:
            tensor = turned(tensor, angles, layout.rotation)
        if tensor.shape != given.shape:
            continue
        of_heads, of_features = (_multiples(tensor, given.to(tensor), axes) for axes in ((0, 2, 3), (0, 2)))
        heads_fit = relative_error(of_heads * tensor, given) <= TRUSTED or layout.rotation is not None
        factors = (of_heads if heads_fit else of_features).expand(1, heads, 1, tensor.shape[-1]).flatten()
        if float((factors - 1).abs().max()) > TRUSTED:
            changed = [
                replace(part, factor=tuple(
                    factor * float(factors[column]) for column, factor in zip(part.columns, part.factor, strict=True)
                ))
                for part in parts
            ]  # fmt: skip
            layout = replace(layout, **{name: tuple(changed)})
    return layout


def _multiples(tensor: Tensor, given: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return by how much a tensor is multiplied in another one, the same along some axes."""
    size = tensor.square().sum(dim=axes, keepdim=True).clamp_min(torch.finfo(tensor.dtype).tiny)
    return (given * tensor).sum(dim=axes, keepdim=True) / size


def relative_error(values: Tensor, reference: Tensor) -> float:
    """Return max|a − b| / max|b|, infinite where the shapes differ."""
    if values.shape != reference.shape:
        return float("inf")
    size = reference.abs().max().clamp_min(torch.finfo(reference.dtype).tiny)
    error = float((values.double() - reference.double()).abs().max() / size)
    return error if error == error else float("inf")


def affine_of(module: nn.Module, does: Storage | Norm) -> Affine:
    """Return the map of a live module that was found to do this: for a norm its gain as (1, width) and its bias."""
    if isinstance(module, nn.MultiheadAttention) and not isinstance(does, Norm):
        weight, bias = projection_of(module, cast("Projection", does))
        return Affine(weight.detach().mT, _detached(bias))
    names = (does.parameter, does.bias_parameter) if isinstance(does, Norm) else ("weight", "bias")
    weight, bias = (getattr(module, name, None) for name in names)
    bias = bias if isinstance(bias, Tensor) else None  # of some modules it is a switch
    if isinstance(does, Norm):
        if does.by_function:  # what the module calls a bias is another one, such as a mask
            weight, bias = (weight if does.gain != "none" else None), None
        # In half precision 1 + the weight would be rounded.
        like = at_least_single(weight) if weight is not None else torch.ones(does.width, dtype=torch.float64)
        gain = does.gain_of(weight, like)
        return Affine((torch.ones_like(like) if gain is None else gain).detach()[None], _detached(bias))
    if isinstance(does, Probed):
        return map_of(module, does.width)
    return Affine(weight.detach().mT if does == "out x in" else weight.detach(), _detached(bias))  # pyright: ignore


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def live_reader(block: nn.Module) -> Callable[[Part], Affine]:
    """Return what reads the parts of a layout from the modules of a live block."""
    return lambda part: affine_of(submodule(block, part.module), part.does)
