"""The factors of an attention with a remedy: those of W, and columns that do not turn for λ A."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.numerics import AttentionFactorsError, CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._attention_weights import AttentionWeights
from tokendynamics.pretrained._stored_tensors import natural
from tokendynamics.pretrained.discovery._calls import state_of
from tokendynamics.pretrained.discovery._plain_attention import plain_attention
from tokendynamics.pretrained.discovery._random_inputs import random_inputs
from tokendynamics.pretrained.discovery.interface import REMEDY, WATCHED, WITH_REMEDY, Ungrouped, configurations
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.network import quietly, submodule
from tokendynamics.pretrained.sources._tensor_files import SafetensorsFiles, safetensors_paths

Kind = Literal["lambda-identity", "lambda-diagonal"]


class LambdaColumns(nn.Module):
    """Columns beside the queries and keys of an attention, whose products are ``x_l^T λA x_i`` in sum over heads.

    ``λ = −|size|`` and ``A = diag(exp(log_diagonal))``, the identity for the kind "lambda-identity". x is what queries
    and keys are projected from; head h of H has its features h·w … (h+1)·w − 1, w = ⌈dim/H⌉, those beyond dim being
    zero. The columns stand behind all others, where no rotation turns them; beside a soft cap the term is part of what
    is capped. λ = 0 leaves the logits as they are, and its gradient there is that from below.

    Attributes:
        kind: Which.
        size: |λ|, (1,), up to a sign that says nothing.
        log_diagonal: log A, (dim,); None for the identity.

    Args:
        kind: Which.
        dim: Features of a state.
        heads: Query heads.
        kv_heads: Heads of keys and values, a divisor of `heads`.
        start: λ at the start, from 0 down.

    Source: `positional` 5.2.

    >>> LambdaColumns("lambda-diagonal", 4, heads=2, kv_heads=1, start=-0.5).coefficients().tolist()
    [-0.5, -0.5, -0.5, -0.5]
    """

    def __init__(self, kind: Kind, dim: int, *, heads: int, kv_heads: int, start: float = 0.0) -> None:
        super().__init__()
        self.kind, self.dim, self.heads, self.kv_heads = kind, dim, heads, kv_heads
        self.width = -(-dim // heads)
        self.size = nn.Parameter(torch.tensor([abs(float(start))]))  # of one axis: FSDP shards no scalars
        self.log_diagonal = nn.Parameter(torch.zeros(dim)) if kind == "lambda-diagonal" else None
        self._states: dict[int, Tensor] = {}  # by thread

    @property
    def words(self) -> str:
        """What it adds to W."""
        return "λA" if self.kind == "lambda-diagonal" else "λI"

    def coefficients(self) -> Float[Tensor, " dim"]:
        """Return the diagonal of λI or λA."""
        strength = torch.where(self.size < 0, self.size, -self.size)  # −|·| itself has the gradient 0 at 0
        return strength.expand(self.dim) if self.log_diagonal is None else strength * self.log_diagonal.exp()

    def keep(self, x: Float[Tensor, "batch token dim"]) -> None:
        """Take what the attention is about to read."""
        self._states[get_ident()] = x

    def drop(self) -> Tensor | None:
        """Return what was kept and not asked for since, and let go of it."""
        return self._states.pop(get_ident(), None)

    def of_keys(self, x: Float[Tensor, "batch token dim"]) -> Float[Tensor, "batch kv_head token column"]:
        """Return the columns of the keys: the slices of all heads that share them, side by side."""
        return self._slices(x, self.kv_heads)

    def extended(
        self,
        query: Float[Tensor, "batch head token d_head"],
        key: Float[Tensor, "batch kv_head sender d_key"],
        value: Float[Tensor, "batch kv_head sender d_value"],
        scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return queries and keys with their columns, values, and the factor of the logits; every head has its own.

        Args:
            query: Queries, rotated, of the states that were kept.
            key: Keys, rotated; with `of_keys` behind them where they come from a cache that has both.
            value: Values.
            scale: Factor of the logits; None for 1/√d_head.

        Raises:
            CheckpointError: Keys whose states are not known.
        """
        x, width, groups = self.drop(), query.shape[-1], self.heads // self.kv_heads
        factor = float(width**-0.5 if scale is None else scale)
        columns = key[..., width:]
        if x is not None and not columns.shape[-1] and key.shape[2] == x.shape[1]:
            columns = self.of_keys(x)
        if x is None or columns.shape[-1] != groups * self.width:
            wanted, came = f"{groups * self.width} columns of the remedy behind the keys", columns.shape[-1]
            raise CheckpointError("remedy", wanted, came, "its keys are computed in another way: pass use_cache=False")
        of_queries = self._slices(x * (self.coefficients() / factor).to(x.dtype), self.heads).to(query.dtype)
        columns = columns.unflatten(-1, (groups, -1)).movedim(3, 2).flatten(1, 2).to(key.dtype)
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key[..., :width], value))
        return torch.cat([query, of_queries], -1), torch.cat([key, columns], -1), value, factor

    def _slices(self, x: Tensor, count: int) -> Tensor:
        missing = self.heads * self.width - self.dim
        return (functional.pad(x, (0, missing)) if missing else x).unflatten(-1, (count, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """Return what it is, for printing."""
        return f"{self.kind}, dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}"


def columns_of(module: nn.Module) -> LambdaColumns | None:
    """Return the columns that an attention module was given; None without."""
    columns = getattr(module, REMEDY, None)
    return columns if isinstance(columns, LambdaColumns) else None


def remedies_in(network: nn.Module) -> list[tuple[nn.Module, LambdaColumns]]:
    """Return every attention of a network that has a remedy, with its columns, in the order of the modules."""
    pairs = ((module, columns_of(module)) for module in network.modules())
    return [(module, columns) for module, columns in pairs if columns is not None]


IN_CONFIGURATION = "tokendynamics_remedy"
"""What the configuration of a network with a remedy calls its kind."""

_CHOSEN_BEFORE = {with_remedy: plain for plain, with_remedy in WITH_REMEDY.items()}


def attach(network: Any, columns: Mapping[nn.Module, LambdaColumns], name: str) -> None:
    """Give attentions their columns, and run the network once to see that each asks for them.

    Args:
        network: Theirs.
        columns: By the attention modules of the network, which have none yet.
        name: What a message calls the network.

    Raises:
        CheckpointError: Attentions that do not ask for them; the network is as it was.
    """
    if any(not hasattr(getattr(module, "config", None), "_attn_implementation") for module in columns):
        raise CheckpointError(_not_asking(name, list(columns)))
    from transformers import AttentionInterface, AttentionMaskInterface

    functions, masks = AttentionInterface(), AttentionMaskInterface()
    for plain, with_remedy in WITH_REMEDY.items():
        AttentionInterface.register(with_remedy, partial(_attend, functions.get(plain)))
        AttentionMaskInterface.register(with_remedy, masks[plain])
    try:
        for module, of_module in columns.items():
            module.add_module(REMEDY, of_module)
            module.register_forward_pre_hook(_before, with_kwargs=True)
            config: Any = module.config
            config._attn_implementation_internal = WITH_REMEDY.get(*(config._attn_implementation,) * 2)
        with quietly(network), torch.no_grad():
            network(**random_inputs(network)(1))
        idle = [module for module, left in remedies_in(network) if left.drop() is not None]
        if idle:
            raise CheckpointError(_not_asking(name, idle))
    except BaseException:
        detach(network)
        raise
    setattr(network.config, IN_CONFIGURATION, next(iter(columns.values())).kind)


def detach(network: Any) -> None:
    """Take every remedy off, and choose the implementation that was chosen before."""
    for module, _ in remedies_in(network):
        delattr(module, REMEDY)
        for number, hook in list(module._forward_pre_hooks.items()):
            if hook is _before:
                del module._forward_pre_hooks[number], module._forward_pre_hooks_with_kwargs[number]
        config: Any = module.config
        chosen = config._attn_implementation
        config._attn_implementation_internal = _CHOSEN_BEFORE.get(chosen, chosen)
    vars(network.config).pop(IN_CONFIGURATION, None)


def check_implementation(network: nn.Module) -> None:
    """Refuse a network of which an attention is implemented otherwise than by "sdpa" or "eager".

    Raises:
        CheckpointError: It is.
    """
    for config in configurations(network):
        if config._attn_implementation not in (*WITH_REMEDY, None):
            wanted = f"an attention implementation that is {' or '.join(map(repr, WITH_REMEDY))}"
            came, advice = config._attn_implementation, "choose it with model.set_attn_implementation"
            raise CheckpointError("model", wanted, came, advice)


def _not_asking(name: str, modules: Sequence[nn.Module]) -> str:
    came = f"{len(modules)} that do not, the first a {type(modules[0]).__name__}"
    return expected(name, "attentions that use transformers' attention interface", came)


def _before(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Keep what an attention is about to read, and let its cache keep the columns with the keys."""
    from transformers import Cache

    columns, x = columns_of(module), state_of(positional, named)
    if columns is None or x is None:
        return None
    config: Any = module.config
    if config._attn_implementation not in (*_CHOSEN_BEFORE, WATCHED):
        advice = "remove the remedy, choose the implementation, and apply the remedy again"
        wanted = "the attention implementation that the remedy has chosen"
        raise CheckpointError("model", wanted, repr(config._attn_implementation), advice)
    columns.keep(x)

    def with_columns(value: Any) -> Any:
        return _CacheWithColumns(value, columns.of_keys(x)) if isinstance(value, Cache) else value

    return tuple(map(with_columns, positional)), {name: with_columns(value) for name, value in named.items()}


class _CacheWithColumns:
    """The cache of a network as an attention with a remedy sees it: the columns of its keys are kept behind them.

    So whatever a cache does with keys (grow, slide, follow the beams of a search) it does with their columns.
    """

    def __init__(self, cache: Any, columns: Tensor) -> None:
        self._cache, self._columns = cache, columns

    def update(self, key_states: Tensor, value_states: Tensor, *positional: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if key_states.shape[:-1] != self._columns.shape[:-1]:
            raise CheckpointError("use_cache", "False: its cache does not store keys", True)
        keys = torch.cat([key_states, self._columns.to(key_states)], dim=-1)
        return self._cache.update(keys, value_states, *positional, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _attend(
    fused: Callable[..., tuple[Tensor, Tensor | None]] | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the module's columns, by a fused implementation or else the plain one of the module's family."""
    attention, columns = fused or plain_attention(module), columns_of(module)
    if columns is None:
        return attention(module, query, key, value, attention_mask, **named)
    query, key, value, named["scaling"] = columns.extended(query, key, value, named.get("scaling"))
    width = value.shape[-1]
    if fused is not None and width < key.shape[-1]:  # the fused kernels want all of one width
        value = functional.pad(value, (0, key.shape[-1] - width))
    output, weights = attention(Ungrouped(module), query, key, value, attention_mask, **named)
    return output[..., :width], weights


def fitting_columns(
    network: nn.Module, layout: Layout, dim: int, name: str, kind: Kind | Path, start: float = 0.0
) -> dict[nn.Module, LambdaColumns]:
    """Return columns for every attention of a live network by its module, in the order of the layers.

    Args:
        network: The one that the layout is of.
        layout: Of it.
        dim: Features of a state.
        name: What a message calls it.
        kind: Of new columns; or the folder of a network of the same sizes, whose values they get, which
            `save_pretrained` has written.
        start: λ of new ones.

    Raises:
        CheckpointError: The remedy is not for the network, layer and cause are named; or the folder holds no columns,
            or those of another network.
    """
    if isinstance(kind, Path):
        return _stored_columns(network, layout, dim, name, kind)
    columns: dict[nn.Module, LambdaColumns] = {}
    for number, (block, layer) in enumerate(zip(layout.blocks, layout.layers, strict=True), start=1):
        where, attention = f"{name}: layer {number}", layer.attention
        if attention is None:
            raise CheckpointError(where, "an attention whose queries and keys are found", layer.problem)
        if not attention.causal:
            raise CheckpointError(where, "an attention that sees no later token", "one that does")
        if not attention.module:
            raise CheckpointError(where, "an attention in its own module", "a block that attends itself")
        module = submodule(network, f"{block}.{attention.module}")
        first, sizes = next(module.parameters()), {"heads": attention.heads, "kv_heads": attention.kv_heads}
        # In half precision small steps of λ would be lost.
        single = torch.promote_types(first.dtype, torch.float32)
        columns[module] = LambdaColumns(kind, dim, **sizes, start=start).to(first.device, single)
    if layout.positions != "rotary":
        wanted, came = "rotary positions, to which the remedy is added", f"positions of the kind {layout.positions!r}"
        raise CheckpointError(name, wanted, came)
    return columns


def _stored_columns(
    network: nn.Module, layout: Layout, dim: int, name: str, folder: Path
) -> dict[nn.Module, LambdaColumns]:
    def counted(shapes: list[tuple[int, ...]]) -> str:
        return f"{len(shapes)} of shape {shapes[0]}" if shapes else "none"

    files, stored = SafetensorsFiles(safetensors_paths(folder)), {}
    for leaf in ("size", "log_diagonal"):
        stored[leaf] = sorted(
            (stored_name for stored_name in files.shapes if stored_name.endswith(f".{REMEDY}.{leaf}")), key=natural
        )
    if not stored["size"]:
        raise CheckpointError(str(folder), "a network with a remedy, saved as safetensors", "none")
    kind = "lambda-diagonal" if stored["log_diagonal"] else "lambda-identity"
    by_module = fitting_columns(network, layout, dim, name, kind)
    for leaf, names in stored.items():
        places = [dict(columns.named_parameters()) for columns in by_module.values()]
        places = [parameters[leaf] for parameters in places if leaf in parameters]
        wanted, came = [tuple(tensor.shape) for tensor in places], [files.shapes[stored_name] for stored_name in names]
        if wanted != came:
            where = f"{folder}: {REMEDY}.{leaf}"
            raise CheckpointError(where, f"{counted(wanted)}, as {name} has", counted(came))
        for place, values in zip(places, map(files.read, names), strict=True):
            place.data.copy_(values)
    return by_module


@torch.no_grad()
def with_columns(weights: AttentionWeights, columns: LambdaColumns, where: str) -> AttentionWeights:
    """Return the factors of ``W_li + λ A``, so that the sum of ``query[h] key[g(h)]^T`` over heads has λA in it.

    Keys have a column for each feature of the slices of all heads that share them, queries that of their own slice.

    Args:
        weights: Of W.
        columns: Of the same attention.
        where: Network and layer, for the message.

    Raises:
        AttentionFactorsError: Queries or keys are normalized: λA stands beside what is no bilinear form.
    """
    if "query" in weights.normed or "key" in weights.normed:
        reason = f"{columns.words} stands beside normalized queries and keys, which have no matrix"
        message = expected(where, "queries and keys that no norm changes", f"normalized ones beside {columns.words}")
        raise AttentionFactorsError(message, f"{where.rpartition(': ')[2]}: {reason}")
    dim, groups = columns.dim, columns.heads // columns.kv_heads
    features = torch.eye(dim, columns.heads * columns.width).to(weights.key)
    key = features.unflatten(1, (columns.kv_heads, -1)).transpose(0, 1)
    strength = (columns.coefficients() / weights.scale).to(weights.query)[:, None]
    of_group = torch.eye(groups).to(features).repeat_interleave(columns.width, dim=1).repeat(columns.kv_heads, 1)
    query = key[weights.groups] * of_group[:, None] * strength
    wider = {"query": (weights.query, query), "key": (weights.key, key)}
    widened = {name: _beside(*pair) for name, pair in wider.items()}
    for name, (_, further) in wider.items():
        bias = getattr(weights, f"{name}_bias")
        if bias is not None:
            widened[f"{name}_bias"] = _beside(bias, torch.zeros_like(further[:, 0]))
    frequencies = weights.rotary_frequencies
    if frequencies is not None:
        frequencies = functional.pad(frequencies, (0, widened["key"].shape[-1] // 2 - len(frequencies)))
    return replace(weights, **widened, rotary_frequencies=frequencies)


def _beside(turning: Tensor, still: Tensor) -> Tensor:
    """Return both side by side, half behind half: the columns of a pair stand half of all columns apart."""
    if still.shape[-1] % 2:
        still = functional.pad(still, (0, 1))
    halves = zip(turning.chunk(2, dim=-1), still.chunk(2, dim=-1), strict=True)
    return torch.cat([part for pair in halves for part in pair], dim=-1)
