"""Runs a block again by itself with other states, to find which of its tokens and modules act on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tokendynamics.pretrained.discovery._calls import Hooks, ModuleCall, state_of, states_given, with_state
from tokendynamics.pretrained.discovery._maps import as_read, by_token
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.discovery.interface import watching
from tokendynamics.pretrained.network import submodule

Mixing: TypeAlias = Literal["none", "earlier tokens", "all tokens"]
"""Which other tokens act on a token inside a block."""

CHANGED = 1e-5
"""Smallest change of a query or a token's output, relative to the largest entry, that counts: above rounding."""

_OF_CHANGE = 1e-4
"""Misfit of a sum, of what the part adds to it, below which it is a sum: above the rounding of two states."""

_OTHER_FACTOR = 1e-4
"""Relative difference from which two factors are others, and misfit below which one tensor is a multiple of another."""

_OF_LARGEST = 0.5
"""Share of the largest change that the query and the key of the changed token must have."""


def other_states(states: Tensor) -> Tensor:
    """Return states in another direction, also of some whose features are all alike, such as zeros that are filled.

    >>> other_states(torch.tensor([1.0, 2.0, 4.0])).tolist(), other_states(torch.zeros(3)).tolist()
    ([4.0, 1.0, 2.0], [-1.0, 0.0, 1.0])
    """
    rolled = states.roll(1, dims=-1)
    if not torch.equal(rolled, states):
        return rolled
    return states + torch.linspace(-1.0, 1.0, states.shape[-1], dtype=states.dtype, device=states.device)


def mixing_of(block: ModuleCall) -> Mixing:
    """Return which other tokens act on a token inside a block; "all tokens" where the block cannot be run by itself.

    Args:
        block: Its call, which is repeated with its first, its middle and its last token changed: one that reduces
            the number of its keys may leave out the last one.
    """
    x = block.x
    if x is None or x.ndim != 3 or x.shape[1] < 2:
        return "all tokens"

    def changed(token: int) -> Tensor:
        state = x.clone()
        state[:, token] = other_states(state[:, token]) + x.std()
        return state

    later = [token for token in (x.shape[1] // 2, x.shape[1] - 1) if token]
    outputs = _outputs(block, [x, changed(0), *map(changed, later)])
    if outputs is None:
        return "all tokens"
    same, first, *others = outputs
    if any(differ(other[:, :token], same[:, :token]) for token, other in zip(later, others, strict=True)):
        return "all tokens"
    return "earlier tokens" if differ(first[:, 1:], same[:, 1:]) else "none"


def sees_order(block: ModuleCall) -> bool:
    """Tell whether a block gives any later token another state when its first two tokens change places.

    Args:
        block: Its call. False where it cannot be run by itself.
    """
    x = block.x
    if x is None or x.ndim != 3 or x.shape[1] < 3:
        return False
    swapped = x.clone()
    swapped[:, 0], swapped[:, 1] = x[:, 1], x[:, 0]
    outputs = _outputs(block, [x, swapped])
    return outputs is not None and differ(outputs[1][:, 2:], outputs[0][:, 2:])


def takes_rows_apart(block: ModuleCall) -> bool:
    """Tell whether in states (…, token, feature) the first token acts on all tokens of its row and on no others.

    Args:
        block: Its call, which is repeated with that token changed. False where it cannot be run by itself.
    """
    x = block.x
    if x is None or x.ndim < 4:
        return False
    state, first = x.clone(), (0,) * (x.ndim - 1)
    state[first] = state[first].roll(1) + x.std()
    outputs = _outputs(block, [x, state])
    if outputs is None or outputs[0].shape != x.shape:
        return False
    rows = [output.flatten(0, -3) for output in outputs]
    inside = all(differ(*(output[0, token] for output in rows)) for token in range(x.shape[-2]))
    return inside and not differ(*(output[1:] for output in rows))


def acts_on(block: ModuleCall, source: str, target: str) -> bool | None:
    """Tell whether the output of one module inside a block changes with that of another one.

    Args:
        block: Its call, which is repeated with other outputs of the first.
        source: Name of the first module in the network.
        target: Name of the other one.

    Returns:
        None where the block cannot be run by itself, or does not run one of them.
    """
    if block.x is None:
        return None
    prefix, given, changing = f"{block.name}." if block.name else "", list[Tensor](), list[bool]()

    def change(states: Tensor) -> Tensor | None:
        return states.roll(1, dims=-1) + states.std() if changing else None

    with Hooks() as hooks:
        try:
            modules = [submodule(block.module, name.removeprefix(prefix)) for name in (source, target)]
        except AttributeError:
            return None
        hooks.after(modules[0], change)
        hooks.after(modules[1], lambda states: given.append(states.clone()))
        usual = _outputs(block, [block.x])
        changing.append(True)
        outputs = None if usual is None else _outputs(block, [block.x])
    if outputs is None or len(given) != 2 or given[0].shape != given[1].shape:
        return None
    return differ(given[1], given[0])


def mixes_besides(block: ModuleCall, attention: str, target: str) -> bool:
    """Tell whether a module acts on other tokens although the attention gives what it gave; see `acts_besides`."""
    return acts_besides(block, attention, target) == "other tokens"


def acts_besides(block: ModuleCall, attention: str, target: str) -> Literal["nothing", "its token", "other tokens"]:
    """Tell on what a module inside a block acts although the attention gives what it gave before.

    What leads to the module counts, such as a convolution before a norm.

    Args:
        block: Its call, which is repeated with its first and its last token changed.
        attention: Name of the module that gives the attention's part.
        target: Name of the other module. "other tokens" where the block cannot be run by itself.
    """
    x, kept, given = block.x, list[Tensor](), list[Tensor]()
    if x is None or x.ndim != 3 or x.shape[1] < 2:
        return "other tokens"
    prefix = f"{block.name}." if block.name else ""

    def hold(states: Tensor) -> Tensor | None:
        if kept:
            return kept[0]
        kept.append(states.clone())
        return None

    several = [x, x.clone(), x.clone()]
    for states, token in zip(several[1:], (0, -1), strict=True):
        states[:, token] = other_states(x[:, token]) + x.std()
    with Hooks() as hooks:
        for name, act in ((attention, hold), (target, lambda states: given.append(states.clone()))):
            hooks.after(submodule(block.module, name.removeprefix(prefix)), act)
        outputs = _outputs(block, several)
    if outputs is None or len(given) != len(several) or any(states.shape != x.shape for states in given):
        return "other tokens"
    usual, first, last = given
    if differ(first[:, 1:], usual[:, 1:]) or differ(last[:, :-1], usual[:, :-1]):
        return "other tokens"
    return "its token" if differ(first, usual) or differ(last, usual) else "nothing"


def take_tokens_apart(block: ModuleCall, modules: Sequence[str]) -> bool:
    """Tell whether modules inside a block, none inside another, give each token what comes from that token alone.

    Args:
        block: Its call, which is repeated with the first token that each of them reads changed, and given on as it was.
        modules: Their names within the block. False where the block cannot be run by itself.
    """
    x, gave, mixing = block.x, {name: list[Tensor]() for name in modules}, list[bool]()
    if x is None or x.ndim != 3:
        return False
    inputs, tokens, _ = x.shape
    changing: list[bool] = []

    def change(states: Tensor) -> Tensor | None:
        if states.ndim != 3 or states.shape[:2] != (inputs, tokens):
            mixing.append(True)
        if not changing or any(mixing):
            return None
        changed = states.clone()
        changed[:, 0] = other_states(states[:, 0]) + states.std()
        return changed

    def compare(name: str, states: Tensor) -> Tensor | None:
        if not changing:
            gave[name].append(states.clone())
            return None
        usual = gave[name].pop(0)
        mixing.append(usual.shape != states.shape or differ(states[:, 1:], usual[:, 1:]))
        return usual

    with Hooks() as hooks:
        for name in modules:
            hooks.before(submodule(block.module, name), change)
            hooks.after(submodule(block.module, name), partial(compare, name))
        usual = _outputs(block, [x])
        changing.append(True)
        outputs = None if usual is None or any(mixing) else _outputs(block, [x])
    return outputs is not None and not any(mixing)


def acts_without_attention(block: ModuleCall, name: str) -> bool:
    """Tell whether a module inside a block gives its tokens different states where every attention gives zeros.

    Args:
        block: Its call. False where it cannot be run by itself, or its attentions give what they gave.
        name: Of the module in the network.
    """
    if block.x is None:
        return False
    prefix, gave = f"{block.name}." if block.name else "", list[Tensor]()

    def clear(call: AttentionCall) -> None:
        call.output.zero_()

    with Hooks() as hooks:
        hooks.after(submodule(block.module, name.removeprefix(prefix)), lambda states: gave.append(states.clone()))
        usual = _outputs(block, [block.x])
        with watching(block.module, clear, of_w=True):
            outputs = None if usual is None else _outputs(block, [block.x])
    if outputs is None or len(gave) != 2 or gave[0].shape != gave[1].shape or gave[1].ndim != 3:
        return False
    return differ(gave[1], gave[0]) and differ(gave[1], gave[1][:, :1])


def keys_of_another_sequence(block: ModuleCall) -> bool:
    """Tell whether the keys of a block's attention stay as they are when its states are others.

    Args:
        block: Its call. False where it cannot be run by itself, or gives several streams of states.
    """
    if block.x is None or block.beside:  # keys of one stream stay where another one changes
        return False
    keys: list[Tensor] = []
    with watching(block.module, lambda call: keys.append(call.key.clone()), of_w=True):
        outputs = _outputs(block, [block.x, other_states(block.x)])
    half = len(keys) // 2  # heads may run one after the other
    same = half > 0 and len(keys) == 2 * half and all(map(torch.equal, keys[:half], keys[half:]))
    return outputs is not None and same


def cross_attentions(block: ModuleCall, count: int) -> list[bool]:
    """Tell of each attention of a block whether its keys stay as they are when the block's states are others.

    Args:
        block: Its call. None is known to where it cannot be run by itself, or gives several streams of states.
        count: How many attentions ran in it.
    """
    keys: list[Tensor] = []
    if block.x is None or block.beside:
        return [False] * count
    with watching(block.module, lambda call: keys.append(call.key.clone()), of_w=True):
        outputs = _outputs(block, [block.x, other_states(block.x)])
    if outputs is None or len(keys) != 2 * count:
        return [False] * count
    return [torch.equal(one, other) for one, other in zip(keys[:count], keys[count:], strict=True)]


@dataclass(frozen=True, eq=False)
class Repeated:
    """What a block gave when it was run again.

    Attributes:
        y: Its output.
        read: The states that each module inside read first, by its name in the block.
        gave: What each module without others inside gave, call by call.
    """

    y: Tensor
    read: dict[str, Tensor]
    gave: dict[str, list[Any]]


def repeated(
    block: ModuleCall,
    factors: Mapping[str, float],
    held: Mapping[str, Sequence[Any]] | None = None,
    carrier: tuple[str, float] | None = None,
) -> Repeated | None:
    """Run a block again with what some of its modules give multiplied.

    Args:
        block: Its call.
        factors: By the names of the modules within the block.
        held: What other modules give instead, call by call; see `Repeated.gave`.
        carrier: A further module and the factor of what it gives, or of the states before the block for an empty name.

    Returns:
        None where the block cannot be run by itself.
    """
    if block.x is None:
        return None
    read: dict[str, Tensor] = {}
    gave: dict[str, list[Any]] = {}
    carried, factor = ("", 1.0) if carrier is None else carrier

    def record(name: str, module: nn.Module, given: Any, output: Any) -> Any:
        del module
        passed = given[0] if given else None
        if isinstance(passed, Tensor) and isinstance(output, Tensor) and torch.equal(passed, output):
            return output  # such as dropout in evaluation
        calls = gave.setdefault(name, [])
        several = () if held is None else held.get(name, ())
        output = several[len(calls)] if len(calls) < len(several) else output
        calls.append(output)
        return factor * output if name == carried and isinstance(output, Tensor) else output

    with Hooks() as hooks:
        for name, module in block.module.named_modules():
            if not name:
                continue
            hooks.before(module, partial(_keep_first, read, name))
            if next(module.children(), None) is None:
                hooks.callback(module.register_forward_hook(partial(record, name)).remove)
            if name in factors:
                hooks.after(module, partial(torch.mul, other=torch.tensor(factors[name])))
        outputs = _outputs(block, [block.x if carried else factor * block.x])
    return None if outputs is None else Repeated(outputs[0], read, gave)


def _keep_first(kept: dict[str, Tensor], name: str, states: Tensor) -> None:
    if name not in kept:
        kept[name] = states.clone()


def proportional(
    none: Tensor, half: Callable[[], Tensor | None], whole: Tensor, twice: Callable[[], Tensor | None]
) -> bool:
    """Tell whether states are a sum with none, half, the whole and twice of a part, or a norm of such a sum.

    The norm has no gain and no bias. Most states that are no sum show it with half of the part: the others are made
    only where they are needed.
    """
    halved = half()
    if halved is None or halved.shape != whole.shape:
        return False
    none, halved, whole = (states.double() for states in (none, halved, whole))
    near = _OF_CHANGE * float((whole - none).norm()) + CHANGED * float(whole.norm())
    added = float((halved - (none + whole) / 2).norm()) <= near
    lengths = [states.norm(dim=-1) for states in (none, halved, whole)]
    normed = all(bool(((length - lengths[2]).abs() <= _OF_CHANGE * lengths[2]).all()) for length in lengths)
    doubled = twice() if added or normed else None
    if doubled is None or doubled.shape != whole.shape:
        return False
    doubled = doubled.double()
    if added and float((doubled - 2 * whole + none).norm()) <= near:
        return True
    return normed and _norm_of_sum(none, halved, whole, doubled, near)


def _norm_of_sum(none: Tensor, half: Tensor, whole: Tensor, twice: Tensor, near: float) -> bool:
    """Tell whether states of equal length are a norm of a sum with none, half, the whole and twice of a part."""
    lengths = twice.norm(dim=-1)
    if not bool(((lengths - whole.norm(dim=-1)).abs() <= _OF_CHANGE * whole.norm(dim=-1)).all()):
        return False
    # A norm gives λ(u + αv): half is that of ρ·none and whole, and so is twice as much with other multiples.
    pair = torch.stack((none, whole), dim=-1)
    solution = torch.linalg.lstsq(pair, half[..., None]).solution
    if not bool((solution > _OF_CHANGE).all()):  # it changes nothing by how much there is, as before a norm of its own
        return False
    ratio = solution[..., :1, 0] / solution[..., 1:, 0]
    expected_twice = 2 * whole - ratio * none
    expected_twice = expected_twice * (lengths / expected_twice.norm(dim=-1).clamp_min(1e-300))[..., None]
    fits = float((pair @ solution - half[..., None]).norm()) <= near
    return fits and float((expected_twice - twice).norm()) <= near


def attends_by_token(block: ModuleCall) -> Literal["yes", "heads first", "no"]:
    """Tell whether the queries and keys of a block's attention are one for each token, in the order of the tokens.

    Each input is repeated with another one of its tokens changed, which must change its own query and key. Those of
    some others may change as well, by a convolution, but not far more.

    Args:
        block: Its call. "yes" where it cannot be run by itself, or the two passes show other attentions.

    Returns:
        "heads first" where they are, but each head stands with all inputs behind the last one (set transformers).
    """
    x = block.x
    if x is None or x.ndim != 3:
        return "yes"
    inputs, tokens = x.shape[:2]
    rows = torch.arange(inputs)
    places = rows % tokens if inputs >= tokens else rows * tokens // inputs
    calls = list[tuple[Tensor, Tensor]]()

    def change(states: Tensor) -> Tensor:
        changed = states.clone()
        changed[rows, places] = other_states(states[rows, places]) + states.std()
        return changed

    with watching(block.module, lambda call: calls.append((call.query.clone(), call.key.clone())), of_w=True):
        outputs = _outputs(block, [x, change(x)])
        if block.beside and outputs is not None:  # of several streams, each may be that of the keys
            calls.clear()
            positional, named = block.arguments
            alike = tree_map(
                lambda value: change(value) if isinstance(value, Tensor) and value.shape == x.shape else value,
                (positional, named),
            )
            outputs = [x, x] if all(_runs(block.module, given) for given in ((positional, named), alike)) else None
    half = len(calls) // 2  # heads may run one after the other
    if outputs is None or not half or len(calls) != 2 * half:
        return "yes"
    pairs = [
        pair for usual, other in zip(calls[:half], calls[half:], strict=True) for pair in zip(usual, other, strict=True)
    ]
    if all(_stands_at(usual, other, places, tokens) for usual, other in pairs):
        return "yes"
    several = inputs > 1 and all(len(usual) > inputs for usual, _ in pairs)
    heads_first = several and all(_stands_at(usual, other, places, tokens, heads_first=True) for usual, other in pairs)
    return "heads first" if heads_first else "no"


def _runs(module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    try:
        with torch.no_grad():
            module(*arguments[0], **arguments[1])
    except Exception:  # what a block of the user's own raises when it runs outside its network
        return False
    return True


def _stands_at(usual: Tensor, other: Tensor, places: Tensor, tokens: int, *, heads_first: bool = False) -> bool:
    """Return whether what differs between queries or keys stands at one place of each input, if anything differs."""
    if usual.shape != other.shape or len(usual) % len(places) or usual.shape[2] != tokens:
        return False
    difference = other - usual
    if heads_first:
        difference = difference.unflatten(0, (-1, len(places))).transpose(0, 1)
    sizes = difference.reshape(len(places), -1, *usual.shape[2:]).norm(dim=(1, 3))
    largest, there = sizes.amax(dim=1), sizes[torch.arange(len(places)), places]
    return not bool(((largest > CHANGED * usual.norm()) & (there < _OF_LARGEST * largest)).any())


def scales_with_length(block: ModuleCall) -> bool:
    """Tell whether a block's logits have a factor that depends on how many tokens there are, such as log n.

    The block is repeated without the last token, and once more with it: its factor may depend on earlier calls.

    Args:
        block: Its call. False where it cannot be run by itself, or where the passes show other attentions.
    """
    x, calls = block.x, list[tuple[float, Tensor, Tensor]]()
    if x is None or x.ndim != 3 or x.shape[1] < 3:
        return False

    def watch(call: AttentionCall) -> None:
        calls.append((call.scale, call.query.clone(), call.key.clone()))

    with watching(block.module, watch, of_w=True):
        outputs = _outputs(block, [x, x[:, :-1], x])
    third = len(calls) // 3  # heads may run one after the other
    if outputs is None or not third or len(calls) != 3 * third:
        return False
    return any(map(_has_other_factor, calls[:third], calls[third : 2 * third], calls[2 * third :]))


def _has_other_factor(
    whole: tuple[float, Tensor, Tensor], less: tuple[float, Tensor, Tensor], again: tuple[float, Tensor, Tensor]
) -> bool:
    """Tell whether the logits of one attention have another factor where the last token is left out."""
    (scale, *usual), (other_scale, *shorter), (third_scale, *repeated_call) = whole, less, again
    if third_scale != scale or not all(map(torch.equal, usual, repeated_call)):
        return False
    both = [_multiple(one, other) for one, other in zip(usual, shorter, strict=True)]
    multiples = [multiple for multiple in both if multiple is not None]
    if len(multiples) < len(both) or not other_scale:
        return False
    return abs(scale / other_scale * prod(multiples) - 1) > _OTHER_FACTOR


def _multiple(usual: Tensor, shorter: Tensor) -> float | None:
    """Return what multiplies queries or keys where there is a token more; None where they differ otherwise."""
    first, other = usual[:, :, : shorter.shape[2]].double(), shorter.double()
    if first.shape != other.shape or usual.shape[2] <= shorter.shape[2]:
        return None
    multiple = float((first * other).sum() / other.square().sum().clamp_min(1e-300))
    return multiple if float((first - multiple * other).norm()) <= _OTHER_FACTOR * float(first.norm()) else None


def _outputs(block: ModuleCall, states: Sequence[Tensor]) -> list[Tensor] | None:
    """Return what a block gives for other states than those of its call; None where it cannot be run by itself."""
    positional, named = block.arguments
    try:
        former = next(tensor for tensor in _tensors(block) if block.x is not None and _read(block, tensor))
        with torch.no_grad():
            several = []
            for state in states:
                x = as_read(block.module, state, former).clone()
                given, by_name = with_state(x, former, positional, named)
                output = states_given(block.module(*given, **by_name))
                several.append(None if output is None else by_token(block.module, output))
    except Exception:  # what a block of the user's own raises when it runs outside its network
        return None
    outputs = [output for output in several if output is not None]
    return outputs if len(outputs) == len(states) else None


def _tensors(block: ModuleCall) -> list[Tensor]:
    positional, named = block.arguments
    several = (*positional, *named.values(), state_of(positional, named))
    return [argument for argument in several if isinstance(argument, Tensor)]


def _read(block: ModuleCall, tensor: Tensor) -> bool:
    """Return whether an argument of a block is of the shape of its states."""
    return block.x is not None and by_token(block.module, tensor).shape == block.x.shape


def differ(one: Tensor, other: Tensor) -> bool:
    """Return whether states differ by more than rounding."""
    return not float((one - other).abs().max()) <= CHANGED * float(other.abs().max())
