"""Recognises what a module does to each token, whatever its class is called: a normalization, or an affine map.

A map without a plain weight (of an adapter, quantised, of any other form) is read by what it does to a basis. A module
whose weights are packed (4 or 8 bits, a tensor of a class of its own) runs in its own precision alone. Where a network
is needed in another one, an `Unpacked` map stands for it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.pretrained._torch_attention import has_tokens_first, run_like
from tokendynamics.pretrained.network import deep_copied, weight_is_a_method

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
_TOLERANCE = 1e-4

USUAL_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
"""Epsilons that are tried where a module does not name its own."""


Gain: TypeAlias = Literal["weight", "1 + weight", "√(1 − 1/n) · weight", "none"]


@dataclass(frozen=True)
class Norm:
    """A normalization of the last ``width`` features: RMS norm, or LayerNorm, which takes the mean off first.

    Attributes:
        kind: Which of the two.
        gain: What multiplies the normalized features: the module's weight, 1 + that (Gemma), that of a module which
            divides by the deviation of a sample of n features (`Tensor.std`), or nothing.
        eps: Added under the root.
        width: How many features are normalized together.
        parameter: What the module calls the weight.
        by_function: Whether it is a function in the module, and not what the module does: it has no bias.
        bias_parameter: What the module calls the bias.
    """

    kind: Literal["rms", "layer"]
    gain: Gain
    eps: float
    width: int
    parameter: str = "weight"
    by_function: bool = False
    bias_parameter: str = "bias"

    def apply(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return the normalized features of x (…, n · width).

        >>> Norm("rms", "none", 0.0, 2).apply(torch.tensor([[3.0, 4.0]]), None, None).mul(5 / 2**0.5).tolist()
        [[3.0, 4.0]]
        """
        groups = x.unflatten(-1, (-1, self.width))
        if self.kind == "layer":
            groups = groups - groups.mean(dim=-1, keepdim=True)
        unit = groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + self.eps)
        gain = self.gain_of(weight, x)
        unit = unit if gain is None else unit * gain
        return (unit if bias is None else unit + bias.to(unit)).flatten(-2)

    def gain_of(self, weight: Tensor | None, like: Tensor) -> Tensor | None:
        """Return the gain, (width,), in the type of `like`; None for no gain."""
        if weight is None or self.gain == "none":
            return None
        if self.gain == "1 + weight":
            return 1.0 + weight.to(like)
        return weight.to(like) * (1.0 if self.gain == "weight" else math.sqrt(1 - 1 / self.width))


def norms_by_function(width: int) -> tuple[Norm, ...]:
    """Return the normalizations of a number of features that a function may be, without a gain."""
    kinds: tuple[Literal["rms", "layer"], ...] = ("rms", "layer")
    return tuple(Norm(kind, "none", eps, width, by_function=True) for kind in kinds for eps in USUAL_EPS)


_WITH_GAIN: tuple[tuple[Literal["rms", "layer"], Gain], ...] = (
    ("rms", "weight"),
    ("rms", "1 + weight"),
    ("layer", "weight"),
    ("layer", "1 + weight"),
    ("layer", "√(1 − 1/n) · weight"),
)
_WITHOUT_GAIN: tuple[tuple[Literal["rms", "layer"], Gain], ...] = (("rms", "none"), ("layer", "none"))


def norm_of(module: nn.Module, x: Tensor | None, y: Tensor) -> Norm | None:
    """Return which normalization took x to y; None if it was none.

    Args:
        module: Its weight, bias and epsilon are tried; without a weight, every parameter of its own with one axis.
        x: What it read, (…, width).
        y: What it gave.
    """
    if x is None or x.shape != y.shape or float(x.std()) == 0.0:
        return None
    given = (getattr(module, name, None) for name in ("weight", "bias"))  # of some modules "bias" is a switch
    weight, bias = (parameter if isinstance(parameter, Tensor) else None for parameter in given)
    width = x.shape[-1]
    numbers = (getattr(inner, name, None) for inner in module.modules() for name in _EPS_NAMES)
    named_eps = next((float(number) for number in numbers if isinstance(number, float)), None)
    several_eps = USUAL_EPS if named_eps is None else (named_eps,)
    if any(parameter is not None and parameter.shape != (width,) for parameter in (weight, bias)):
        return None
    named = {"weight": weight} if weight is not None else dict(module.named_parameters(recurse=False))
    weights = {name: given for name, given in named.items() if given is not bias and given.shape == (width,)}
    forms: list[tuple[Literal["rms", "layer"], Gain, str]] = []
    forms.extend((kind, gain, name) for kind, gain in _WITH_GAIN for name in weights)
    forms.extend((kind, gain, "weight") for kind, gain in _WITHOUT_GAIN if weight is None)
    # Of a module that calls its weight otherwise, another parameter may be the bias.
    biases = {"bias": bias} | (weights if weight is None and bias is None else {})
    candidates = [
        Norm(kind, gain, eps, width, name, bias_parameter=shift)
        for kind, gain, name in forms
        for shift in biases
        if shift != name
        for eps in several_eps
    ]
    rows, wanted = x.reshape(-1, width), y.reshape(-1, width).double()
    most = float(_TOLERANCE * wanted.abs().max().clamp_min(torch.finfo(torch.float64).tiny))

    def misfit(norm: Norm, some: slice) -> float:
        given = norm.apply(rows[some].double(), weights.get(norm.parameter), biases[norm.bias_parameter])
        return float((given - wanted[some]).abs().max())

    # What misses the first token, as most modules do, is tried on no other one.
    likely = [norm for norm in candidates if misfit(norm, slice(1)) <= most]
    error, best = min(((misfit(norm, slice(None)), norm) for norm in likely), key=itemgetter(0), default=(inf, None))
    return best if error <= most else None


@dataclass(frozen=True)
class Probed:
    """An affine map that is read by what it does to a basis: of an adapter, of quantised weights, or of any other form.

    Attributes:
        width: How many features it reads.
        kind: The class of its weight where that is of a format of quantised weights, else of its module; of an adapter
            with its package.
    """

    width: int
    kind: str


@dataclass(frozen=True)
class Affine:
    """x ↦ x @ weight + bias."""

    weight: Float[Tensor, "dim out"]
    bias: Float[Tensor, " out"] | None


class HeadFactor(NamedTuple):
    """What multiplies the outputs of an attention's heads: a function of a parameter, by head, feature or both."""

    parameter: str
    function: str
    axes: Literal["head", "feature", "both"]

    def of(self, parameter: Tensor, heads: int, width: int) -> Float[Tensor, " column"] | None:
        """Return the factors of all heads' features, side by side; None where the parameter has another number.

        Args:
            parameter: Its values.
            heads: How many heads there are.
            width: Features of each.

        >>> HeadFactor("scale", "exp", "head").of(torch.zeros(2, 1, 1), 2, 3).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
        """
        factors = HEAD_FACTORS[self.function](parameter).flatten()
        if len(factors) != {"head": heads, "feature": width, "both": heads * width}[self.axes]:
            return None
        by_head = {"head": (heads, 1), "feature": (1, width), "both": (heads, width)}[self.axes]
        return factors.view(by_head).expand(heads, width).flatten()


HEAD_FACTORS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "itself": torch.clone,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "softplus": functional.softplus,
    "1 +": partial(torch.add, 1.0),
}
"""Functions of a parameter that are tried as factors of heads."""

_CONVOLUTIONS: Mapping[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
"""How many axes of places each has."""


def axes_of_places(module: nn.Module) -> int:
    """Return how many axes of places follow the features that a module maps; 0 where the features are the last axis.

    Convolutions of one place are linear maps of its channels, which stand before the places; so are chains of them.

    >>> axes_of_places(nn.Conv2d(3, 5, 1)), axes_of_places(nn.Conv1d(3, 5, 2)), axes_of_places(nn.Linear(3, 5))
    (2, 0, 0)
    """
    inner = getattr(module, "base_layer", None)  # of an adapter
    if isinstance(inner, nn.Module):
        return axes_of_places(inner)
    if type(module) is nn.Sequential:
        kinds = {axes_of_places(child) for child in module if not isinstance(child, nn.Dropout | nn.Identity)}
        return kinds.pop() if len(kinds) == 1 else 0
    axes = next((axes for kind, axes in _CONVOLUTIONS.items() if isinstance(module, kind)), 0)
    convolution: Any = module
    alone = axes and set(convolution.kernel_size) == {1} == set(convolution.stride)
    return axes if alone and convolution.padding in ("valid", "same", (0,) * axes) else 0


def by_token(module: nn.Module, states: Tensor) -> Tensor:
    """Return what a module reads or gives as (input, token, feature) where its features, or its tokens, stand before.

    >>> by_token(nn.Conv2d(3, 5, 1), torch.zeros(2, 3, 4, 4)).shape
    torch.Size([2, 16, 3])
    """
    if states.ndim == 3 and has_tokens_first(module):
        return states.transpose(0, 1)
    axes = axes_of_places(module)
    return states.flatten(2).mT if axes and states.ndim == axes + 2 else states


def as_read(module: nn.Module, states: Tensor, like: Tensor) -> Tensor:
    """Return states (input, token, feature) in the order of a module's own, of the shape of others but for features."""
    if by_token(module, like) is like:
        return states
    if has_tokens_first(module):
        return states.transpose(0, 1)
    return states.mT.reshape(like.shape[0], states.shape[-1], *like.shape[2:])


def applied(module: nn.Module, x: Tensor) -> Tensor:
    """Return what a module gives for features along the last axis, as such."""
    axes = axes_of_places(module)
    if not axes:
        return module(x)
    states = x.reshape(-1, *x.shape[-2:]) if x.ndim > 1 else x[None, None]
    turned = states.mT.reshape(len(states), states.shape[-1], -1, *(1,) * (axes - 1))
    return by_token(module, module(turned)).reshape(*x.shape[:-1], -1)


def probed(module: nn.Module, x: Tensor) -> Probed | None:
    """Return how a module is read by its action; None where it is no affine map, or holds nothing to read."""
    if isinstance(module, Unpacked):
        return module.does if module.does.width == x.shape[-1] else None
    holds = any(True for _ in (*module.parameters(), *module.buffers())) or weight_is_a_method(module)
    widths = _widths_inside(module)
    fits = not widths or x.shape[-1] in widths
    return Probed(x.shape[-1], format_of(module)) if holds and fits and affine_misfit(module, x) < AFFINE else None


def format_of(module: nn.Module) -> str:
    """Return the class of a module's weight where it is one of a format, else that of the module."""
    if isinstance(module, AsStored):
        return module.does.kind
    if hasattr(module, "base_layer"):  # an adapter, whose class may be called as what it wraps
        return f"{type(module).__module__}.{type(module).__name__}"
    weight = getattr(module, "weight", None)
    values = weight.detach() if isinstance(weight, Tensor) else None
    return module._get_name() if values is None or type(values) is Tensor else type(values).__name__


AFFINE = 1e-3
"""How far an affine map in a format with few bits may be from affine, relative to its largest output."""

ROUNDED = 0.1
"""A map that is nearer to an affine one than this, and not affine, rounds what it reads."""


def width_read(module: nn.Module) -> int | None:
    """Return how many features a module reads, or the first of its inner ones that says so; None if none does.

    >>> width_read(nn.Sequential(nn.Dropout(), nn.Linear(4, 6), nn.Linear(6, 5)))
    4
    """
    return next(iter(_widths_inside(module)), None)


def _widths_inside(module: nn.Module) -> list[int]:
    """Return how many features a module and its inner ones read that say so, in the order in which they were added."""
    widths = (getattr(inner, "in_features", None) for inner in module.modules())
    return [width for width in widths if isinstance(width, int)]


def affine_misfit(module: nn.Module, x: Tensor | None) -> float:
    """Return by how much a module misses an affine map of each token, relative to its largest output.

    >>> affine_misfit(nn.Linear(3, 2), torch.ones(1, 4, 3)) < 1e-6, affine_misfit(nn.GELU(), torch.ones(1, 4, 3)) > 0.1
    (True, True)

    Args:
        module: It runs with x, with multiples of it, and with its first token alone.
        x: What it read, (…, feature).
    """
    if x is None:
        return float("inf")
    try:
        with torch.no_grad():
            plus, minus, zero, double = (applied(module, factor * x) for factor in (1.0, -1.0, 0.0, 2.0))
            other = x.flip(-1)
            first, both = applied(module, other), applied(module, x + other)
            alone = plus if x.ndim < 3 else applied(module, x[:, :1])
    except Exception:  # it reads more than one tensor, or other shapes: no projection
        return float("inf")
    if not all(isinstance(output, Tensor) for output in (plus, minus, zero, double, alone)):
        return float("inf")
    # What rounds each token by its own size doubles and turns round like a linear map, and does not add up like one.
    differences = [plus + minus - 2 * zero, double + zero - 2 * plus, both + zero - plus - first]
    if x.ndim > 2:  # tokens may act on each other
        if alone.shape != plus[:, :1].shape:
            return float("inf")
        differences.append(alone - plus[:, :1])
    largest = max(float(difference.abs().max()) for difference in differences)
    misfit = largest / max(float(plus.abs().max()), torch.finfo(torch.float32).tiny)
    return misfit if misfit == misfit else float("inf")


def map_of(module: nn.Module, width: int) -> Affine:
    """Return the map of a module, in its own precision or at least in single precision.

    An adapter on weights in half precision runs in single precision, so that their sum is not rounded. Packed weights
    run in their own: what they hold is read without its rounding, however large the bias is.

    Args:
        module: Affine. A plain convolution of one place holds its map as it is.
        width: How many features it reads.
    """
    packed, plain = (
        is_packed(module) or _of_whole_numbers(module),
        type(module) in _CONVOLUTIONS and getattr(module, "groups", 0) == 1,
    )
    if plain and not packed and axes_of_places(module):
        weight, bias = (getattr(module, name) for name in ("weight", "bias"))
        return Affine(weight.detach().flatten(1).mT, None if bias is None else bias.detach())
    dtype, device = _runs_in(module, width) if packed else (_dtype_of(module), _device_of(module))
    halved = dtype is not None and dtype in _LARGE_ENOUGH
    if halved and not packed:
        module, dtype = in_single_precision(module), torch.float32
    eye = torch.eye(width, dtype=dtype, device=device)
    # Of one input, as states are: what turns its axes by itself takes no others.
    eye = eye if packed else eye[None]
    with torch.no_grad():
        bias = applied(module, torch.zeros_like(eye[..., :1, :])).reshape(-1)
        if not (packed and halved):
            return Affine(applied(module, eye).reshape(width, -1) - bias, bias)
        factor = _LARGE_ENOUGH[eye.dtype] if bool(bias.any()) else 1.0
        weight = (applied(module, factor * eye).float() - applied(module, -factor * eye).float()) / (2 * factor)
    return Affine(weight, bias.float())


_LARGE_ENOUGH = {torch.bfloat16: 2.0**24, torch.float16: 2.0**6}
"""Multiples of a basis beside whose outputs a bias is lost in rounding, and which half precision holds."""


def bias_of(module: nn.Module, width: int) -> Tensor:
    """Return what an affine map, of this many features, gives for zeros without its hooks, in its own precision."""
    dtype, device = _runs_in(module, width) if is_packed(module) else (_dtype_of(module), _device_of(module))
    former = [(inner, inner._forward_hooks, inner._forward_pre_hooks) for inner in module.modules()]
    try:
        for inner, _, _ in former:
            inner._forward_hooks, inner._forward_pre_hooks = OrderedDict(), OrderedDict()
        with torch.no_grad():
            return applied(module, torch.zeros(1, 1, width, dtype=dtype, device=device)).reshape(-1)
    finally:
        for inner, after, before in former:
            inner._forward_hooks, inner._forward_pre_hooks = after, before


def is_packed(module: nn.Module) -> bool:
    """Whether a module's own weight is no tensor of real numbers: there is nothing to take to another precision."""
    values = [value.data for value in module.parameters(recurse=False)]
    packed = any(type(value) is not Tensor or not value.is_floating_point() for value in values)
    if packed or weight_is_a_method(module):
        return True
    return _of_whole_numbers(module) and isinstance(getattr(module, "in_features", None), int)


def _of_whole_numbers(module: nn.Module) -> bool:
    """Whether a module holds a matrix of whole numbers, such as a packed weight or a table of places, in a buffer."""
    return any(value.ndim > 1 and not value.is_floating_point() for value in module.buffers(recurse=False))


def _dtype_of(module: nn.Module) -> torch.dtype | None:
    """Return the precision that a module says it runs in, else that of its first tensor of real numbers, if any."""
    named = getattr(module, "compute_dtype", None)
    if isinstance(named, torch.dtype):
        return named
    tensors = (*module.parameters(), *module.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))


def _runs_in(module: nn.Module, width: int) -> tuple[torch.dtype, torch.device]:
    """Return the precision and the place in which a packed module runs: where it does not say, those that it takes."""
    device, stated = _device_of(module), _dtype_of(module)
    candidates = (torch.float32, torch.bfloat16, torch.float16) if stated is None else (stated,)
    taken = (dtype for dtype in candidates if _takes(module, torch.zeros(1, width, dtype=dtype, device=device)))
    return candidates[0] if len(candidates) == 1 else next(taken, torch.float32), device


def _takes(module: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad():
            module(x)
    except Exception:  # whatever its kernel says of a precision that it does not take
        return False
    return True


class AsStored(nn.Module):
    """A packed module, which runs in its own precision between others in another one.

    Attributes:
        does: How it is read.
        in_features: How many features it reads.
        precision: In which it runs.
        place: Where.

    Args:
        module: It is not copied.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        vars(self)["module"] = module  # no child, whose tensors would be taken to another precision
        self.in_features = width_read(module) or 1
        self.does = Probed(self.in_features, format_of(module))
        self.precision, self.place = _runs_in(module, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the module gives."""
        module: nn.Module = vars(self)["module"]
        return module(x.to(self.place, self.precision)).to(x)


class Unpacked(nn.Module):
    """The map of a packed module in single precision.

    Attributes:
        does: How the module itself is read.
        weight: (out, in).
        bias: None without.

    Args:
        does: How the module is read.
        affine: Its map.
    """

    def __init__(self, does: Probed, affine: Affine) -> None:
        super().__init__()
        self.does = does
        self.weight = nn.Parameter(affine.weight.mT, requires_grad=False)
        self.bias = None if affine.bias is None else nn.Parameter(affine.bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of x."""
        return functional.linear(x, self.weight.to(x), None if self.bias is None else self.bias.to(x))


def unpacked(module: nn.Module, *, values: bool = True) -> nn.Module:
    """Return what stands for a packed module in single or double precision: its map where it is one, else itself.

    Args:
        module: It says how many features it reads.
        values: Whether its numbers matter; zeros, which take no room, stand for them otherwise.
    """
    width = width_read(module) or 1
    dtype, device = _runs_in(module, width)
    if dtype not in _LARGE_ENOUGH:
        return AsStored(module)
    # Numbers, and sums of them, that half precision holds exactly; one is larger, as where a scale is of the largest.
    several = torch.randint(-4, 5, (2, width), generator=torch.Generator().manual_seed(_SEED)) / 8.0
    several[:, 0] = 2.5
    rows = torch.stack((torch.zeros(width), *several, several.sum(dim=0))).to(device, dtype)
    with torch.no_grad():
        bias, first, second, both = module(rows).float()
    misfit = (both + bias - first - second).norm() / (first - bias).norm().clamp_min(torch.finfo(torch.float32).tiny)
    if not float(misfit) <= _ROUNDINGS * torch.finfo(dtype).eps:
        return AsStored(module)
    affine = Affine(torch.zeros(()).expand(width, len(bias)), torch.zeros(()).expand(len(bias)))
    affine = map_of(module, width) if values else affine
    return Unpacked(Probed(width, format_of(module)), Affine(affine.weight, affine.bias if bool(bias.any()) else None))


_SEED = 5

_ROUNDINGS = 1.5
"""By how many epsilons of its precision a packed map may miss a sum; one that rounds to 8 bits what it reads misses by
twice as many in the coarsest precision, and by far more in others."""


def in_single_precision(network: nn.Module, *, values: bool = True) -> nn.Module:
    """Return a copy of a network in single precision, with what stands for its packed modules; see `unpacked`.

    Args:
        network: Any.
        values: Whether the numbers of its packed weights matter.
    """
    packed = [module for module in network.modules() if is_packed(module) and width_read(module) is not None]
    copied = deep_copied(network, {id(module): unpacked(module, values=values) for module in packed})
    run_like(copied, network)
    return nn.Module.float(copied)  # transformers' own refuses networks with packed weights
