"""One attention's layout from one forward pass, and the attention recomputed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokendynamics.pretrained._torch_attention import Projection, projection_of
from tokendynamics.pretrained.discovery._calls import ModuleCall, as_features
from tokendynamics.pretrained.discovery._columns import (
    LayoutNotFoundError,
    Part,
    Storage,
    Tracer,
    evaluated,
    matched_columns,
    stored_how,
)
from tokendynamics.pretrained.discovery._maps import Affine, Norm, Probed, axes_of_places, map_of
from tokendynamics.pretrained.discovery._plain_attention import attend
from tokendynamics.pretrained.discovery._rotation import (
    Rotation,
    TooFewInputsError,
    fitted_matrices,
    rotation_of,
    turned,
    unturned,
)
from tokendynamics.pretrained.discovery.attention_call import LOWEST_BIAS, AttentionCall
from tokendynamics.pretrained.discovery.layout import AttentionLayout

TRUSTED = 1e-5
"""Largest relative error of an attention recomputed from its factors, in float32: more is a wrong layout."""


@dataclass(frozen=True)
class FoundAttention:
    """An attention's layout and what only the pass it was found in knows.

    Attributes:
        layout: The record.
        call: Of the attention module.
        start: What queries, keys and values are projected from, (batch, token, dim).
        angles: Of its rotation, (token, pair).
        channels_first: Whether what the attention module read has the features before the tokens.
    """

    layout: AttentionLayout
    call: ModuleCall
    start: Tensor
    angles: Tensor | None
    channels_first: bool = False

    @property
    def factors(self) -> dict[str, tuple[Part, ...]]:
        """What gives queries, keys and values."""
        return {name: getattr(self.layout, name) for name in _FACTORS}

    def is_like(self, attending: ModuleCall, attention: AttentionCall, block: ModuleCall) -> bool:
        """Whether an attention has modules and shapes as this one, so that the same factors are to be tried first."""
        return (
            self.layout.module == _within(attending, block)  # an adapter around it would put a name before
            and _kind(self.call) == _kind(attending)
            and (self.layout.heads, self.layout.kv_heads) == (attention.query.shape[1], attention.key.shape[1])
            and (self.layout.d_head, self.layout.d_value) == (attention.query.shape[-1], attention.value.shape[-1])
        )


def _kind(call: ModuleCall) -> tuple[object, ...]:
    """Return what modules with the same factors have in common: classes, names, shapes and their own numbers."""
    module = call.module
    inner = tuple((name, type(child)) for name, child in module.named_modules())
    shapes = tuple((name, parameter.shape) for name, parameter in module.named_parameters())
    return inner, shapes, tuple(_numbers(module))


def _numbers(module: nn.Module) -> list[float]:
    return [number for number in vars(module).values() if isinstance(number, float)]


_FACTORS = {"query": "queries", "key": "keys", "value": "values"}
"""What an attention is given, and what a message calls it."""


def attention_layout(
    time: int,
    attention: AttentionCall,
    block: ModuleCall,
    calls: Sequence[ModuleCall],
    tables: Iterable[tuple[str, Tensor]],
    projection: OutputProjection | None,
    like: FoundAttention | None = None,
) -> FoundAttention:
    """Find the layout of one attention.

    Args:
        time: When it ran.
        attention: What it was given.
        block: The call of its block.
        calls: Of the whole pass.
        tables: The network's tables, for rotary frequencies.
        projection: Its output projection; see `output_projection`.
        like: Another one, whose factors and rotation are taken where the modules are alike, to be recomputed.

    Raises:
        LayoutNotFoundError: Something does not match.
    """
    attention = attention.sharing(_key_heads(attention))
    shape = attention.query.shape
    as_it_is = next(call for call in calls if call.module is attention.module and call.start < time < call.end)
    attending = _features_last(as_it_is, calls, shape)
    start, norm = _start(attending, block, calls, time, shape)
    if like is not None and like.is_like(attending, attention, block):
        parts, rotation, angles = like.factors, like.layout.rotation, like.angles
    else:
        inside = [call for call in calls if attending.start < call.start and call.end < time]
        parts, rotation, angles = _traced(inside, start, _numbers(attending.module), attention, block, tables)
    if projection is None:
        raise LayoutNotFoundError("no module reads the heads' outputs side by side")
    layout = AttentionLayout(
        module=_within(attending, block),
        heads=shape[1],
        kv_heads=attention.key.shape[1],
        d_head=shape[-1],
        d_value=attention.value.shape[-1],
        **cast("dict[str, Any]", parts),
        output=(_within(projection.call, block), projection.storage),
        scale=attention.scale,
        **_masking(attention),
        rotation=rotation,
        relative_bias=attention.bias is not None or (_biases(attention.mask) and not _by_token(attention.mask)),
        token_bias=_by_token(attention.mask),
        explicit=attention.explicit,
        soft_cap=attention.soft_cap,
        sinks=_sinks_of(attention.sinks, block.module),
        further_senders=0 if attention.further is None else attention.further[0].shape[2],
        norm=None if norm is None else (_within(norm[0], block), norm[1]),
        gate=None if projection.gate is None else _within(projection.gate, block),
        output_norm=None if projection.norm is None else (_within(projection.norm[0], block), projection.norm[1]),
        changed=_is_changed(attending, block, norm, shape),
        error=0.0,
    )
    return FoundAttention(layout, as_it_is, start, angles, attending is not as_it_is)


def _traced(
    calls: Sequence[ModuleCall],
    start: Tensor,
    numbers: Sequence[float],
    attention: AttentionCall,
    block: ModuleCall,
    tables: Iterable[tuple[str, Tensor]],
) -> tuple[dict[str, tuple[Part, ...]], Rotation | None, Tensor | None]:
    """Return what gives queries, keys and values, and what positions do to them."""
    queries, keys = attention.query.shape[2], attention.key.shape[2]
    if queries != keys:
        raise LayoutNotFoundError(f"it has {queries} queries and {keys} keys")
    tracer = Tracer(calls, start, f"{block.name}.", numbers)
    given = {name: getattr(attention, name).transpose(1, 2).flatten(2) for name in _FACTORS}
    try:
        parts = {name: tracer.parts(given[name], what, first_token=name != "value") for name, what in _FACTORS.items()}
    except LayoutNotFoundError as problem:
        if all(map(_of_one_norm, (attention.query, attention.key))):
            words = "its queries and keys are divided by their norms outside of a module, as in attention by cosines"
            raise LayoutNotFoundError(words) from problem
        if tracer.is_shifted(given["query"]) or tracer.is_shifted(given["key"]):
            words = "a vector is added to its queries or keys outside of a module, as by the biases of Transformer-XL"
            raise LayoutNotFoundError(words) from problem
        raise
    projected = evaluated(parts["query"], tracer.start, live_reader(block.module))
    return parts, *_rotation(projected, attention.query, tables, tracer.after_turning)


def _of_one_norm(tensor: Tensor) -> bool:
    """Whether queries or keys (input, head, token, feature) of each head have one norm, whatever token they are of."""
    norms = tensor.norm(dim=-1)
    return bool(((norms - norms[:1, :, :1]).abs() <= TRUSTED * norms.abs().max()).all())


def _rotation(
    projected: Tensor, query: Tensor, tables: Iterable[tuple[str, Tensor]], norms: Sequence[str]
) -> tuple[Rotation | None, Tensor | None]:
    """Return what positions do to queries (batch, token, column), and its angles; None for nothing.

    A norm of turned features is a turned norm of features if it treats both features of each pair alike.

    Args:
        projected: As factors and norms give them.
        query: As the attention sees them.
        tables: Of the network.
        norms: Those of queries or keys that read what positions have already turned.
    """
    plain = projected.unflatten(-1, (query.shape[1], -1)).transpose(1, 2)
    if unturned(plain, query):
        return None, None
    try:
        return rotation_of(fitted_matrices(plain, query), tables)
    except LayoutNotFoundError as problem:
        if isinstance(problem, TooFewInputsError) or not norms:
            raise
        names = " and ".join(dict.fromkeys(norms))
        words = f"what positions turn is normalized after it, by {names}, unlike within turned pairs of features"
        raise LayoutNotFoundError(words) from problem


def _key_heads(attention: AttentionCall) -> int:
    """Return how many heads have keys and values of their own, where copies of them stand side by side."""
    heads = attention.key.shape[1]

    def shared(tensor: Tensor, copies: int) -> bool:
        groups = tensor.unflatten(1, (-1, copies))
        return bool((groups == groups[:, :, :1]).all())

    several = (attention.key, attention.value)
    copies = [count for count in range(heads, 0, -1) if heads % count == 0]
    return heads // next(count for count in copies if all(shared(tensor, count) for tensor in several))


def _is_causal(attention: AttentionCall) -> bool:
    """Whether a mask hides every later token."""
    weights = attention.weights
    later = weights[..., torch.ones(weights.shape[-2:], dtype=torch.bool).triu(1)]
    return attention.mask is not None and later.numel() > 0 and bool((later == 0).all())


def _masking(attention: AttentionCall) -> dict[str, Any]:
    """Return which of an `AttentionLayout`'s masks an attention has.

    Tokens that no token sees are padding, and what these see does not matter.
    """
    causal, mask, tokens = _is_causal(attention), attention.mask, attention.query.shape[2]
    if attention.window is not None or mask is None or tokens != attention.key.shape[2]:
        return {"causal": causal, "window": attention.window}
    shown = mask if mask.dtype == torch.bool else mask > LOWEST_BIAS
    shown = shown.expand(*shown.shape[:-2], tokens, tokens).flatten(0, -3) if shown.ndim > 2 else shown[None]
    shown = shown.expand(len(shown), tokens, tokens)
    seen = shown.any(dim=1)
    pairs = seen[:, :, None] & seen[:, None]
    distance = torch.arange(tokens, device=mask.device)
    distance = distance[:, None] - distance

    def is_width(width: int) -> bool:
        usual = (distance >= 0) & (distance < width) if causal else torch.ones_like(distance, dtype=torch.bool)
        return torch.equal(shown & pairs, usual & pairs)

    if is_width(tokens):
        return {"causal": causal, "window": None}
    width = next((width for width in range(1, tokens) if causal and is_width(width)), None)
    return {"causal": causal, "window": width, "other_mask": width is None}


def _biases(mask: Tensor | None) -> bool:
    """Whether a mask adds to logits that it does not hide."""
    return mask is not None and mask.is_floating_point() and bool((mask[mask > LOWEST_BIAS] != 0).any())


def _by_token(mask: Tensor | None) -> bool:
    """Whether what a mask adds differs between inputs of other tokens, where neither hides a token."""
    if mask is None or mask.ndim < 4 or len(mask) < 2:
        return False
    both = (mask > LOWEST_BIAS).all(dim=0)
    difference = (mask - mask[:1]).masked_fill(~both, 0.0).abs().max()
    return bool(difference > TRUSTED * mask.masked_fill(~both, 0.0).abs().max().clamp_min(1.0))


def _name_of(tensor: Tensor | None, module: nn.Module) -> str | None:
    """Return the name of the parameter that a tensor is a view of."""
    if tensor is None:
        return None
    named = module.named_parameters()
    return next((name for name, parameter in named if parameter.data_ptr() == tensor.data_ptr()), None)


def _sinks_of(sinks: Tensor | None, module: nn.Module) -> str | None:
    """Return the parameter that holds logits of sinks, or what they are; None without them."""
    if sinks is None:
        return None
    return _name_of(sinks, module) or ("a logit of 0" if bool((sinks == 0).all()) else "a logit that is computed")


def _within(call: ModuleCall, block: ModuleCall) -> str:
    """Return a module's name within its block; empty for the block itself."""
    return "" if call.name == block.name else call.name.removeprefix(f"{block.name}.")


def _start(
    attending: ModuleCall, block: ModuleCall, calls: Sequence[ModuleCall], time: int, shape: Sequence[int]
) -> tuple[Tensor, tuple[ModuleCall, Norm] | None]:
    """Return what the attention projects from, and the norm that gave it.

    An attention module reads it; a block that attends by itself has a norm of its own inside.
    """
    if attending.reads_several:
        several = "its queries, keys and values are not projected from one tensor"
        raise LayoutNotFoundError(f"{several}, as where positions are added to queries and keys alone")
    norm = _norm_before(attending, block, calls, (shape[0], shape[2]))
    x = attending.x
    if attending is block:
        norm = _norm_of_block(block, calls, time)
        x = x if norm is None else norm[0].y
    elif norm is None and (inner := _norm_inside(attending, calls, time)) is not None:
        norm, x = inner, inner[0].y
    start = as_features(x, shape[0], shape[2])
    if start is None:
        name = attending.name or type(attending.module).__name__
        raise LayoutNotFoundError(f"{name} reads no states")
    width = block.y.shape[-1]
    if start.shape[-1] != width:
        raise LayoutNotFoundError(f"it reads {start.shape[-1]} features of a token, and a state has {width}")
    return start, norm


def _norm_of_block(block: ModuleCall, calls: Sequence[ModuleCall], time: int) -> tuple[ModuleCall, Norm] | None:
    """Return the norm that a block which attends by itself reads first; None without one.

    Of several, the first whose output a module reads before the attention: the others may be of another part.
    """
    inside = [call for call in calls if block.start < call.start < call.end < time]
    norms = [(call, call.norm) for call in inside if call.norm is not None and call.x is not None]

    def is_read(norm: ModuleCall) -> bool:
        later = (call.x for call in inside if call.start > norm.end)
        return any(x is not None and x.shape == norm.y.shape and torch.equal(x, norm.y) for x in later)

    return next((norm for norm in norms if is_read(norm[0])), next(iter(norms), None))


def _norm_inside(attending: ModuleCall, calls: Sequence[ModuleCall], time: int) -> tuple[ModuleCall, Norm] | None:
    """Return the norm by which an attention module itself begins (vit-pytorch); None without one."""
    for call in calls:
        if call.x is None or attending.x is None or not attending.start < call.start < call.end < time:
            continue
        norm = call.norm if call.x.shape == attending.x.shape and torch.equal(call.x, attending.x) else None
        if norm is not None:
            return call, norm
    return None


def _features_last(attending: ModuleCall, calls: Sequence[ModuleCall], shape: Sequence[int]) -> ModuleCall:
    """Return an attention module's call with what it read as (input, token, feature), where its features stand first.

    They do where there are as many places behind them as tokens. Where that also holds the other way round, what its
    convolutions read decides.
    """
    x = attending.x
    if x is None or x.ndim < 3 or x.shape[0] != shape[0] or prod(x.shape[2:]) != shape[2] or attending.given is None:
        return attending
    given, x = attending.given.flatten(2).mT, x.flatten(2).mT
    inside = (call for call in calls if attending.start < call.start and call.end < attending.end)
    read = (call.x for call in inside if axes_of_places(call.module))
    usual = as_features(attending.x, shape[0], shape[2]) is not None
    if usual and not any(other is not None and other.shape == x.shape and torch.equal(other, x) for other in read):
        return attending
    return replace(attending, given=given, x=x)


def _is_changed(
    attending: ModuleCall, block: ModuleCall, norm: tuple[ModuleCall, Norm] | None, shape: Sequence[int]
) -> bool:
    """Whether an attention module reads neither the state, which it may normalize itself, nor a norm of it."""
    normed_before = norm is not None and norm[0].end < attending.start
    return not normed_before and attending is not block and not _reads_state(attending, block, shape)


def _reads_state(attending: ModuleCall, block: ModuleCall, shape: Sequence[int]) -> bool:
    """Whether an attention module is given the state as it comes into its block."""
    given, state = (as_features(call.given, shape[0], shape[2]) for call in (attending, block))
    return given is None or state is None or relative_error(given, state) < TRUSTED


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
    pairs = (
        (tensors["query"], seen.query),
        (tensors["key"], seen.key),
        (tensors["value"], seen.value),
        (output, seen.output),
    )
    return max(relative_error(values, reference) for values, reference in pairs)


def with_factors_of_heads(
    layout: AttentionLayout, start: Tensor, angles: Tensor | None, read: Callable[[Part], Affine], seen: AttentionCall
) -> AttentionLayout:
    """Return a layout whose queries and keys have the factor of each head that an attention has, such as a learned one.

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
        size = tensor.square().sum(dim=(0, 2, 3)).clamp_min(torch.finfo(tensor.dtype).tiny)
        factors = (given.to(tensor) * tensor).sum(dim=(0, 2, 3)) / size
        if float((factors - 1).abs().max()) > TRUSTED:
            width = tensor.shape[-1]
            changed = [
                replace(part, factor=tuple(
                    factor * float(factors[column // width])
                    for column, factor in zip(part.columns, part.factor, strict=True)
                ))
                for part in parts
            ]  # fmt: skip
            layout = replace(layout, **{name: tuple(changed)})
    return layout


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
    name = does.parameter if isinstance(does, Norm) else "weight"
    weight, bias = getattr(module, name, None), getattr(module, "bias", None)
    if isinstance(does, Norm):
        like = weight if weight is not None else torch.ones(does.width, dtype=torch.float64)
        gain = does.gain_of(weight, like)
        return Affine((torch.ones_like(like) if gain is None else gain).detach()[None], _detached(bias))
    if isinstance(does, Probed):
        return map_of(module, does.width)
    return Affine(weight.detach().mT if does == "out x in" else weight.detach(), _detached(bias))  # pyright: ignore


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def live_reader(block: nn.Module) -> Callable[[Part], Affine]:
    """Return what reads the parts of a layout from the modules of a live block."""
    return lambda part: affine_of(block.get_submodule(part.module), part.does)


class OutputProjection(NamedTuple):
    """What reads the heads' outputs side by side, how it is stored, and what gates or normalizes them before."""

    call: ModuleCall
    storage: Storage
    gate: ModuleCall | None
    norm: tuple[ModuleCall, Norm] | None


def output_projection(
    attention: AttentionCall, time: int, block: ModuleCall, calls: Sequence[ModuleCall]
) -> OutputProjection | None:
    """Return what reads the heads' outputs side by side, or what a gate or a norm makes of them; None for nothing.

    Args:
        attention: What ran.
        time: When.
        block: The call of its block.
        calls: Of the whole pass.
    """
    wanted = attention.output.flatten(2)
    batch, tokens = wanted.shape[:2]
    for call in sorted(calls, key=lambda candidate: -candidate.end):
        x = as_features(call.x, batch, tokens) if time < call.start and call.end <= block.end else None
        if x is None or x.shape != wanted.shape:
            continue
        # From the last on: what gives a gate may read the heads' outputs as well.
        plain = relative_error(x, wanted) < TRUSTED
        before = [other for other in calls if block.start < other.start and other.end < call.start]
        norm = None if plain else _norm_between(x, wanted, [other for other in before if time < other.start])
        gate = None if plain or norm is not None else _gate(x, wanted, before)
        if plain or norm is not None or gate is not None:
            storage = stored_how(call)
            if storage is not None:
                beside = [other for other in calls if gate is None or other.name != gate.name]
                _check_reads_alone(call, wanted, time, block, beside)
                return OutputProjection(call, storage, gate, norm)
    return None


def _check_reads_alone(
    projection: ModuleCall, outputs: Tensor, time: int, block: ModuleCall, calls: Sequence[ModuleCall]
) -> None:
    """Refuse heads whose outputs two maps read, one beside the other."""
    for call in calls:
        apart = time < call.start and (call.end < projection.start or projection.end < call.start)
        if not apart or call.end > block.end or call.name == projection.name:
            continue
        x = as_features(call.x, *outputs.shape[:2])
        reads = x is not None and x.shape == outputs.shape and relative_error(x, outputs) < TRUSTED
        if reads and not torch.equal(call.y.flatten(), outputs.flatten()) and stored_how(call) is not None:
            names = " and ".join(_within(one, block) for one in (call, projection))
            raise LayoutNotFoundError(f"two modules read the heads' outputs side by side ({names})")


def _norm_between(x: Tensor, outputs: Tensor, calls: Sequence[ModuleCall]) -> tuple[ModuleCall, Norm] | None:
    """Return the norm that makes x of the heads' outputs; None without one."""
    for call in calls:
        given, made = (as_features(states, *outputs.shape[:2]) for states in (call.x, call.y))
        if given is None or made is None:
            continue
        if relative_error(given, outputs) < TRUSTED and relative_error(made, x) < TRUSTED:
            norm = call.norm
            if norm is not None:
                return call, norm
    return None


def _gate(x: Tensor, outputs: Tensor, calls: Sequence[ModuleCall]) -> ModuleCall | None:
    """Return the module whose outputs, through a sigmoid, multiply the heads' outputs to give x; None for no gate."""
    batch, tokens = outputs.shape[:2]
    gates = x / outputs
    if not bool(((gates > 0) & (gates < 1)).all()):
        return None
    candidates = [
        (call, features.sigmoid())
        for call in calls
        if stored_how(call) is not None and (features := as_features(call.y, batch, tokens)) is not None
    ]
    if not candidates:
        return None
    owner, row, _, _ = matched_columns(gates, candidates, tolerance=TRUSTED)
    gates = torch.stack([candidates[place][1][..., column] for place, column in zip(owner, row, strict=True)], dim=-1)
    agrees = len(owner.unique()) == 1 and relative_error(outputs * gates, x) < TRUSTED
    return candidates[int(owner[0])][0] if agrees else None


def _norm_before(
    attending: ModuleCall, block: ModuleCall, calls: Sequence[ModuleCall], shape: tuple[int, int]
) -> tuple[ModuleCall, Norm] | None:
    given = as_features(attending.given, *shape)
    for call in calls:
        if given is not None and block.start < call.start and call.end < attending.start:
            y = as_features(call.y, *shape)
            norm = call.norm if y is not None and torch.equal(y, given) else None
            if norm is not None:
                return call, norm
    return None
