"""Finds one attention's layout in one forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from tokendynamics.pretrained._raw_projections import raw_projections
from tokendynamics.pretrained.discovery._calls import ModuleCall
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError, Part, Tracer, evaluated
from tokendynamics.pretrained.discovery._maps import Norm, axes_of_places
from tokendynamics.pretrained.discovery._output_projection import OutputProjection
from tokendynamics.pretrained.discovery._recomputed import TRUSTED, live_reader, relative_error
from tokendynamics.pretrained.discovery._rotation import (
    Rotation,
    TooFewInputsError,
    fitted_matrices,
    rotation_of,
    unturned,
)
from tokendynamics.pretrained.discovery.attention_call import LOWEST_BIAS, AttentionCall, as_features
from tokendynamics.pretrained.discovery.layout import NOT_SIDE_BY_SIDE, AttentionLayout


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
            self.layout.module == attending.name_in(block.name)  # an adapter around it would put a name before
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
    as_it_is = next(call for call in calls if call.module is attention.module and call.is_open(time))
    attending = _features_last(as_it_is, calls, shape)
    start, norm = _start(attending, block, calls, time, shape)
    if like is not None and like.is_like(attending, attention, block):
        parts, rotation, angles = like.factors, like.layout.rotation, like.angles
    else:
        inside = [call for call in calls if attending.start < call.start and call.end < time]
        parts, rotation, angles = _traced(inside, start, attending, attention, block, tables)
    if projection is None:
        raise LayoutNotFoundError(NOT_SIDE_BY_SIDE)
    layout = AttentionLayout(
        module=attending.name_in(block.name),
        heads=shape[1],
        kv_heads=attention.key.shape[1],
        d_head=shape[-1],
        d_value=attention.value.shape[-1],
        **cast("dict[str, Any]", parts),
        output=(projection.call.name_in(block.name), projection.storage),
        scale=attention.scale,
        **_masking(attention),
        rotation=rotation,
        relative_bias=attention.bias is not None or (_biases(attention.mask) and not _by_token(attention.mask)),
        token_bias=_by_token(attention.mask),
        explicit=attention.explicit,
        soft_cap=attention.soft_cap,
        sinks=_sinks_of(attention.sinks, block.module),
        further_senders=0 if attention.further is None else attention.further[0].shape[2],
        norm=None if norm is None else (norm[0].name_in(block.name), norm[1]),
        gate=None if projection.gate is None else projection.gate.name_in(block.name),
        output_norm=None if projection.norm is None else (projection.norm[0].name_in(block.name), projection.norm[1]),
        head_factor=projection.factor,
        changed=_is_changed(attending, block, norm, shape),
        error=0.0,
    )
    return FoundAttention(layout, as_it_is, start, angles, attending is not as_it_is)


def _traced(
    calls: Sequence[ModuleCall],
    start: Tensor,
    attending: ModuleCall,
    attention: AttentionCall,
    block: ModuleCall,
    tables: Iterable[tuple[str, Tensor]],
) -> tuple[dict[str, tuple[Part, ...]], Rotation | None, Tensor | None]:
    """Return what gives queries, keys and values, and what positions do to them."""
    queries, keys = attention.query.shape[2], attention.key.shape[2]
    if queries != keys:
        raise LayoutNotFoundError(f"it has {queries} queries and {keys} keys")
    tracer = Tracer(calls, start, f"{block.name}.", _numbers(attending.module))
    # Some attentions run in another format than the modules around them.
    given = {name: getattr(attention, name).to(start).transpose(1, 2).flatten(2) for name in _FACTORS}
    try:
        parts = {name: _parts(tracer, name, given[name], attention, attending) for name in _FACTORS}
    except LayoutNotFoundError as problem:
        followed = bool(raw_projections(attending.module))
        if not followed and (raw := _raw_matrix(attending.module, start, given)):
            words = "which is read of a network in memory alone: pass the network itself"
            raise LayoutNotFoundError(f"its parameter {raw[1]} gives its {raw[0]}, {words}") from problem
        if all(map(_of_one_norm, (attention.query, attention.key))):
            words = "its queries and keys are divided by their norms outside of a module, as in attention by cosines"
            raise LayoutNotFoundError(words) from problem
        if tracer.multiples_by_input(given["query"], given["key"]):
            raise LayoutNotFoundError("a factor of its logits is another one for each input") from problem
        if tracer.is_shifted(given["query"]) or tracer.is_shifted(given["key"]):
            words = "a vector is added to its queries or keys outside of a module, as by the biases of Transformer-XL"
            # At the first token, which is compared, a causal convolution over tokens is a factor and a bias.
            convolution = next((call for call in calls if _over_places(call.module)), None)
            if convolution is not None:
                name = convolution.name_in(block.name)
                words = (
                    f"{name}, a convolution over several tokens, runs in it, and no module gives its queries and keys"
                )
            raise LayoutNotFoundError(words) from problem
        raise
    projected = evaluated(parts["query"], tracer.start, live_reader(block.module))
    return parts, *_rotation(projected, attention.query.to(start), tables, tracer.after_turning)


def _raw_matrix(module: nn.Module, start: Tensor, given: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Return which columns a matrix of the attention module itself gives, but for a bias, and its name; None for none.

    A parameter has the features that it maps first, last or, with an axis for heads, between that and their features.
    """
    dim, first = start.shape[-1], start[:, :1] - start[:, :1].mean(dim=0)
    for name, parameter in module.named_parameters(recurse=False):
        axes = [axis for axis, size in enumerate(parameter.shape) if size == dim] if parameter.ndim > 1 else []
        for axis in axes:
            matrix = parameter.detach().movedim(axis, 0).flatten(1).to(start)
            for what, columns in given.items():
                target = columns[:, :1] - columns[:, :1].mean(dim=0)
                product = first @ matrix
                if any(relative_error(part, target) < TRUSTED for part in product.split(target.shape[-1], dim=-1)):
                    return _FACTORS[what], name
    return None


def _parts(
    tracer: Tracer, name: str, given: Tensor, attention: AttentionCall, attending: ModuleCall
) -> tuple[Part, ...]:
    """Return what gives queries, keys or values; of queries and keys, norms by functions are tried last."""
    what = _FACTORS[name]
    try:
        return tracer.parts(given, what, first_token=name != "value")
    except LayoutNotFoundError as problem:
        if name == "value":
            raise
        try:
            return tracer.normalized_parts(given, what, attention.query.shape[-1], attending)
        except LayoutNotFoundError:
            raise problem from None


def _over_places(module: nn.Module) -> bool:
    """Whether a module is a convolution over several places."""
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and any(size > 1 for size in module.kernel_size)


def _of_one_norm(tensor: Tensor) -> bool:
    """Whether queries or keys (input, head, token, feature) of each head have one norm, whatever token they are of."""
    norms = tensor.norm(dim=-1)
    return bool(((norms - norms[:1, :, :1]).abs() <= TRUSTED * norms.abs().max()).all())


_FEWER = 1e-5
"""Singular value of queries, relative to the largest, below which they do not show how a direction is turned."""


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
        if isinstance(problem, TooFewInputsError):
            raise
        values = torch.linalg.svdvals(plain[:, 0].flatten(0, 1).double())
        if float(values[-1]) < _FEWER * float(values[0]):  # a norm that takes the mean off leaves one dimension less
            words = "how positions turn its queries is not found: these lie in fewer dimensions than they have features"
            raise LayoutNotFoundError(words) from problem
        if not norms:
            raise
        names = " and ".join(dict.fromkeys(norms))
        words = f"what positions turn is normalized after it, by {names}, unlike within turned pairs of features"
        raise LayoutNotFoundError(words) from problem


def _key_heads(attention: AttentionCall) -> int:
    """Return how many heads have keys and values of their own, where copies of them stand side by side."""
    heads = max(attention.key.shape[1], attention.value.shape[1])
    attention = attention.sharing(heads)

    def shared(tensor: Tensor, copies: int) -> bool:
        groups = tensor.unflatten(1, (-1, copies))
        return bool((groups == groups[:, :, :1]).all())

    several = (attention.key, attention.value)
    if not all(bool(tensor.isfinite().all()) for tensor in several):
        raise LayoutNotFoundError("its keys or values are not finite")
    copies = [count for count in range(heads, 0, -1) if heads % count == 0]
    return heads // next(count for count in copies if all(shared(tensor, count) for tensor in several))


def _is_causal(attention: AttentionCall) -> bool:
    """Whether a mask hides every later token."""
    weights = attention.weights * attention.sees_any()[..., None]
    later = weights[..., torch.ones(weights.shape[-2:], dtype=torch.bool).triu(1)]
    return attention.mask is not None and later.numel() > 0 and bool((later == 0).all())


def _masking(attention: AttentionCall) -> dict[str, Any]:
    """Return which of an `AttentionLayout`'s masks an attention has."""
    causal, shown = _is_causal(attention), _pairs_shown(attention)
    if shown is None:
        return {"causal": causal, "window": attention.window}
    return _kind_of_mask(shown, causal, shown.any(dim=1))


def _pairs_shown(attention: AttentionCall) -> Bool[Tensor, "row token token"] | None:
    """Return which tokens see which by a mask, for each input or each of its heads; None where no mask shows it."""
    mask, tokens = attention.mask, attention.query.shape[2]
    if attention.window is not None or mask is None or tokens != attention.key.shape[2]:
        return None
    shown = mask if mask.dtype == torch.bool else mask > LOWEST_BIAS
    shown = shown.expand(*shown.shape[:-2], tokens, tokens).flatten(0, -3) if shown.ndim > 2 else shown[None]
    return shown.expand(len(shown), tokens, tokens)


def with_mask_by_ids(layout: AttentionLayout, attention: AttentionCall, *, looks_ahead: bool) -> AttentionLayout:
    """Return a layout with what the mask is for inputs that hold the token ids which the network tells from others.

    Args:
        layout: As found with other inputs.
        attention: The call for these inputs.
        looks_ahead: Whether a state was seen to depend on a later token.
    """
    shown, inputs = _pairs_shown(attention), len(attention.query)
    if shown is not None and len(shown) % inputs == 0:  # a token that sees none may be NaN, and then all after it are
        finite = attention.query.isfinite().flatten(1).all(dim=1)
        shown = shown[finite.repeat_interleave(len(shown) // inputs)]
    if shown is None or bool((shown == shown[:1]).all()):
        return replace(layout, causal=False, other_mask=True) if looks_ahead and layout.causal else layout
    # A token that others see while it is an ordinary one, and none does while it is another one, is padding.
    by_others = (shown & ~torch.eye(shown.shape[-1], dtype=torch.bool, device=shown.device)).any(dim=1)
    seen = shown.any(dim=1) & (by_others | ~by_others[:1])
    pairs = seen[:, :, None] & seen[:, None]
    later = torch.ones_like(shown[0]).triu(1)
    causal = layout.causal and not looks_ahead and not bool((shown & pairs & later).any())
    kind = _kind_of_mask(shown, causal, seen)
    changed = causal != layout.causal or kind["window"] != layout.window
    if changed or kind.get("other_mask", False) or layout.other_mask:
        return replace(layout, causal=causal, window=None, other_mask=True, mask_by_ids=True)
    return replace(layout, mask_by_ids=True)


def _kind_of_mask(
    shown: Bool[Tensor, "row token token"], causal: bool, seen: Bool[Tensor, "row token"]
) -> dict[str, Any]:
    """Return what an `AttentionLayout` says of the pairs of tokens that a mask shows.

    Args:
        shown: Which tokens see which.
        causal: Whether none sees a later one.
        seen: Which tokens any sees: others are padding, and what these see does not matter.
    """
    tokens = shown.shape[-1]
    pairs = seen[:, :, None] & seen[:, None]
    distance = torch.arange(tokens, device=shown.device)
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
    inside = (call for call in calls if call.is_inside(attending))
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
