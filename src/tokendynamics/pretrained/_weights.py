"""The tensors of a base model by ITS names, checked; and those of one attention layer as factors, per head."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.places import first_index
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained._language_head import base_of, empty_with_head
from tokendynamics.pretrained._stored_names import Source, stored_names
from tokendynamics.pretrained.other_libraries import refusing, silenced


def computed_table(whole: Any, module: nn.Module, leaf: str) -> Tensor | None:
    """Return the values of a frozen parameter that its network's initialization computes without drawing any.

    Args:
        whole: The network of transformers, whose initialization it is.
        module: The module that holds the parameter; empty.
        leaf: The parameter's name in it.

    Returns:
        None for a parameter that is trained, or drawn, or constant: a file without it is incomplete.
    """
    if module.get_parameter(leaf).requires_grad:
        return None
    made = []
    for seed in (0, 1):
        own = copy.deepcopy(module).to_empty(device="cpu")
        own.get_parameter(leaf).data.fill_(torch.nan)
        with silenced(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            whole._init_weights(own)
        made.append(own.get_parameter(leaf).detach())
    known = bool(torch.isfinite(made[0]).all()) and torch.equal(*made) and bool((made[0] != made[0].flatten()[0]).any())
    return made[0] if known else None


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_ADVICE = "does config.json belong to these weights?"

Shapes = Mapping[str, tuple[int, ...]]


@runtime_checkable
class TensorStore(Protocol):
    """Anything that holds named tensors and reads them one at a time."""

    @property
    def shapes(self) -> Shapes:
        """Shape of every tensor by its stored name."""
        ...

    def read(self, name: str) -> Tensor:
        """Return one tensor in its stored dtype, owned by the caller."""
        ...

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some of its rows."""
        ...


class Weights:
    """Reads the tensors of a base model, whatever name or form they are stored in.

    Attributes:
        tables: Names of stored values that are no parameters.

    Args:
        store: Where the tensors are.
        network: The empty base model, or the half of it that is needed.
        whole: The base model that the half belongs to; the same one without halves.
        prefix: Name of the half in it, empty for the whole.
        origin: The checkpoint in a message.

    Raises:
        CheckpointError: A tensor is missing or has another shape than the configuration says.
    """

    def __init__(self, store: TensorStore, network: nn.Module, whole: Any, prefix: str, origin: str) -> None:
        self._store = store
        self._origin = origin
        self._prefix = f"{prefix}." if prefix else ""
        self._shapes = {self._prefix + name: tuple(each.shape) for name, each in network.named_parameters()}
        self._stored = stored_names(whole, store.shapes, self._shapes)
        self._stored |= _stored_as_head(
            whole, store.shapes, [name for name in self._shapes if name not in self._stored]
        )
        self._computed: dict[str, Tensor] = {}
        for name in (name for name, _ in network.named_parameters() if self._prefix + name not in self._stored):
            owner, _, leaf = name.rpartition(".")
            values = computed_table(whole, network.get_submodule(owner), leaf)
            if values is not None:
                self._computed[self._prefix + name] = values
        self._check_shapes()
        parameters, kept = dict(network.named_parameters(remove_duplicate=False)), network.state_dict()
        self.tables = [name for name in kept if name not in parameters and self._prefix + name in self._stored]
        self._shapes |= {self._prefix + name: tuple(kept[name].shape) for name in self.tables}

    def read(self, name: str) -> Tensor:
        """Return one tensor of the network.

        Raises:
            CheckpointError: It holds no real numbers, or a NaN or an infinity (layer and tensor are named).
            MemoryLimitError: More than there is memory for.
        """
        if self._prefix + name in self._computed:
            return self._computed[self._prefix + name].clone()
        source = self._stored[self._prefix + name]
        where = _where(source.names[0], self._origin)
        check_fits(4 * prod(self._shapes[self._prefix + name]), where)
        with refusing(lambda words: CheckpointError(expected(where, "pieces of one tensor that fit together", words))):
            tensor = source.read(self._read_stored)
        if tuple(tensor.shape) != self._shapes[self._prefix + name]:
            wanted = f"shape {self._shapes[self._prefix + name]}"
            raise CheckpointError(expected(where, wanted, f"shape {tuple(tensor.shape)}", _ADVICE))
        return tensor

    def read_rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Return some rows of one tensor; of one that is stored as it is, only these are read.

        Raises:
            CheckpointError: See `read`.
        """
        source = self._stored.get(self._prefix + name)
        if source is None or not source.plain:
            return self.read(name)[list(rows)]
        return self._checked(self._store.read_rows(source.names[0], rows), source.names[0])

    def read_beside(self, larger: nn.Module, name: str) -> Tensor | None:
        """Return a stored tensor that is no part of the network, such as one of an output head; None without.

        One that is stored only as a parameter of the base model, to which the configuration ties it, does not count.

        Args:
            larger: An empty network that has it.
            name: What it is called there.
        """
        source = stored_names(larger, self._store.shapes, {name: None}).get(name)
        if source is None or source.target.startswith(base_of(larger)[0] or "\0"):
            return None
        return source.read(self._read_stored)

    def _read_stored(self, name: str) -> Tensor:
        return self._checked(self._store.read(name), name)

    def _checked(self, tensor: Tensor, name: str) -> Tensor:
        where = _where(name, self._origin)
        # Eight bits and fewer mean nothing without the scales that a quantised checkpoint keeps elsewhere.
        if tensor.dtype not in _DTYPES:
            advice = "quantised checkpoints are read only as GGUF"
            wanted = "real numbers of 16 bits or more"
            raise CheckpointError(expected(where, wanted, f"dtype {tensor.dtype}", advice))
        check_finite_weights(tensor, where)
        return tensor

    def _check_shapes(self) -> None:
        for name, shape in self._shapes.items():
            source = self._stored.get(name)
            if source is None and name in self._computed:
                continue
            if source is None:
                advice = "the file is incomplete or its config.json belongs to another model"
                raise CheckpointError(expected(_where(name, self._origin), f"shape {shape}", "no such tensor", advice))
            came = tuple(self._store.shapes[source.names[0]])
            if source.plain and came != shape:
                where = _where(source.names[0], self._origin)
                raise CheckpointError(expected(where, f"shape {shape}", f"shape {came}", _ADVICE))


def _stored_as_head(whole: Any, stored: Shapes, missing: Sequence[str]) -> dict[str, Source]:
    """Return what missing parameters are tied to in the language head: a file may hold only the head of a pair."""
    headed = empty_with_head(whole.config) if missing else None
    if headed is None:
        return {}
    prefix, _ = base_of(headed)
    found = stored_names(headed, stored, {prefix + name: None for name in missing})
    return {name: found[prefix + name] for name in missing if prefix + name in found}


def _where(stored: str, origin: str) -> str:
    # Files count blocks from 0.
    layer = re.search(r"\.(\d+)\.", f".{stored}")
    return f"{origin}: " + (f"layer {int(layer.group(1)) + 1}: " if layer else "") + f"tensor {stored}"


def check_finite_weights(tensor: Tensor, where: str) -> None:
    """Refuse a tensor with an entry that is not finite.

    Raises:
        CheckpointError: There is one; its place is named.
    """
    # A NaN or an infinity survives a sum, which is 20 times faster than a mask as large as the tensor; a sum that
    # overflows by itself only leads to the slower check.
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    if bool(torch.isfinite(tensor.sum(dtype=torch.float32 if half else tensor.dtype))):
        return
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return
    index = first_index(~finite)
    came = f"{float(tensor[index])} at index {index} ({int((~finite).sum())} such entries)"
    raise CheckpointError(expected(where, "finite numbers", came, "the checkpoint is damaged or its training diverged"))


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
