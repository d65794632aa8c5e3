"""Lets PyTorch's own attention modules, which are one function each, run as the functions and modules they stand for.

`nn.MultiheadAttention` calls neither of its projections as a module, and in evaluation an encoder layer may run as one
fused function. Inside `apart` each such module projects, attends and calls ``out_proj``, with the same functions on the
same numbers in the same order, and the fused ways are off. States with the tokens first are seen with the inputs first:
see `turn_states`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.pretrained._parameter_products import WithRawProjections
from tokendynamics.pretrained._raw_projections import follow_like, followed

Projection: TypeAlias = Literal["packed", "query", "key", "value", "key and value"]
"""Which rows of an attention's own projection; "packed" for all of them."""

_THIRDS: dict[Projection, tuple[int, int]] = {
    "packed": (0, 3),
    "query": (0, 1),
    "key": (1, 2),
    "value": (2, 3),
    "key and value": (1, 3),
}


def projection_of(attention: nn.Module, which: Projection) -> tuple[Tensor, Tensor | None]:
    """Return weight (out, in) and bias of an attention's own projection.

    >>> attention = nn.MultiheadAttention(4, 2)
    >>> torch.equal(projection_of(attention, "key")[0], attention.in_proj_weight[4:8])
    True

    Args:
        attention: An `nn.MultiheadAttention`.
        which: Which one.
    """
    parts: Any = attention
    rows = slice(*(third * parts.embed_dim for third in _THIRDS[which]))
    packed = parts.in_proj_weight
    weight = getattr(parts, f"{which[0]}_proj_weight") if packed is None else packed[rows]
    return weight, None if parts.in_proj_bias is None else parts.in_proj_bias[rows]


FURTHER_SENDERS: ContextVar[int] = ContextVar("FURTHER_SENDERS", default=0)
"""How many of the last keys and values of the attention that runs come from no token."""


CROSSING: ContextVar[bool] = ContextVar("CROSSING", default=False)
"""Whether the attention that runs is a cross-attention beside another attention: its keys are of another sequence."""


class InProjection(nn.Module):
    """Some rows of an attention's own projection, called as a module.

    Attributes:
        which: Which ones.

    Args:
        attention: Whose.
        which: Which ones.
    """

    def __init__(self, attention: nn.Module, which: Projection) -> None:
        super().__init__()
        vars(self)["attention"] = attention  # no child: it is the other way round
        self.which: Projection = which

    @property
    def weight(self) -> Tensor:
        """The weight as it is now."""
        return projection_of(vars(self)["attention"], self.which)[0]

    @property
    def bias(self) -> Tensor | None:
        """The bias as it is now; None without."""
        return projection_of(vars(self)["attention"], self.which)[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return x (input, token, in) projected, token by token as PyTorch does."""
        return functional.linear(x.transpose(0, 1), self.weight, self.bias).transpose(0, 1)


class _Forward:
    """What an attention runs in the place of its own forward pass.

    Args:
        attention: An `nn.MultiheadAttention`.
        beside: Whether it stands beside another one, so that one with keys of its own is a cross-attention.
    """

    def __init__(self, attention: Any, beside: bool) -> None:
        self.attention, self.beside = attention, beside
        self.projections = {which: InProjection(attention, which) for which in _THIRDS}

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        attention = self.attention
        if query.ndim != 3 or query.is_nested or (is_causal and attn_mask is None):  # no batch, or an error
            given: dict[str, Any] = {"key_padding_mask": key_padding_mask, "need_weights": need_weights}
            given |= {"average_attn_weights": average_attn_weights, "is_causal": is_causal}
            return nn.MultiheadAttention.forward(attention, query, key, value, attn_mask=attn_mask, **given)
        hinted = is_causal and key_padding_mask is None and not need_weights
        q, k, v = self._projected(query, key, value)
        mask = None if hinted else self._mask(attn_mask, key_padding_mask, q, k.shape[2])
        dropout = attention.dropout if attention.training else 0.0
        token = FURTHER_SENDERS.set(k.shape[2] - key.shape[1 if attention.batch_first else 0])
        crosses = self.beside and not (key.shape == query.shape and torch.equal(key, query))
        crossing = CROSSING.set(crosses or CROSSING.get())
        try:
            if need_weights:
                output, weights = _attend(q, k, v, mask, dropout)
                weights = weights.mean(dim=1) if average_attn_weights else weights
            else:
                output, weights = functional.scaled_dot_product_attention(q, k, v, mask, dropout, hinted), None
        finally:
            FURTHER_SENDERS.reset(token)
            CROSSING.reset(crossing)
        output = attention.out_proj(output.transpose(1, 2).flatten(2))
        return output if attention.batch_first else output.transpose(0, 1), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (input, head, token, feature); further senders come last."""
        by_name, packed = self.projections, self.attention.in_proj_weight is not None
        turned: dict[int, Tensor] = {}  # what is one tensor stays one

        def given(tensor: Tensor) -> Tensor:
            return turned.setdefault(id(tensor), tensor if self.attention.batch_first else tensor.transpose(0, 1))

        if packed and key is value and query is key:
            q, k, v = by_name["packed"](given(query)).chunk(3, dim=-1)
        elif packed and key is value:
            q, (k, v) = by_name["query"](given(query)), by_name["key and value"](given(key)).chunk(2, dim=-1)
        else:
            q, k, v = (by_name[which](given(x)) for which, x in (("query", query), ("key", key), ("value", value)))
        if self.attention.bias_k is not None:
            k, v = (_extended(x, end) for x, end in ((k, self.attention.bias_k), (v, self.attention.bias_v)))
        q, k, v = (x.unflatten(-1, (self.attention.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        if self.attention.add_zero_attn:
            k, v = (torch.cat([x, torch.zeros_like(x[:, :, :1])], dim=2) for x in (k, v))
        return q, k, v

    def _mask(self, mask: Tensor | None, padding: Tensor | None, q: Tensor, senders: int) -> Tensor | None:
        """Return what is added to the logits, (…, receiver, sender); None for nothing."""
        added = [] if mask is None else [_added(mask, q)]
        if mask is not None and mask.ndim == 3:
            added = [added[0].unflatten(0, (len(q), -1))]
        added += [] if padding is None else [_added(padding, q)[:, None, None]]
        if not added:
            return None
        return functional.pad(sum(added[1:], added[0]), (0, senders - added[0].shape[-1]))


def _extended(x: Tensor, end: Tensor) -> Tensor:
    """Return keys or values (input, token, feature) with one more behind them, token by token in memory."""
    return torch.cat([x.transpose(0, 1), end.expand(-1, len(x), -1)]).transpose(0, 1)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Attend as PyTorch does where the weights are asked for: inputs and heads stand below each other."""
    shape = (*q.shape[:3], k.shape[2])
    query, key, value = (x.flatten(0, 1) for x in (q * math.sqrt(1.0 / q.shape[-1]), k, v))
    if mask is None:
        logits = torch.bmm(query, key.mT)
    else:
        logits = torch.baddbmm(mask.expand(shape).flatten(0, 1), query, key.mT)
    weights = logits.view(shape).softmax(dim=-1)
    weights = functional.dropout(weights, dropout) if dropout > 0.0 else weights
    return torch.bmm(weights.flatten(0, 1), value).unflatten(0, shape[:2]), weights


def projections_apart(module: nn.Module) -> list[InProjection]:
    """Return what a module calls inside `apart` in the place of its own projection; empty for all but attentions."""
    forward = vars(module).get("forward")
    return list(forward.projections.values()) if isinstance(forward, _Forward) else []


def why_whole(module: nn.Module) -> str:
    """Return why an attention of PyTorch runs as one function inside `apart`; empty for those that do not, and others.

    >>> why_whole(nn.Linear(2, 2))
    ''
    """
    if not isinstance(module, nn.MultiheadAttention) or projections_apart(module):
        return ""
    projection = module.out_proj
    if _is_plain(module, nn.MultiheadAttention) and not _is_called_alike(projection):
        kind = type(projection)
        changed = "with hooks" if kind.forward is nn.Linear.forward else f"{kind.__module__}.{kind.__name__}"
        read = f"PyTorch reads the weight of its output projection ({changed}) and does not call it"
        return f"{read}; merge an adapter on it (merge_and_unload)"
    return "it has a forward pass of its own"


def fused_otherwise(layer: nn.Module) -> bool:
    """Return whether an encoder layer of PyTorch gives other states by its fused path than by its modules.

    In evaluation without gradients that path reads weights and calls no module: it leaves out methods of a class of
    the user's own, adapters and other activations.

    >>> fused_otherwise(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    False

    Args:
        layer: Any module; false of others, and of one that does not run on states alone.
    """
    if not isinstance(layer, nn.TransformerEncoderLayer):
        return False
    first = next(layer.parameters())
    x = torch.randn(2, 4, layer.norm1.normalized_shape[-1], generator=torch.Generator().manual_seed(0)).to(first)
    try:
        with torch.no_grad():
            fused = layer(x)
            with apart(layer):
                usual = layer(x)
    except Exception:  # what a layer of the user's own raises on states alone
        return False
    near = torch.finfo(first.dtype).eps ** 0.5
    return not torch.allclose(fused, usual, near, near * float(usual.abs().max()))


@dataclass
class _Held:
    """What an attribute of a module, or its class, is outside of `apart`, and how many open blocks need another one.

    A block of `apart` around another one may have begun before what changes was found.
    """

    former: Any
    users: int = 0


_held: WeakKeyDictionary[nn.Module, dict[str, _Held]] = WeakKeyDictionary()

_changing = Lock()

_ABSENT = object()
"""The former value of an attribute that the module itself did not have."""

_OF_TORCH = (
    *(nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerDecoder),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
"""What `apart` changes."""


_SEEN_TURNED: ContextVar[bool] = ContextVar("_SEEN_TURNED", default=False)
"""Whether a network runs, or is tried block by block, whose states are seen in another order: others may hold the same
modules."""


@contextmanager
def seen_turned() -> Iterator[None]:
    """Let states of blocks that are tried by themselves be seen as where their network runs; see `turn_states`."""
    token = _SEEN_TURNED.set(True)
    try:
        yield
    finally:
        _SEEN_TURNED.reset(token)


class _SetsVariable:
    """A mixin that sets a variable of the context to true while a module runs."""

    variable: ContextVar[bool]

    def __call__(self, *positional: Any, **named: Any) -> Any:
        token = self.variable.set(True)
        try:
            return cast("Any", super()).__call__(*positional, **named)
        finally:
            self.variable.reset(token)


class _CrossAttention(_SetsVariable):
    """The mixin, inside `apart`, of a cross-attention beside another attention."""

    variable = CROSSING


class _WithTurnedStates(_SetsVariable):
    """The mixin, inside `apart`, of a network whose states are seen in another order; see `turn_states`."""

    variable = _SEEN_TURNED


_hidden: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()
"""For each network the names of its cross-attentions beside an attention that are no module of PyTorch's."""


def hide_cross_attentions(network: nn.Module, modules: Sequence[str] = ()) -> None:
    """Let attentions that read another sequence, beside those between the tokens, not be noticed inside `apart`.

    Args:
        network: What calls them.
        modules: Their names; none to let each be noticed.
    """
    _name_modules(_hidden, network, modules)


def is_hidden(module: nn.Module) -> bool:
    """Return whether a module is such a cross-attention; false outside of `apart`."""
    return isinstance(module, _CrossAttention)


_with_turned_states: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()
"""Networks whose blocks run with the tokens first, and the names of the modules that read or give such states."""

_TOKENS_FIRST = "_states_have_tokens_first"
"""The attribute that such modules have inside `apart`: another network may hold them with the inputs first."""


_NAMED = ("__class__", _TOKENS_FIRST)
"""What is changed of modules that are named: it may be put back while blocks of `apart` are open."""


def turn_states(network: nn.Module, modules: Sequence[str] = ()) -> None:
    """Let the states (token, input, feature) that modules read and give be seen inputs first inside `apart`.

    Args:
        network: What they are in.
        modules: Their names; none to let all states be seen as they are.
    """
    _name_modules(_with_turned_states, network, modules)


def turns_states(network: nn.Module) -> bool:
    """Return whether the states of a network are seen in another order than its blocks have them; see `turn_states`."""
    return network in _with_turned_states


def has_tokens_first(module: nn.Module) -> bool:
    """Return whether the states of three axes that a module reads and gives are to be turned; see `turn_states`."""
    return _SEEN_TURNED.get() and _TOKENS_FIRST in vars(module)


def run_like(network: nn.Module, other: nn.Module) -> None:
    """Let the modules of a copy run, and be seen, as those of the network that it is a copy of."""
    for known in (_hidden, _with_turned_states):
        _name_modules(known, network, known.get(other, ()))
    follow_like(network, other)


def _name_modules(
    known: WeakKeyDictionary[nn.Module, tuple[str, ...]], network: nn.Module, names: Sequence[str]
) -> None:
    former, inside = known.pop(network, ()), dict(network.named_modules()) if _held else {}
    with _changing:  # blocks that are open must not see them as before
        for module in (inside[name] for name in former if name in inside):
            for attribute, held in _held.get(module, {}).items():
                if attribute in _NAMED:
                    _put(module, attribute, held.former)
    if names:
        known[network] = tuple(dict.fromkeys(names))


_classes: dict[tuple[type, type], type] = {}


def _class_with(kind: type, mixin: type) -> type:
    """Return a class of modules with a mixin, under the same name."""
    if (kind, mixin) not in _classes:
        names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        _classes[kind, mixin] = type(kind.__name__, (mixin, kind), names)
    return _classes[kind, mixin]


@contextmanager
def apart(network: nn.Module) -> Iterator[None]:
    """Let every `nn.MultiheadAttention` of a network run in parts inside the block, by the same functions.

    Outputs are those of the module's own forward pass to rounding. The network is as before after it; several such
    blocks may be open at a time, in several threads.

    Args:
        network: Any; one without such modules is not touched.
    """
    modules = list(network.modules())
    with _changing:
        changes = _changes(modules)
        changed = [(module, _enter(module, changes[module])) for module in changes]
    try:
        yield
    finally:
        with _changing:
            for module, names in changed:
                _leave(module, names)


def _changes(modules: Sequence[nn.Module]) -> dict[nn.Module, dict[str, Any]]:
    """Return what is other inside `apart`, by module and name, and those that an open block has changed already.

    Under "__class__", the mixin.
    """
    changes: dict[nn.Module, dict[str, Any]] = {module: {} for module in modules if module in _held} if _held else {}
    if any(isinstance(module, _OF_TORCH) for module in modules):
        # Members of a list may be those of one layer after the other.
        inner = [
            [child for child in module.children() if isinstance(child, nn.MultiheadAttention)]
            for module in modules
            if not isinstance(module, nn.ModuleList | nn.Sequential)
        ]
        beside = {attention for several in inner if len(several) > 1 for attention in several}
        changes |= {module: change for module in modules if (change := _change_of(module, beside))}
    for module in modules:
        if followed(module) is not None:
            changes.setdefault(module, {})["forward"] = WithRawProjections(module)
    for network in (module for module in modules if module in _hidden) if _hidden else ():
        for name in _hidden[network]:
            changes.setdefault(network.get_submodule(name), {})["__class__"] = _CrossAttention
    for network in (module for module in modules if module in _with_turned_states) if _with_turned_states else ():
        changes.setdefault(network, {}).setdefault("__class__", _WithTurnedStates)
        for name in _with_turned_states[network]:
            changes.setdefault(network.get_submodule(name), {})[_TOKENS_FIRST] = True
    return changes


def _enter(module: nn.Module, change: dict[str, Any]) -> list[str]:
    """Change what no other block has changed; return the names of all that is other now."""
    held = _held.setdefault(module, {})
    for name, value in change.items():
        of_class, here = name == "__class__", name in held
        if not here:
            held[name] = _Held(type(module) if of_class else vars(module).get(name, _ABSENT))
        if not here or name in _NAMED:
            _put(module, name, _class_with(held[name].former, value) if of_class else value)
    for attribute in held.values():
        attribute.users += 1
    return list(held)


def _leave(module: nn.Module, names: Sequence[str]) -> None:
    held = _held[module]
    for name in names:
        held[name].users -= 1
        if not held[name].users:
            _put(module, name, held.pop(name).former)
    if not held:
        del _held[module]


def _put(module: nn.Module, name: str, value: Any) -> None:
    if name == "__class__":
        module.__class__ = value
    elif value is _ABSENT:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = value


def _change_of(module: nn.Module, beside: Collection[nn.Module]) -> dict[str, Any]:
    """Return which attributes of a module are others inside `apart`: a forward pass, or what allows a fused one."""
    given: dict[str, Any] = vars(module)
    change: dict[str, Any] = {}
    if isinstance(module, nn.MultiheadAttention):
        if not (_is_plain(module, nn.MultiheadAttention, _Forward) and _is_called_alike(module.out_proj)):
            return {}
        change = {"forward": _Forward(module, module in beside)}
    elif isinstance(module, nn.TransformerEncoderLayer):
        change = {"activation_relu_or_gelu": 0}
    elif isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        change = {"use_nested_tensor": False}
    return {name: value for name, value in change.items() if name == "forward" or name in given}


def _is_called_alike(projection: nn.Module) -> bool:
    """Whether calling an output projection does what PyTorch does with its weight: no adapter and no hook comes in."""
    hooks = (*projection._forward_hooks.values(), *projection._forward_pre_hooks.values())
    return _is_plain(projection, nn.Linear) and not hooks


def _is_plain(module: nn.Module, kind: type[nn.Module], *replacements: type[object]) -> bool:
    """Whether a module runs PyTorch's forward pass of a kind, or what stands for it here."""
    replaced = vars(module).get("forward")
    return type(module).forward is kind.forward and (replaced is None or isinstance(replaced, replacements))
