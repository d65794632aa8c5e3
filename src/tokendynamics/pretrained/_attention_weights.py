"""The factors of one attention layer from its layout and its tensors, and the rule by which they are trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokendynamics.numerics import AttentionFactorsError, CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._dispatch import without_hooks
from tokendynamics.pretrained._torch_attention import apart
from tokendynamics.pretrained.discovery._block_layout import Seen
from tokendynamics.pretrained.discovery._calls import state_of, with_state
from tokendynamics.pretrained.discovery._columns import Part, composed, through_norm
from tokendynamics.pretrained.discovery._joined_heads import joined, with_all_heads
from tokendynamics.pretrained.discovery._maps import Affine, is_packed, unpacked
from tokendynamics.pretrained.discovery._recomputed import (
    TRUSTED,
    affine_of,
    epsilons_by_function,
    recomputed_error,
    start_for,
    with_factors_of_heads,
)
from tokendynamics.pretrained.discovery.attention_call import AttentionCall, as_features
from tokendynamics.pretrained.discovery.interface import watching
from tokendynamics.pretrained.discovery.layout import AttentionLayout
from tokendynamics.pretrained.network import at_least_single, deep_copied, submodule
from tokendynamics.pretrained.other_libraries import refusing, silenced

_SEED = 3
_LARGE = 2**22
"""Entries of a weight that is taken to float64 only while it is used. Adapters, which ask for the dtype of their own
small ones, stay below."""


@dataclass(frozen=True)
class LayerTensors:
    """The modules of one block that its attention needs, with their weights in place.

    Attributes:
        block: Where they are.
        layout: What they do.
    """

    block: nn.Module
    layout: AttentionLayout

    def affine(self, part: Part) -> Affine:
        """Return the map of one part, at least in single precision."""
        return self._single(affine_of(submodule(self.block, part.module), part.does))

    def output(self) -> Affine:
        """Return the output projection; of normalized heads where a norm is before it."""
        name, storage = self.layout.output
        if storage == "heads":
            like = self._single(self.affine(self.layout.value[0])).weight
            return Affine(torch.eye(self.layout.heads * self.layout.d_value).to(like), None)
        projection = self._single(affine_of(submodule(self.block, name), storage))
        if self.layout.head_factor is not None:
            factor = self.layout.head_factor
            given = self.block.get_parameter(factor.parameter).detach().to(projection.weight)
            factors = factor.of(given, self.layout.heads, self.layout.d_value)
            if factors is None:
                wanted, came = "one factor of each head or feature", f"shape {tuple(given.shape)}"
                raise CheckpointError(factor.parameter, wanted, came)
            return Affine(factors[:, None] * projection.weight, projection.bias)
        if self.layout.output_norm is None:
            return projection
        name, norm = self.layout.output_norm
        return through_norm(self._single(affine_of(self.block.get_submodule(name), norm)), norm, projection)

    def norm(self) -> Affine | None:
        """Return the gain, as (1, dim), and the bias of the norm that the attention reads; None without one."""
        if self.layout.norm is None:
            return None
        name, norm = self.layout.norm
        return self._single(affine_of(self.block.get_submodule(name), norm))

    @staticmethod
    def _single(affine: Affine) -> Affine:
        return Affine(at_least_single(affine.weight), None if affine.bias is None else at_least_single(affine.bias))


def attention_weights(tensors: LayerTensors, norm_kind: str, norm_eps: float) -> AttentionWeights:
    """Return the factors of a layer, per head.

    Args:
        tensors: Its modules, with a layout that is verified.
        norm_kind: Of its block's norms.
        norm_eps: Likewise.
    """
    layout = tensors.layout
    parts = {
        name: (_columns(getattr(layout, name), tensors), heads)
        for name, heads in (("query", layout.heads), ("key", layout.kv_heads), ("value", layout.kv_heads))
    }
    factors = {name: affine.weight.unflatten(1, (heads, -1)).transpose(0, 1) for name, (affine, heads) in parts.items()}
    biases = {
        f"{name}_bias": affine.bias.unflatten(0, (heads, -1))
        for name, (affine, heads) in parts.items()
        if affine.bias is not None
    }
    output, norm = tensors.output(), tensors.norm()
    frequencies = None
    if layout.rotation is not None and layout.rotation.frequencies is not None:
        order, angles = layout.rotation.halves(layout.d_head)
        frequencies = torch.tensor(angles, dtype=torch.float32, device=output.weight.device)
        if order != list(range(layout.d_head)):
            factors |= {name: factors[name][..., order] for name in ("query", "key")}
            biases |= {name: biases[name][..., order] for name in ("query_bias", "key_bias") if name in biases}
    return AttentionWeights(
        **factors,
        **biases,
        output=output.weight.unflatten(0, (layout.heads, -1)),
        output_bias=output.bias,
        groups=torch.arange(layout.heads, device=output.weight.device) // (layout.heads // layout.kv_heads),
        scale=layout.scale,
        norm_eps=norm_eps,
        norm_kind="rms" if norm_kind == "rms" else "layer",
        norm_gain=None if norm is None else norm.weight[0],
        norm_bias=None if norm is None else norm.bias,
        rotary_frequencies=frequencies,
        normed=layout.normed,
    )


def _columns(parts: tuple[Part, ...], tensors: LayerTensors) -> Affine:
    """Return the map to all columns; a view of the stored weight where its rows stand there side by side."""
    if len(parts) == 1 and parts[0].reads is None and set(parts[0].factor) == {1.0}:
        (part,) = parts
        first, count = part.rows[0], len(part.rows)
        if part.rows == tuple(range(first, first + count)):
            whole = tensors.affine(part)
            bias = None if whole.bias is None else whole.bias[first : first + count]
            return Affine(whole.weight[:, first : first + count], bias)
    dim = tensors.output().weight.shape[1]
    affine = composed(parts, dim, tensors.affine)
    if affine is None:
        raise CheckpointError("layout", "columns of some module", "none")
    return affine


def verified(tensors: LayerTensors, seen: Seen, name: str, number: int) -> AttentionLayout:
    """Run the layer's own attention on a short random input, and the factors beside it.

    Factors of its logits, and of the queries and keys of each head, may be learned: they are those of the layer itself.

    Args:
        tensors: The layer's modules, with the user's weights; the attention module itself is among them.
        seen: What the attention was called with where the layout was found.
        name: Of the network, for the message.
        number: Of the layer, counted from 1.

    Returns:
        The layout with the layer's own factors.

    Raises:
        AttentionFactorsError: The two differ by more than 1e-5 of the largest entry, or there are not two to compare.
        CheckpointError: The attention is not finite, which no choice of factors explains.
    """
    where = f"{name}: layer {number}"
    layout = tensors.layout
    x, attention = _attention_on_random_states(tensors, seen, where, number)
    recorded = attention.sharing(layout.kv_heads)
    if not bool(torch.isfinite(recorded.output).all()):
        came = "a NaN or an infinity in its attention"
        raise CheckpointError(where, "finite numbers", came, "the weights are damaged")
    x = x.flatten(2).mT if seen.channels_first else x
    start = as_features(x, recorded.query.shape[0], recorded.query.shape[2])
    error = float("inf")
    if start is not None:
        # Some networks scale each layer's logits by its number, or learn a soft cap: the layer itself says by how much.
        layout = replace(layout, scale=recorded.scale, soft_cap=recorded.soft_cap)
        gain = tensors.norm()
        start = start_for(layout, start, None if gain is None else _double(gain))

        def read(part: Part) -> Affine:
            return _double(tensors.affine(part))

        tried = [
            with_factors_of_heads(form, start, seen.angles, read, recorded) for form in epsilons_by_function(layout)
        ]
        errors = [recomputed_error(form, start, seen.angles, read, recorded) for form in tried]
        error = min(errors)
        layout = tried[errors.index(error)]
    if not error <= TRUSTED:
        wanted = f"the layer's own attention from its factors, to {TRUSTED:g}"
        advice = "its layout differs from the one found; only the audit needs it, not the trace"
        message = expected(where, wanted, f"a difference of {error:.2g}", advice)
        raise AttentionFactorsError(message, f"layer {number}: its factors miss its own attention by {error:.2g}")
    return layout


_FORMATS = ((torch.float64, True), (torch.float32, True), (torch.float64, False), (torch.float32, False))
"""Of a layer's own attention to random states: some code asks for single precision, whatever it is given. Buffers in
half precision, such as scales of packed weights, stay in it where it runs so: what is computed of them is rounded."""


def _attention_on_random_states(
    tensors: LayerTensors, seen: Seen, where: str, number: int
) -> tuple[Tensor, AttentionCall]:
    """Return random states in float64, and the attention of the layer's own module to them; see `verified`."""

    def refusal(words: str) -> AttentionFactorsError:
        wanted, advice = "an attention that runs in float64 or float32", "only the audit needs it, not the trace"
        message = f"layer {number}: its attention runs neither in float64 nor in float32"
        return AttentionFactorsError(expected(where, wanted, words, advice), message)

    x, calls, problem = torch.empty(0), list[AttentionCall](), None
    for dtype, as_stored in _FORMATS:
        try:
            with refusing(refusal):
                x, calls = _attentions_in(dtype, as_stored, tensors, seen)
            problem = None
            break
        except AttentionFactorsError as error:
            problem = error
    if problem is not None:
        raise problem
    if len(calls) != 1:
        message = expected(where, "an attention that runs once", f"{len(calls)} times")
        raise AttentionFactorsError(message, f"layer {number}: its attention runs {len(calls)} times")
    return x, calls[0]


def _attentions_in(
    dtype: torch.dtype, as_stored: bool, tensors: LayerTensors, seen: Seen
) -> tuple[Tensor, list[AttentionCall]]:
    """Return random states in float64, and what a layer's own module does to them; see `_cast_when_used`."""
    layout, shape = tensors.layout, seen.shape
    # On the CPU, where its arguments were recorded, wherever the weights are.
    module = _cast_when_used(tensors.block.get_submodule(layout.module), dtype, as_stored)
    if isinstance(module, nn.MultiheadAttention) and seen.batch_first is not None:
        module.batch_first = seen.batch_first
    for label, buffer in list(module.named_buffers()):
        if buffer.is_meta:
            owner, _, leaf = label.rpartition(".")
            module.get_submodule(owner).register_buffer(leaf, seen.tables[label].clone(), persistent=False)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(_SEED), dtype=torch.float64).to(dtype)
    calls: list[AttentionCall] = []
    positional, named = _cast(seen.arguments, x)
    given = next(
        argument
        for argument in (*positional, *named.values(), state_of(positional, named))
        if isinstance(argument, Tensor) and argument.shape == shape
    )
    positional, named = with_state(x, given, positional, named)
    watched = watching(module, lambda call: calls.append(call.kept()), of_w=True)
    # PyTorch 2.13's other kernels on the CPU read a float32 mask beside float64 queries as float64.
    with watched, apart(module), torch.no_grad(), silenced(), sdpa_kernel(SDPBackend.MATH):
        module(*positional, **named)
    several = joined([call.of_states(shape) for call in calls])
    heads = sum(call.query.shape[1] for call in several)
    if several[1:] and heads == layout.heads and all(map(several[0].has_heads_like, several)):
        several = [with_all_heads(several)]
    if heads == len(seen.order):
        several = [call.in_order(seen.order) for call in several]
    return x.double(), several


def _cast_when_used(attention: nn.Module, dtype: torch.dtype, as_stored: bool) -> nn.Module:
    """Return a copy in a format on the CPU; large weights are so only while they run: all at once would be too much.

    The large ones are those of the layer itself, which stay where they are.

    Args:
        attention: The module.
        dtype: The format.
        as_stored: Whether buffers in half precision stay in it, beside parameters none of which is.
    """
    halves = (torch.float16, torch.bfloat16)
    as_stored = as_stored and not any(parameter.dtype in halves for parameter in attention.parameters())

    def to_format(module: nn.Module, arguments: Any) -> None:
        del arguments
        vars(module)["_stored"] = dict(module.named_parameters(recurse=False))
        for name, value in vars(module)["_stored"].items():
            module.register_parameter(name, nn.Parameter(value.cpu().to(dtype), requires_grad=False))

    def from_format(module: nn.Module, arguments: Any, output: Any) -> None:
        del arguments, output
        for name, value in vars(module)["_stored"].items():
            module.register_parameter(name, value)

    shared: dict[int, Any] = {
        id(value): value for module in attention.modules() if _is_large(module) for value in module.parameters()
    }
    shared |= {id(module): unpacked(module) for module in attention.modules() if is_packed(module)}
    whole = without_hooks(deep_copied(attention, shared)).eval()
    for module in whole.modules():
        if _is_large(module):
            module.register_forward_pre_hook(to_format)
            module.register_forward_hook(from_format, always_call=True)
            continue
        for name, value in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(value.cpu().to(dtype), requires_grad=False))
        for name, value in list(module.named_buffers(recurse=False)):
            on_cpu = value if value.is_meta else value.cpu()
            stays = not on_cpu.is_floating_point() or (as_stored and on_cpu.dtype in halves)
            vars(module)["_buffers"][name] = on_cpu if stays else on_cpu.to(dtype)
    return whole


def _is_large(module: nn.Module) -> bool:
    # No subclasses: PyTorch's own attention reads the weight of one without calling it. Conv1D is transformers'.
    projection = type(module) is nn.Linear or type(module).__name__ == "Conv1D"
    return projection and sum(value.numel() for value in module.parameters()) >= _LARGE


def _double(affine: Affine) -> Affine:
    return Affine(affine.weight.cpu().double(), None if affine.bias is None else affine.bias.cpu().double())


def _cast(arguments: tuple[tuple[Any, ...], dict[str, Any]], like: Tensor) -> Any:
    changed: dict[int, Tensor] = {}  # what stands in several places (query, key and value) is one tensor after it too

    def change(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return changed.setdefault(id(value), value.to(like))
        if isinstance(value, dict):
            return {name: change(entry) for name, entry in cast("dict[Any, Any]", value).items()}
        return type(value)(change(entry) for entry in value) if type(value) in (tuple, list) else value

    positional, named = arguments
    return tuple(change(entry) for entry in positional), {name: change(value) for name, value in named.items()}


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    r"""Factors of one attention layer; tokens are rows.

    With `x` (token, dim) the input of the attention part (after the norm before it, where there is one),
    `g(h) = groups[h]` and `R_i` the rotation of position `i` (the identity without rotary positions)::

        q = x @ query[h] + query_bias[h]
        k = x @ key[g(h)] + key_bias[g(h)],   v = x @ value[g(h)] + value_bias[g(h)]
        s_ij = scale · ⟨R_i q_i, R_j k_j⟩,    w = softmax over the tokens j that i sees
        output = Σ_h (w v) @ output[h] + output_bias

    so that the dense circuits of head `h` are `qk = query[h] @ key[g(h)].T` and, in row form,
    `value[g(h)] @ output[h]` (the transpose of `ov`).

    The rotation turns the pair of features `(f, f + d_head/2)` by `i · rotary_frequencies[f]` (half-split pairing;
    features of networks that pair others are put in this order, and those that do not turn have the frequency 0). A
    sliding window, where a model has one, is not part of the weights and matters only for prompts longer than it.

    Attributes:
        query: Query factor W_Q.
        key: Key factor W_K, one per key-value head.
        value: Value factor W_V, one per key-value head.
        output: Output factor W_O.
        query_bias: Bias of the queries, None where the architecture has none; likewise the other biases.
        key_bias: Bias of the keys.
        value_bias: Bias of the values.
        output_bias: Bias of the attention output.
        norm_gain: Gain of the norm that feeds the attention; None for post-norm blocks, whose attention reads
            the residual state itself.
        norm_bias: Bias of that norm (None for RMSNorm).
        norm_eps: The epsilon of the block's norms.
        norm_kind: LayerNorm or RMSNorm.
        groups: Key-value head of each query head.
        scale: Factor of the logits, `1/√d_head` unless the configuration says otherwise.
        rotary_frequencies: Radians per position and feature pair, None without rotary positions.
        normed: Which of "query", "key" and "value" are normalized between projection and attention. For those a
            bilinear form of the input does not exist; their factors are the ones on normalized tokens, with the
            gain of that norm multiplied in, and their biases are those before it.

    >>> from tokendynamics.pretrained import load
    >>> weights = load("random:distilgpt2:0").attention(1)
    >>> weights.query.shape, weights.output.shape, weights.norm_kind
    (torch.Size([12, 768, 64]), torch.Size([12, 64, 768]), 'layer')
    """

    query: Float[Tensor, "head dim d_head"]
    key: Float[Tensor, "kv_head dim d_head"]
    value: Float[Tensor, "kv_head dim d_value"]
    output: Float[Tensor, "head d_value dim"]
    groups: Int[Tensor, " head"]
    scale: float
    norm_eps: float
    norm_kind: Literal["layer", "rms"]
    query_bias: Float[Tensor, "head d_head"] | None = None
    key_bias: Float[Tensor, "kv_head d_head"] | None = None
    value_bias: Float[Tensor, "kv_head d_value"] | None = None
    output_bias: Float[Tensor, " dim"] | None = None
    norm_gain: Float[Tensor, " dim"] | None = None
    norm_bias: Float[Tensor, " dim"] | None = None
    rotary_frequencies: Float[Tensor, " pair"] | None = None
    normed: tuple[str, ...] = ()

    @property
    def key_per_head(self) -> Float[Tensor, "head dim d_head"]:
        """The key factor of each query head; a view without a copy where heads do not share."""
        return self._per_head(self.key)

    @property
    def value_per_head(self) -> Float[Tensor, "head dim d_value"]:
        """The value factor of each query head; see `key_per_head`."""
        return self._per_head(self.value)

    def _per_head(self, factor: Tensor) -> Tensor:
        kv_heads, heads = factor.shape[0], self.query.shape[0]
        if kv_heads == heads:
            return factor
        if kv_heads == 1:
            return factor.expand(heads, -1, -1)
        return factor[self.groups]
