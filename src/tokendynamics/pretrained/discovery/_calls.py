"""What goes into and comes out of every module of a network during one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained._parameter_products import recording
from tokendynamics.pretrained._raw_projections import raw_projections
from tokendynamics.pretrained._torch_attention import projections_apart
from tokendynamics.pretrained.discovery._functions import NOT_FOLLOWED
from tokendynamics.pretrained.discovery._joined_heads import heads_in, with_all_heads
from tokendynamics.pretrained.discovery._maps import Norm, as_read, by_token, norm_of
from tokendynamics.pretrained.discovery.attention_call import AttentionCall, places_of
from tokendynamics.pretrained.discovery.interface import watching
from tokendynamics.pretrained.length_dependence import as_before
from tokendynamics.pretrained.network import copied, ids_checked, weight_is_a_method, without_cache
from tokendynamics.pretrained.other_libraries import silenced

STATES = "hidden_states"


def states_given(output: Any) -> Tensor | None:
    """Return the states in what a module gave; None where there are none.

    Modules give a tensor, a tuple or a list with the states first (OpenAI's GPT), a named tuple of several tensors
    (Reformer), a dictionary, a dataclass or a namespace. Attention weights that come before the states are passed over,
    and so are masks (token, token) in what has names.

    >>> import torch
    >>> states_given([torch.ones(2), None]).tolist()
    [1.0, 1.0]
    >>> states_given({"weights": torch.full((1, 2, 2), 0.5), "out": torch.zeros(1, 2, 1)}).shape
    torch.Size([1, 2, 1])
    """
    if isinstance(output, Tensor):
        return output
    named = getattr(output, STATES, None)
    if isinstance(named, Tensor):
        return named
    tensors = _tensors_in(output)
    if len(tensors) < 2:
        return next(iter(tensors), None)
    several = tensors if isinstance(output, tuple | list) else sorted(tensors, key=lambda tensor: tensor.ndim < 3)
    return next((tensor for tensor in several if not _are_weights(tensor)), tensors[0])


def all_states_given(output: Any) -> list[Tensor]:
    """Return every tensor of real numbers among what a module gave that has the shape of its states."""
    states = states_given(output)
    if states is None or isinstance(output, Tensor):
        return [] if states is None else [states]
    alike = [tensor for tensor in _tensors_in(output) if tensor.shape == states.shape and tensor.is_floating_point()]
    return alike or [states]


def with_states_given(output: Any, states: Tensor) -> Any:
    """Return what a module gave with other states in it.

    >>> import torch
    >>> with_states_given((None, torch.ones(1)), torch.zeros(1))
    (None, tensor([0.]))
    >>> with_states_given({"out": torch.ones(1)}, torch.zeros(1))
    {'out': tensor([0.])}
    """
    former = states_given(output)
    if isinstance(output, Tensor) or former is None:
        return states
    if isinstance(output, tuple | list):
        several = [states if entry is former else entry for entry in cast("list[Any]", output)]
        if isinstance(output, list):
            return several
        return type(output)(*several) if hasattr(output, "_fields") else tuple(several)
    changed = copy(output)  # of its own class, which may have attributes (outputs of transformers)
    for name, entry in _entries(output).items():
        if entry is former and isinstance(changed, Mapping):
            cast("Any", changed)[name] = states
        elif entry is former:
            object.__setattr__(changed, name, states)  # also of a frozen dataclass
    if getattr(changed, STATES, None) is former:  # a property, or a slot
        setattr(changed, STATES, states)
    return changed


def _entries(output: Any) -> dict[str, Any]:
    """Return what a dictionary, a dataclass or another object holds, by name, in its order."""
    if isinstance(output, Mapping):
        return dict(cast("Mapping[str, Any]", output))
    if is_dataclass(output):
        return {field.name: getattr(output, field.name, None) for field in fields(output)}
    return dict(getattr(output, "__dict__", {}))


def _tensors_in(output: Any) -> list[Tensor]:
    """Return the tensors among what a module gave, in their order."""
    entries = cast("list[Any]", output) if isinstance(output, tuple | list) else _entries(output).values()
    return [entry for entry in entries if isinstance(entry, Tensor)]


_OF_SUMS = 1e-3
"""By how much sums of attention weights may miss 1: those of half precision do by this much."""


def _are_weights(tensor: Tensor) -> bool:
    """Whether a tensor holds attention weights: rows, (..., token, token), that are not negative and sum to 1."""
    if tensor.ndim < 3 or not tensor.is_floating_point() or tensor.shape[-1] == 1 or not tensor.numel():
        return False
    # States fail in their first row already, which takes a fraction of the time of all.
    if not abs(float(tensor[(0,) * (tensor.ndim - 1)].sum()) - 1) <= 2 * _OF_SUMS:
        return False
    sums = tensor.sum(-1)
    return bool((tensor >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), 0.0, _OF_SUMS)


_STATE_NAMES = ("hidden_states", "x", "inputs_embeds", "hidden_state", "query")


Act: TypeAlias = Callable[[Tensor], Tensor | None]
"""What is done with states; those that it returns take their place."""


@dataclass(frozen=True)
class BlockSites:
    """Where the states before and after a block show.

    A block that is a list of modules is no module that runs: its parts run one by one, in a loop of the network.

    Attributes:
        enter: The module within the block that reads the state before it; empty for the block itself.
        leave: The module within the block at which the state after it shows: as its output, or as its output plus
            what a module read.
        added_to: The module, within the block, that read this; None for the same.
        in_place: Whether the network writes into tensors of states, so that one to be kept has to be copied.
    """

    enter: str = ""
    leave: tuple[str, Literal["output", "sum"]] = ("", "output")
    added_to: str | None = None
    in_place: bool = False


AnyHooks = TypeVar("AnyHooks", bound="Hooks")


class EndedError(Exception):
    """Ends a pass from within a hook: nothing beyond it is needed."""


class Hooks(ExitStack):
    """Hooks on modules for a ``with`` block, and what else is to end with it, also where its beginning fails."""

    def __enter__(self: AnyHooks) -> AnyHooks:
        super().__enter__()
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def _prepare(self) -> None:
        """Register them."""

    def enter_all(self, *managers: AbstractContextManager[object]) -> None:
        """Enter several contexts for as long."""
        for manager in managers:
            self.enter_context(manager)

    def before(self, module: nn.Module, act: Act) -> None:
        """Do something with the states that a module reads."""

        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
            states = state_of(positional, named)
            changed = None if states is None else act(by_token(module, states))
            if states is None or changed is None:
                return None
            return with_state(as_read(module, changed, states), states, positional, named)

        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, act: Act) -> None:
        """Do something with the states that a module gives."""

        def hook(module: nn.Module, positional: Any, output: Any) -> Any:
            del positional
            states = states_given(output)
            changed = None if states is None else act(by_token(module, states))
            if states is None or changed is None:
                return None
            return with_states_given(output, as_read(module, changed, states))

        self.callback(module.register_forward_hook(hook).remove)

    def before_block(self, block: nn.Module, sites: BlockSites, act: Act) -> None:
        """Do something with the states before a block.

        Where a network adds up outside of modules, it adds to the tensor itself that the first part reads: other states
        are written into it.
        """
        lasting, outside = _lasting(act, sites), bool(sites.enter) or sites.leave[1] == "sum"
        self.before(block.get_submodule(sites.enter), _written(lasting) if outside else lasting)

    def after_block(self, block: nn.Module, sites: BlockSites, act: Act) -> None:
        """Do something with the states after a block."""
        name, side = sites.leave
        module, given = block.get_submodule(name), list[Tensor]()
        if side == "output":
            self.after(module, _lasting(act, sites))
            return

        def summed(output: Tensor) -> Tensor | None:
            x = given.pop()
            changed = act(x + output)
            return None if changed is None else changed - x

        reader = module if sites.added_to is None else block.get_submodule(sites.added_to)
        self.before(reader, _lasting(given.append, sites))
        self.after(module, summed)


def _lasting(act: Act, sites: BlockSites) -> Act:
    """Return what acts on states that stay as they are: copies, where the network writes into the tensors."""
    return (lambda states: act(states.clone())) if sites.in_place else act


def _written(act: Act) -> Act:
    """Return what acts on states by writing into their tensor."""

    def write(states: Tensor) -> None:
        changed = act(states)
        if changed is None:
            return
        if isinstance(states, nn.Parameter) or isinstance(states._base, nn.Parameter):
            came = "a parameter, which the network itself adds up"
            raise CheckpointError("states", "states before a block that others can stand for", came)
        states.copy_(changed)

    return write


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module.

    Attributes:
        name: The module's name in the network; of a module with several names, the one inside the module that calls it.
        module: The module.
        given: The tensor that it was given, before any noise.
        x: The tensor that it read; None where it was given none of real numbers.
        y: The tensor that it gave; like `given` and `x` by token where it is a convolution of one place.
        arguments: Everything it was given, positional and by name, with the noise.
        start: When it began; every beginning, end and attention of the pass has a number of its own.
        end: When it ended.
        beside: Further tensors of the shape of `y` that it gave.
    """

    name: str
    module: nn.Module
    given: Tensor | None
    x: Tensor | None
    y: Tensor
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    start: int
    end: int
    beside: tuple[Tensor, ...] = ()

    def is_inside(self, other: ModuleCall) -> bool:
        """Whether it began and ended while another one ran."""
        return other.start < self.start and self.end < other.end

    def is_open(self, time: int) -> bool:
        """Whether it ran at a time of the pass."""
        return self.start < time < self.end

    def name_in(self, block: str) -> str:
        """Return the name within a block; empty for the block itself, and for projections of one that attends."""
        return "" if self.name == block else self.name.removeprefix(f"{block}.")

    @cached_property
    def norm(self) -> Norm | None:
        """Which normalization it was; None if it was none."""
        return norm_of(self.module, self.x, self.y)

    @property
    def writes_into_states(self) -> bool:
        """Whether the tensor that it read holds other numbers after the pass."""
        given = state_of(*self.arguments)
        if given is None or self.x is None:
            return False
        return not torch.allclose(by_token(self.module, given), self.x, 0.0, 0.0, equal_nan=True)

    def reads_from(self, other: ModuleCall) -> bool:
        """Return whether this call reads what another one gave."""
        return self.x is not None and self.x.shape == other.y.shape and torch.equal(self.x, other.y)

    @property
    def further(self) -> list[Tensor]:
        """The tensors that it was given beside its states."""
        positional, named = self.arguments
        tensors = [value for value in (*positional, *named.values()) if isinstance(value, Tensor)]
        states = state_of(positional, named)
        return [tensor for tensor in tensors if tensor is not states]

    @property
    def reads_several(self) -> bool:
        """Whether it is an attention of PyTorch whose keys or values come from another tensor than its queries."""
        return _reads_several(self.module, *self.arguments)


@dataclass(frozen=True)
class Pass:
    """All calls of one forward pass, in the order in which they ended, and its attentions with their times.

    Attributes:
        lost: What happened, and when, to logits that were changed in a way that is not read.
        rotations: The modules that gave cosines and sines of positions, in the order in which they ended.
        tables: Those that read a table at whole numbers that are no token ids.
    """

    calls: list[ModuleCall]
    attentions: list[tuple[int, AttentionCall]]
    lost: list[tuple[int, str]] = field(default_factory=list)
    rotations: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def lost_in(self, call: ModuleCall) -> str:
        """Return what happened first to logits or weights inside a call; empty where nothing did."""
        inside = [words for time, words in self.lost if call.is_open(time)]
        return next((words for words in inside if words != NOT_FOLLOWED), inside[0] if inside else "")

    def attentions_in(self, call: ModuleCall) -> tuple[tuple[int, AttentionCall], ...]:
        """Return the attentions that ran inside a call, with their times."""
        return tuple((time, attention) for time, attention in self.attentions if call.is_open(time))

    def with_heads_joined(self) -> Pass:
        """Return the same with attentions whose outputs a module reads or gives side by side as one with all heads.

        The heads are in the order in which they stand there.
        """
        attentions = list(self.attentions)
        sites = [(call.start, call.x) for call in self.calls] + [(call.end, call.y) for call in self.calls]
        read = set[tuple[int, int]]()  # by which width which outputs were read already
        for now, states in sorted(sites, key=lambda site: site[0]):
            before = [attention for attention in attentions if attention[0] < now]
            key = (before[-1][0], states.shape[-1]) if before and states is not None and states.ndim else None
            if key is None or key in read:
                continue
            count, order = heads_in([attention for _, attention in before], states)
            read |= {key} if count else set()
            some = before[len(before) - count :]
            around = [call for call in self.calls if some and call.start < some[0][0] and some[-1][0] < call.end]
            if some[1:] and around:
                whole = with_all_heads([attention for _, attention in some]).in_order(order)
                whole = replace(whole, module=max(around, key=lambda outer: outer.start).module)
                attentions[len(before) - len(some) : len(before)] = [(some[-1][0], whole)]
            elif some and order and not some[0][1].order:
                attentions[len(before) - 1] = (some[0][0], some[0][1].in_order(order))
        return replace(self, attentions=self._heads_beside(attentions))

    def _heads_beside(self, attentions: Sequence[tuple[int, AttentionCall]]) -> list[tuple[int, AttentionCall]]:
        """Return attentions with those of members of a list that read one tensor as one: heads with a map each."""
        groups: list[list[tuple[int, AttentionCall]]] = []
        for attention in attentions:
            alike = bool(groups) and attention[1].has_heads_like(groups[-1][-1][1])
            if alike and self.beside(groups[-1][-1][0], attention[0]) is not None:
                groups[-1].append(attention)
            else:
                groups.append([attention])
        joint: list[tuple[int, AttentionCall]] = []
        for group in groups:
            whole = with_all_heads([attention for _, attention in group]) if group[1:] else group[0][1]
            around = [call for call in self.calls if call.start < group[0][0] and group[-1][0] < call.end]
            if group[1:] and around:
                whole = replace(whole, module=max(around, key=lambda outer: outer.start).module)
            joint.append((group[-1][0], whole))
        return joint

    def beside(self, time: int, other: int) -> tuple[ModuleCall, ModuleCall] | None:
        """Return two members of a list that read one tensor, in each of which one of two attentions alone ran."""
        for one in self.calls:
            owner, _, place = one.name.rpartition(".")
            if not place.isdigit() or one.given is None or not one.is_open(time) or one.is_open(other):
                continue
            for two in self.calls:
                member = two.name.rpartition(".")[0] == owner and two.module is not one.module and two.is_open(other)
                # Blocks that are given a context before their states read one tensor, and others as well.
                if member and _are_equal([one.given, *one.further], [two.given, *two.further]):
                    alone = all(len(self.attentions_in(call)) == 1 for call in (one, two))
                    return (one, two) if alone else None
        return None

    def shape_of(self, block: ModuleCall) -> tuple[int, int]:
        """Return the numbers of inputs and tokens of a block's states."""
        shapes = (call.query.shape for _, call in self.attentions[:1])
        places = next((places for shape in shapes if (places := places_of(shape, block.y)) is not None), None)
        return places or (block.y.shape[0], block.y.shape[1])


def record(
    network: nn.Module, inputs: Mapping[str, Any], noise: Collection[nn.Module] = (), generator: Any = None
) -> Pass:
    """Run a network once and keep what every module read and gave.

    Args:
        network: In evaluation mode.
        inputs: Of its forward pass, by name.
        noise: Modules whose states are given normal noise of the states' own size: a token that is the same for
            every input (a CLS token) would hide which column is which.
        generator: Of that noise.
    """
    with _Recorder(network, noise, generator) as recorder, torch.no_grad(), silenced(), without_cache(network):
        watch = watching(network, recorder.attention, of_w=True, lost=recorder.lost)
        with watch, as_before(network), ids_checked(network, inputs), recording():
            network(**copied(inputs))
        return recorder.found.with_heads_joined()


class _Recorder(ExitStack):
    def __init__(self, network: nn.Module, noise: Collection[nn.Module], generator: Any) -> None:
        super().__init__()
        self.noise, self.generator = noise, generator
        self.names: dict[nn.Module, list[str]] = {}
        for name, module in network.named_modules(remove_duplicate=False):
            self.names.setdefault(module, []).append(name)
            for projection in projections_apart(module):
                self.names.setdefault(projection, []).append(name)
            for projection in raw_projections(module):
                self.names.setdefault(projection, []).append(".".join(filter(None, (name, projection.name))))
        self.found = Pass([], [])
        self.clock = 0
        self.open: list[tuple[int, Tensor | None, Tensor | None, Any]] = []
        self.running: list[tuple[str, nn.Module]] = []
        for module in self.names:
            self.callback(module.register_forward_pre_hook(self._before, with_kwargs=True).remove)
            self.callback(module.register_forward_hook(self._after).remove)

    def _tick(self) -> int:
        self.clock += 2  # so that a block that is no module begins and ends between two events
        return self.clock

    def lost(self, words: str) -> None:
        """Keep what happened to logits that are not read."""
        self.found.lost.append((self._tick(), words))

    def attention(self, call: AttentionCall) -> None:
        """Keep one attention."""
        if call.module is None:
            # What attends by functions may be a module of its own inside the one that projects.
            running = [module for _, module in reversed(self.running)]
            starts = [start for start, *_ in reversed(self.open)]
            inside = (
                module for module, start in zip(running, starts, strict=True) if self._has_projected(module, start)
            )
            call = replace(call, module=next(inside, running[0]))
        running = zip(self.running, self.open, strict=True)
        given = next((given for (_, module), (_, given, *_) in running if module is call.module), None)
        call = call if given is None else call.of_states(given.shape)
        before = self.found.attentions[-1] if self.found.attentions else None
        if before is not None and before[0] == self.clock and before[1].continued_by(call):
            self.found.attentions[-1] = (before[0], before[1].beside(call.kept()))
        else:
            self.found.attentions.append((self._tick(), call.kept()))

    def _has_projected(self, module: nn.Module, start: int) -> bool:
        """Whether a module that began then holds matrices, or has called one that holds its own as buffers."""
        calls = self.found.calls
        after = takewhile(lambda call: call.end > start, reversed(calls))
        return _projects(module) or any(call.start > start and _has_packed(call) for call in after)

    def _before(self, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        x = given = state_of(positional, named)
        changed = None
        if given is not None and module in self.noise and not _reads_several(module, positional, named):
            x = given + given.std() * torch.randn(given.shape, generator=self.generator).to(given)
            changed = positional, named = with_state(x, given, positional, named)
        self.running.append((self._name(module), module))
        kept = None if given is None else by_token(module, given.clone())
        read = kept if x is None or x is given else by_token(module, x.clone())
        self.open.append((self._tick(), kept, read, (positional, named)))
        return changed

    def _after(self, module: nn.Module, positional: Any, output: Any) -> None:
        start, given, x, arguments = self.open.pop()
        name, _ = self.running.pop()
        self.found.rotations.extend([name] if _is_rotation(output) else [])
        self.found.tables.extend([name] if _is_table(module, positional) else [])
        y = states_given(output)
        if y is not None and y.is_floating_point():
            beside = tuple(tensor for tensor in all_states_given(output) if tensor is not y)
            call = ModuleCall(
                name, module, given, x, by_token(module, y.clone()), arguments, start, self._tick(), beside
            )
            self.found.calls.append(call)

    def _name(self, module: nn.Module) -> str:
        """Return the name of a module that begins to run; of several names, the one inside the module that calls it.

        Blocks may share modules (Zamba), which then have a name in each of them.
        """
        names = self.names[module]
        for outer, _ in reversed(self.running if len(names) > 1 else ()):
            inside = next((name for name in names if name.startswith(f"{outer}.")), None) if outer else None
            if inside is not None:
                return inside
        return names[0]


_CONSTANT = 1e-3
"""Largest relative spread of cos² + sin² over a table of angles; half precision rounds them to this."""


def _is_rotation(output: Any) -> bool:
    if not isinstance(output, tuple | list) or len(cast("list[Any]", output)) != 2:
        return False
    one, other = cast("list[Any]", output)
    if not all(isinstance(entry, Tensor) and entry.is_floating_point() for entry in (one, other)):
        return False
    if one.shape != other.shape or not one.numel():
        return False
    radius = one.double().square() + other.double().square()
    return bool(radius.max() > 0 and radius.max() - radius.min() <= _CONSTANT * radius.max())


def _is_table(module: nn.Module, given: Any) -> bool:
    """Say whether a module reads a table at whole numbers that are no token ids: those have one axis of inputs."""
    return isinstance(module, nn.Embedding) and bool(given) and isinstance(given[0], Tensor) and given[0].shape[0] > 2


def _projects(module: nn.Module) -> bool:
    """Whether a module holds matrices, or a module that gives its own by a function, as packed ones do."""
    return any(weight.ndim > 1 for weight in module.parameters()) or any(map(weight_is_a_method, module.modules()))


def _has_packed(call: ModuleCall) -> bool:
    """Whether a module that read states (input, token, feature) holds a matrix as a buffer, as quantised ones do.

    Tables of positions are read with queries, which have an axis for heads.
    """
    if call.x is None or call.x.ndim > 3 or next(call.module.children(), None) is not None:
        return False
    return any(buffer.ndim > 1 and buffer.dtype != torch.bool for buffer in call.module.buffers())


def _are_equal(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    return len(some) == len(others) and all(
        one is not None and other is not None and one.shape == other.shape and torch.equal(one, other)
        for one, other in zip(some, others, strict=True)
    )


def _reads_several(module: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether PyTorch's attention projects keys or values from another tensor than queries."""
    if not isinstance(module, nn.MultiheadAttention):
        return False
    query, key, value = (*positional[:3], *(named.get(name) for name in ("query", "key", "value")[len(positional) :]))
    return not all(isinstance(other, Tensor) and _is_same(other, query) for other in (key, value))


def _is_same(value: Any, tensor: Any) -> bool:
    """Whether a value is a tensor, or another view of the same memory in the same shape."""
    if not isinstance(value, Tensor) or value is tensor:
        return value is tensor
    alike = (value.shape, value.dtype, value.device) == (tensor.shape, tensor.dtype, tensor.device)
    return alike and value.stride() == tensor.stride() and value.data_ptr() == tensor.data_ptr() != 0


def state_of(positional: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Return the first argument of real numbers: the states that a module reads.

    Of a module called by names alone that are none of the usual ones, the first tensor of three axes that is no mask.
    Blocks of an nn.Sequential read them in a tuple or a dictionary, beside a mask.
    """
    candidates = [*positional[:1], *(named.get(name) for name in _STATE_NAMES)]
    if not positional:
        candidates += [
            value for name, value in named.items() if "mask" not in name and getattr(value, "ndim", None) == 3
        ]
    candidates += [states_given(holder) for holder in positional[:1] if _holds_states(holder)]
    return next((entry for entry in candidates if isinstance(entry, Tensor) and entry.is_floating_point()), None)


def _holds_states(value: Any) -> bool:
    """Whether an argument is a tuple, a list or a dictionary whose states are of three axes at least."""
    states = states_given(value) if isinstance(value, tuple | list | Mapping) else None
    return states is not None and states.ndim > 2


def with_state(
    x: Tensor, given: Tensor, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a module with other states: wherever the former ones stand, as query, key and value.

    A cache of transformers, which a call extends by its keys, is left out.
    """

    def other(value: Any) -> Any:
        if hasattr(value, "get_seq_length"):
            return None
        if _holds_states(value) and _is_same(states_given(value), given):
            return with_states_given(value, x)
        return x if _is_same(value, given) else value

    return tuple(map(other, positional)), {name: other(value) for name, value in named.items()}
