"""Trainable attention in a regime that its construction guarantees, and the weights that it builds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import has_torch_function

from tokendynamics.modules._arguments import check_heads, check_shares, check_sizes, check_spreads, placement
from tokendynamics.modules._regimes import Constraint, Regime, as_regime
from tokendynamics.modules.matrices import FreeMatrix, PlacedSpectrum, SignedMatrix, at_least_float32, without_autocast
from tokendynamics.modules.positions import (
    ColumnsBeside,
    LogitTerm,
    Pair,
    Rotary,
    joined,
    joined_attention,
    split,
    terms_attention,
)
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments


def applied_weight(linear: nn.Module, dim: int, like: Tensor) -> Tensor:
    """Return the weight, (output, dim), with which a linear module multiplies.

    Of `nn.Linear` it is its weight, also where that is parametrized, normalised or pruned. Other modules (adapters,
    quantised layers) apply their matrix to the identity, without dropout: that is for single tokens, not for a weight.

    Args:
        linear: An `nn.Linear`, or what has taken its place.
        dim: Features that it reads.
        like: A tensor on the device and of the dtype of its input.

    >>> linear = nn.Linear(3, 2)
    >>> torch.equal(applied_weight(linear, 3, linear.weight), linear.weight)
    True
    """
    if type_before_parametrizations(linear) is nn.Linear:
        # Hooks from before parametrizations renew the weight in a call alone, so that it may be an old one.
        for hook in linear._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm) and hook.name == "weight":
                return hook.compute_weight(linear)
            if isinstance(hook, SpectralNorm) and hook.name == "weight":
                return hook.compute_weight(linear, do_power_iteration=False)
            if isinstance(hook, BasePruningMethod) and hook._tensor_name == "weight":
                return hook.apply_mask(linear)
        return cast(Tensor, linear.weight)
    probe = torch.eye(dim + 1, dim, dtype=like.dtype, device=like.device)  # the last row is zero: the bias alone
    images = _without_dropout(linear).forward(probe)  # no call: hooks are for the tokens of a network
    return (images[:-1] - images[-1]).mT


def _without_dropout(module: nn.Module) -> nn.Module:
    """Return the module where it is not in training, and else a view of it that is not.

    The view has the same parameters. The module itself stays as it is, since other threads may be in it.
    """
    if not any(part.training for part in module.modules()):
        return module
    view = object.__new__(type(module))
    parts = {name: part if part is None else _without_dropout(part) for name, part in module._modules.items()}
    vars(view).update(vars(module) | {"training": False, "_modules": parts})
    return view


Build = Callable[[], Sequence[Tensor]]


class BuiltWeights(nn.Module):
    """Weights without values of their own: one tensor (weight, dim, dim) that a function builds at each read.

    ``weight`` is a parametrization of PyTorch's without original tensors. It is built anew at each read, so that it
    cannot be out of date, whatever writes to the parameters. Within ``torch.nn.utils.parametrize.cached()`` it is built
    once; that cache is for evaluation on one thread.

    Args:
        build: Returns the weights, of one shape.

    >>> built = BuiltWeights(lambda: [torch.eye(2), 2 * torch.eye(2)])
    >>> built.weight.shape
    torch.Size([2, 2, 2])
    """

    weight: Tensor

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build
        self.register_buffer("weight", torch.empty(0))
        parametrize.register_parametrization(self, "weight", _Built(build), unsafe=True)

    def __reduce__(self) -> tuple[type[BuiltWeights], tuple[Build]]:
        """Pickle the function: parametrized modules have no pickled form otherwise."""
        return BuiltWeights, (self._build,)


class _Built(nn.Module):
    """The parametrization of a tensor that has no original."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    def forward(self) -> Tensor:
        return torch.stack(list(self._build()))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        if weight.numel():
            raise ArgumentValueError(
                "weight", "no value, since it is built from other parameters", f"shape {tuple(weight.shape)}"
            )
        return ()


class DerivedLinear(nn.Module):
    """Keys or values of a layer that builds their weight: like `nn.Linear`, with a weight that is no parameter.

    Args:
        built: The weights of the layer.
        position: Which of them this is.
        dim: Features of a token.
        bias: Whether there is one, which is a parameter.
        place: Device and dtype of the bias.
    """

    def __init__(self, built: BuiltWeights, position: int, dim: int, *, bias: bool, **place: Any) -> None:
        super().__init__()
        self._built, self._position = [built], position  # in a list: it is a part of the layer, not of this module
        self.bias = nn.Parameter(torch.zeros(dim, **place)) if bias else None

    @property
    def weight(self) -> Tensor:
        """The weight, (dim, dim), in float32 at least."""
        return self._built[0].weight[self._position]

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias`` in the precision of x.

        Args:
            x: States, (…, token, dim).
            weight: The weight, where the caller has read it; None reads it.
        """
        weight = self.weight if weight is None else weight
        # A network in bfloat16 multiplies in bfloat16; autocast does so by itself.
        return functional.linear(x, weight.to(x.dtype), self.bias)


Form = Literal["congruence", "solve"]
Scope = Literal["sum", "head"]
Output = Literal["free", "identity"]
Start = Literal["identity", "like_w"]

PIVOT = 0.15
"""Pivots of W_sym at the start, where the queries are orthogonal: about as large as the baseline's W."""
NOISE = 0.02
"""Noise of A or B at the start, times 1/√dim."""


class ConstrainedAttention(nn.Module):
    """Multi-head attention whose sums over heads ``W = Σ_h W_h`` and ``A = W (V^T)^{-1}`` have chosen signs.

    With Linear storage (rows are outputs) ``W = wq^T wk``, ``V^T = wv`` and so ``A = W wv^{-1}``. In the form
    ``"congruence"``, ``wk = S wq`` and ``wv = B W`` with two `SignedMatrix`: ``W = wq^T S wq`` and ``A = B^{-1}`` have
    the signs of S and B, and nothing is inverted. In the form ``"solve"``, the paper's, W and A are the `SignedMatrix`
    and ``wk = wq^{-T} W``, ``wv = A^{-1} W``. Both describe the same layers where wq is invertible (`converted`).

    The signs are those of the sum over heads, dim × dim. A single head's W_h has rank dim/heads and no sign, but for
    ``scope="head"``, where S consists of a block for each head and ``W_h = wq_h^T S_h wq_h`` is semidefinite itself. A
    free output projection stands outside the constraint: what contracts without it may expand with it. So does a bias.

    Args:
        dim: Features of a token.
        heads: Heads, a divisor of dim.
        regime: A name in `REGIMES`, or a `Regime`.
        form: ``"congruence"`` or ``"solve"``.
        symmetric: Whether W and A are symmetric (T = 0), the hypotheses of `positional` 3.1 and 3.4; what has no signs
            stays as it is.
        causal: Whether token i sees only tokens j ≤ i.
        scope: ``"sum"`` or ``"head"`` (congruence only).
        output: ``"identity"``: the heads' outputs side by side are the layer's; ``"free"``: a projection follows.
        bias: Of queries, keys, values and a free projection.
        skew: Standard deviation of the entries of T in W at the start; None is 1/√dim, which trains well.
        value_start: ``"identity"``: A (or B) starts near ±I, so that V starts near ±W; ``"like_w"``: A starts with W's
            own L, T and pivots, times the signs of A: V is I where the signs are equal.
        terms: Positions in the logits and remedies, each a module with a method `extended` (`LogitTerm`), such as
            `Rotary`, `DecoupledRotary` and `NegativeDiagonal`. They stand beside W and outside its constraint.
        dropout: Of the attention weights, in training.
        generator: Of the draws; None is PyTorch's own.
        device: Where the parameters are made.
        dtype: Theirs; None is PyTorch's default.

    Raises:
        ArgumentValueError: An unknown option, heads that do not divide dim, or options that exclude each other.

    Source: `positional` D.2, (20)–(28).

    >>> attention = ConstrainedAttention(4, 2, "convergence", generator=torch.Generator().manual_seed(0))
    >>> qk, ov = attention.circuits()
    >>> form = qk @ torch.linalg.inv(ov)
    >>> bool((torch.linalg.eigvalsh(qk + qk.T) > 0).all()), bool((torch.linalg.eigvalsh(form + form.T) < 0).all())
    (True, True)
    >>> attention(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    @typed_arguments
    def __init__(
        self,
        dim: int,
        heads: int,
        regime: str | Regime = "baseline",
        *,
        form: Form = "congruence",
        symmetric: bool = False,
        causal: bool = True,
        scope: Scope = "sum",
        output: Output = "identity",
        bias: bool = False,
        skew: float | None = None,
        value_start: Start = "identity",
        terms: Sequence[nn.Module] = (),
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.regime = as_regime(regime)
        check_spreads(skew=skew)
        check_shares(dropout=dropout)
        _check(dim, heads, form, scope, output, value_start, self.regime)
        self.dim, self.heads, self.form, self.scope = dim, heads, form, scope
        self.symmetric, self.causal, self.output, self.dropout = symmetric, causal, output, dropout
        place = placement(device, dtype)
        self.query = nn.Linear(dim, dim, bias=bias, **place)
        free = {"key": self.regime.w is None, "value": self.regime.free_values}
        self.built = BuiltWeights(self._build) if not all(free.values()) else None
        self.key, self.value = (
            nn.Linear(dim, dim, bias, **place)
            if free[part]
            else DerivedLinear(cast(BuiltWeights, self.built), position, dim, bias=bias, **place)
            for part, position in (("key", 0), ("value", int(not free["key"])))
        )
        self.projection = nn.Linear(dim, dim, bias, **place) if output == "free" else IdentityProjection(self)
        blocks = heads if scope == "head" else 1
        self.query_key = _matrix(self.regime.w, dim, symmetric=symmetric, blocks=blocks, **place)
        self.contraction = _matrix(self.regime.a, dim, symmetric=symmetric, **place)
        self.spectrum = PlacedSpectrum(dim, self.regime.spectrum, **place) if self.regime.spectrum else None
        if not isinstance(terms, list | tuple) or any(
            not isinstance(term, nn.Module) or not callable(getattr(term, "extended", None)) for term in terms
        ):
            raise ArgumentTypeError("terms", "a list of modules with a method `extended`", shown(terms))
        self.terms = nn.ModuleList(terms)
        self.skew, self.value_start = skew, value_start
        self.reset_parameters(generator)

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.dim / self.heads)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for states (…, token, dim), in their shape."""
        pairs, value = self._pairs_and_values(x)
        # Whoever watches PyTorch's functions sees what attention gets: the terms' columns, and the values as they are.
        mix = joined_attention if has_torch_function((x,)) else terms_attention
        dropout = self.dropout if self.training else 0.0
        mixed = mix(pairs, value, causal=self.causal, scale=self._scale, dropout=dropout)
        joined = mixed.transpose(-2, -3).flatten(-2)
        return self.projection(joined)

    def scores(self, x: Tensor) -> Tensor:
        """Return the logits of all pairs, times 1/√(dim/heads) and before the mask, (…, head, token, token)."""
        query, key = joined(self._pairs_and_values(x)[0])
        return query @ key.mT * self._scale

    def weights(self) -> LinearWeights:
        """Return the matrices of queries, keys, values and output in Linear storage, as the layer uses them."""
        parts = [self.query, self.key, self.value, *([self.projection] if self.output == "free" else [])]
        built = iter(() if self.built is None else self.built.weight.unbind())
        matrices = [next(built) if isinstance(part, DerivedLinear) else self._applied(part) for part in parts]
        return LinearWeights(*matrices, *([] if self.output == "free" else [None]))

    @torch.no_grad()
    def head_circuits(self) -> tuple[Tensor, Tensor]:
        """Return each head's qk, with its 1/√(dim/heads), and ov, (head, dim, dim) each, without gradients.

        Those of the content: what positions turn or add is not in them.
        """
        query, key, value, output = self.weights()
        width = self.dim // self.heads
        by_head = (self.heads, width, self.dim)
        qk = query.reshape(by_head).mT @ key.reshape(by_head) / math.sqrt(width)
        placed = torch.eye(self.dim, dtype=value.dtype, device=value.device) if output is None else output
        return qk, placed.T.reshape(by_head).mT @ value.reshape(by_head)

    def circuits(self) -> tuple[Tensor, Tensor]:
        """Return the sums over heads of qk, with its 1/√(dim/heads), and ov, (dim, dim) each, without gradients."""
        qk, ov = self.head_circuits()
        return qk.sum(0), ov.sum(0)

    def conditioning(self) -> dict[str, float]:
        """Return what to watch in training: condition numbers of Q, A and V, and the range of Re λ(V)."""
        query, key, value = (part.detach().double() for part in self.weights()[:3])
        real = torch.linalg.eigvals(value).real
        numbers = {"query_condition": torch.linalg.cond(query), "value_condition": torch.linalg.cond(value)}
        inverse, failed = torch.linalg.inv_ex(value)
        contraction = query.T @ key @ inverse
        numbers["contraction_condition"] = torch.linalg.cond(contraction) if not failed else torch.tensor(math.inf)
        numbers |= {"value_real_lowest": real.min(), "value_real_highest": real.max()}
        return {name: float(number) for name, number in numbers.items()}

    @typed_arguments
    @torch.no_grad()
    def converted(self, form: Form) -> ConstrainedAttention:
        """Return the layer with the same weights in the other form.

        Raises:
            ArgumentValueError: The form asked for cannot hold them: a singular W, a block for each head in the form
                "solve", or signs ``"half"`` with a zero leading minor.
        """
        _check(self.dim, self.heads, form, self.scope, self.output, "identity", self.regime)
        other = copy.deepcopy(self)
        other.form = form
        query, key, value = (part.double() for part in self.weights()[:3])
        if other.query_key is not None:
            other.query_key.take(query.T @ key if form == "solve" else torch.linalg.solve(query, key, left=False))
        if other.contraction is not None:
            product = query.T @ key
            pair = (product, value) if form == "solve" else (value, product)
            other.contraction.take(torch.linalg.solve(pair[1], pair[0], left=False))
        return other

    def _pairs_and_values(self, x: Tensor) -> tuple[list[Pair], Tensor]:
        """Return queries and keys, what terms add beside them, whose products add up to the logits, and the values."""
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise ArgumentValueError("x", f"shape (…, token, {self.dim})", tuple(x.shape))
        queries = self.query(x)
        built = iter(() if self.built is None else self.built.weight.unbind())  # once for keys and values
        keys, values = (
            part(x, weight=next(built)) if isinstance(part, DerivedLinear) else part(x)
            for part in (self.key, self.value)
        )
        queries, keys, values = (split(features, self.heads) for features in (queries, keys, values))
        pairs = [Pair(queries, keys)]
        for term in self.terms:
            if isinstance(term, ColumnsBeside):
                pairs.append(term.beside(queries, x))
            elif type(term) is Rotary and pairs[0].cosine is None:  # a subclass may do otherwise
                pairs[:1] = term.parts(*pairs[0][:2])
            else:
                pairs = [Pair(*cast(LogitTerm, term).extended(*joined(pairs), x))]
        return pairs, values

    def _applied(self, linear: nn.Module) -> Tensor:
        like = next(self.parameters(), torch.empty(0))  # a layer that is quantised may have no parameters
        return applied_weight(linear, self.dim, like)

    def _build(self) -> tuple[Tensor, ...]:
        """Return the weights that are no parameters: of keys, of values, or of both, in float32 at least."""
        query = at_least_float32(self._applied(self.query))
        with without_autocast(query):
            if self.query_key is None:
                key = None
            elif self.form == "congruence":
                key = self.query_key() @ query
            else:
                key = torch.linalg.solve(query.T, self.query_key())
            return (*([] if key is None else [key]), *self._built_values(query, key))

    def _built_values(self, query: Tensor, key: Tensor | None) -> tuple[Tensor, ...]:
        if self.spectrum is not None:  # V^T is what is stored, and has the spectrum of V
            return (self.spectrum(),)
        if self.contraction is None:
            return ()
        product = query.T @ (at_least_float32(self._applied(self.key)) if key is None else key)
        contraction = self.contraction()
        return (contraction @ product if self.form == "congruence" else torch.linalg.solve(contraction, product),)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every parameter anew, but those of `terms`, as the layer was made.

        Args:
            generator: Of the draws; None is PyTorch's own.
        """
        if self.query.weight.is_meta:  # a shell, whose weights are about to be loaded
            return
        spread = 1 / math.sqrt(self.dim)
        for linear in (self.query, self.key, self.value, self.projection):
            if isinstance(linear, nn.Linear):  # as nn.Linear starts, from the generator
                linear.weight.uniform_(-spread, spread, generator=generator)
                if linear.bias is not None:
                    linear.bias.zero_()
        if self.query_key is not None:
            weight = self.query.weight  # in half precision no factorisation is there to draw with
            kind = torch.float64 if weight.dtype == torch.float64 else torch.float32
            weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=kind), generator=generator))
            of_skew = spread if self.skew is None else self.skew
            self.query_key.start(size=PIVOT, noise=NOISE * spread, skew=of_skew, generator=generator)
        if self.spectrum is not None:
            self.spectrum.start(noise=NOISE * spread, generator=generator)
        if self.contraction is not None:
            self.contraction.start(size=1.0, noise=NOISE * spread, generator=generator)
            if self.value_start == "like_w":
                self._start_like_w()

    def _start_like_w(self) -> None:
        query, key, *_ = self.weights()
        contraction = query.T.double() @ key.double()
        if isinstance(self.contraction, SignedMatrix):
            sign = "positive" if self.regime.w in (None, "free") else self.regime.w
            signed = {"dtype": torch.float64, "device": contraction.device}
            of_w = SignedMatrix(self.dim, sign, **signed)
            of_w.take(contraction)
            twin = SignedMatrix(self.dim, self.contraction.sign, symmetric=self.symmetric, **signed)
            twin.load_state_dict(of_w.state_dict() | {"signs": twin.signs}, strict=False)
            contraction = twin()
        matrix = contraction if self.form == "solve" else torch.linalg.inv(contraction)
        cast(SignedMatrix, self.contraction).take(matrix)


class IdentityProjection(nn.Module):
    """The output of a layer whose heads write side by side: a module, so that it is found where others are."""

    bias: None = None

    def __init__(self, layer: ConstrainedAttention) -> None:
        super().__init__()
        self._layer = [layer]

    @property
    def weight(self) -> Tensor:
        """The identity, (dim, dim)."""
        layer = self._layer[0]
        like = next(layer.parameters(), torch.empty(0))
        return torch.eye(layer.dim, dtype=like.dtype, device=like.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of x: what looks for an output projection tells what a module reads from what it gives."""
        return x.clone()


class LinearWeights(NamedTuple):
    """Matrices of a layer in Linear storage, (dim, dim): rows are outputs. None is an output that is the identity."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None


def _matrix(
    constraint: Constraint | None, dim: int, *, symmetric: bool, blocks: int = 1, **place: Any
) -> SignedMatrix | FreeMatrix | None:
    if constraint is None:
        return None
    if constraint == "free":
        return FreeMatrix(dim, **place)
    return SignedMatrix(dim, constraint, symmetric=symmetric, blocks=blocks, **place)


def _check(dim: int, heads: int, form: str, scope: str, output: str, value_start: str, regime: Regime) -> None:
    check_sizes(dim=dim)
    check_heads(dim=dim, heads=heads)
    for name, value, known in (
        ("form", form, get_args(Form)),
        ("scope", scope, get_args(Scope)),
        ("output", output, get_args(Output)),
        ("value_start", value_start, get_args(Start)),
    ):
        if value not in known:
            raise ArgumentValueError(name, " or ".join(map(repr, known)), repr(value))
    if scope == "head" and (form == "solve" or regime.w in (None, "free")):
        raise ArgumentValueError(
            "scope", "'sum' in the form 'solve' and where W has no signs: blocks are of S", "'head'"
        )
    if value_start == "like_w" and not regime.made_of_both:
        raise ArgumentValueError("value_start", "'identity' where W or A is not an independent matrix", "'like_w'")
