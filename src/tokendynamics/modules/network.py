"""What the networks of this package have in common as transformers' `PreTrainedModel`s, and their blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from tokendynamics.modules._arguments import check_choices, check_heads, check_shares, check_sizes, check_spreads
from tokendynamics.modules._constrained_attention import ConstrainedAttention, Form, Output, Scope, Start
from tokendynamics.modules._regimes import REGIMES
from tokendynamics.modules.matrices import SignedMatrix
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.signatures import typed_arguments


class FeedForward(nn.Module):
    """``W_2 gelu(W_1 x + b_1) + b_2``, token by token.

    Args:
        dim: Features of a token.
        width: Hidden units.
        dropout: Of the output, in training.
    """

    def __init__(self, dim: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(dim, width), nn.Linear(width, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the part's output for states (…, token, dim)."""
        return self.dropout(self.fall(functional.gelu(self.rise(x))))


NORMS = ("pre", "post", "none")

_Module = TypeVar("_Module", bound=nn.Module)


class Block(nn.Module):
    """Attention, then the feed-forward part where there is one, each added to the residual stream.

    Args:
        attention: A layer of states (…, token, dim).
        dim: Features of a token.
        width: Hidden units of the feed-forward part; 0 leaves the part out.
        norms: Before each part ("pre"), after each sum ("post"), or "none".
        norm_eps: What the norms add to the variance.
        dropout: Of what each part adds, entry by entry.
        drop_path: Of what each part adds, for a whole sample at once.
    """

    def __init__(
        self,
        attention: nn.Module,
        dim: int,
        width: int,
        *,
        norms: str = "pre",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norms, normed = norms, norms != "none"
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, norm_eps) if normed else None
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = FeedForward(dim, width, dropout) if width else None
        self.feed_forward_norm = nn.LayerNorm(dim, norm_eps) if width and normed else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states after the layer, for states (…, token, dim)."""
        x = self._added(x, lambda states: self.dropout(self.attention(states)), self.attention_norm)
        if self.feed_forward is not None:
            x = self._added(x, self.feed_forward, self.feed_forward_norm)
        return x

    def _added(self, x: Tensor, part: Callable[[Tensor], Tensor], norm: nn.Module | None) -> Tensor:
        if norm is None:
            return x + self.drop_path(part(x))
        if self.norms == "pre":
            return x + self.drop_path(part(norm(x)))
        return norm(x + self.drop_path(part(x)))


class DropPath(nn.Module):
    """Stochastic depth: in training a sample's update is left out, and one that is kept is divided by its chance.

    There is one draw for each entry of the first axis, and the expectation of the output is the input.

    Args:
        share: Chance that an update is left out.

    Raises:
        ArgumentValueError: No share from 0 to below 1.

    >>> DropPath(0.5).eval()(torch.ones(2, 1))
    tensor([[1.],
            [1.]])
    """

    @typed_arguments
    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        check_shares(drop_path=share)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """Return the updates (sample, …) that are kept, scaled, and zeros for the others."""
        if not self.training or self.share == 0:
            return x
        keep = 1 - self.share
        kept = torch.empty(len(x), *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(keep)
        return x * (kept / keep)


def drawn_apart(make: Callable[[], _Module]) -> _Module:
    """Return the module that `make` makes, from draws of its own.

    What an attention draws differs between regimes; all that is drawn after it shall be the same in each.
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


IGNORED = -100
"""The label of what is in no loss."""
_WITHOUT_EFFECT = ("use_cache", "cache_position", "token_type_ids", "num_items_in_batch", "skip_logits")
"""Arguments of a forward pass that do not affect the results here, and may have any value."""


class RegimeNetwork(PreTrainedModel):
    """A network that starts as its constructors draw it, and whose modules know how to start anew."""

    base_model_prefix = "model"
    starts_as_constructed = True
    """An untrained network of the same configuration is constructed: nothing is drawn after that."""
    accepts_loss_kwargs = True
    """A Trainer passes `num_items_in_batch`, the labels of all batches of one step, and does not divide the loss."""
    _no_split_modules: ClassVar = ["Block"]  # pyright: ignore[reportIncompatibleVariableOverride]

    def _init_weights(self, module: nn.Module) -> None:
        """Start a module anew; inner ones come first, so that an attention has the last word on its own."""
        if isinstance(module, SignedMatrix):
            module.reset_signs()
        else:
            getattr(module, "reset_parameters", lambda: None)()

    def _started(self) -> None:
        """Keep what the constructors have drawn: of a seed, regimes differ in their attention alone."""
        if not any(parameter.is_meta for parameter in self.parameters()):
            for module in self.modules():
                vars(module)["_is_hf_initialized"] = True
        self.post_init()


def check_layers(config: Any, sizes: Sequence[str], **further: tuple[str, Collection[str]]) -> None:
    """Refuse a configuration from which no blocks can be built.

    Args:
        config: Of a network.
        sizes: Names of the entries that must be at least 1.
        further: Choices beyond those of every network, see `check_choices`.

    Raises:
        ArgumentValueError: An unknown choice, or sizes that do not fit.
    """
    literals = {"form": Form, "scope": Scope, "output": Output, "value_start": Start}
    known = {"norms": NORMS, "regime": REGIMES, **{name: get_args(literal) for name, literal in literals.items()}}
    check_choices(**further, **{name: (getattr(config, name), choices) for name, choices in known.items()})
    check_sizes(**{name: getattr(config, name) for name in sizes})
    check_heads(hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads)
    check_spreads(skew=config.skew)
    if config.intermediate_size < 0:
        raise ArgumentValueError("intermediate_size", "an integer from 0", config.intermediate_size)


def attention_of(config: Any, **further: Any) -> ConstrainedAttention:
    """Return a layer's attention, with further arguments of `ConstrainedAttention`."""
    choices = {name: getattr(config, name) for name in ("form", "symmetric", "scope", "output", "skew")}
    start = config.value_start if REGIMES[config.regime].made_of_both else "identity"
    sizes = config.hidden_size, config.num_attention_heads
    return ConstrainedAttention(*sizes, config.regime, value_start=start, **choices, **further)


def through_blocks(
    x: Tensor, layers: Iterable[nn.Module], norm: nn.Module | None, keep: bool | None
) -> BaseModelOutput:
    """Return the states (batch, token, dim) after all layers and the last norm.

    Args:
        x: States before the first layer.
        layers: Blocks.
        norm: The last norm, where there is one.
        keep: Whether to return the states after every layer, too, the last ones after the last norm.
    """
    states = [x]
    for layer in layers:
        states.append(layer(states[-1]))
    if norm is not None:
        states[-1] = norm(states[-1])
    return BaseModelOutput(last_hidden_state=states[-1], hidden_states=tuple(states) if keep else None)


def mean_over_items(total: Tensor, num_items: Tensor | float | None, here: Tensor | int) -> Tensor:
    """Return the sum of the losses of a batch as its part of the mean over all batches of one step.

    Args:
        total: Sum of the losses.
        num_items: Labels of all batches of the step; None where this batch is all of it.
        here: Labels of this batch.
    """
    if num_items is None:
        num_items = here
    return total / (num_items.to(total.device) if isinstance(num_items, Tensor) else num_items)


def check_further(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a forward pass that would change its results if they were not ignored.

    Args:
        arguments: Those that the network has no names for.

    Raises:
        ArgumentValueError: One that is neither None nor False, and not among those without effect.
    """
    for name, value in arguments.items():
        if value is not None and value is not False and name not in _WITHOUT_EFFECT:
            advice = "this network does not read it: leave it out"
            raise ArgumentValueError(name, "no such argument", type(value).__name__, advice)


def check_mask(mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not one of (batch, token), or padding that is not on the right."""
    if mask is None:
        return
    if mask.shape != shape:
        raise ArgumentValueError("attention_mask", f"shape {tuple(shape)}, zeros for padding", tuple(mask.shape))
    if bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ArgumentValueError("attention_mask", "padding on the right alone", "a token after padding")


def check_positions(positions: Tensor | None, mask: Tensor | None, tokens: int) -> None:
    """Refuse positions, (batch, token) or (token,), other than 0, 1, 2, …: several texts in one row, say.

    Args:
        positions: Those given; None where none are.
        mask: (batch, token), zeros where a position may be any; None where there are no such tokens.
        tokens: Tokens of a row.
    """
    if positions is None:
        return
    of_shape = positions.shape[-1:] == (tokens,)
    other = positions != torch.arange(tokens, device=positions.device) if of_shape else torch.ones(())
    if bool((other if mask is None else other * (mask > 0)).any()):
        advice = "give every text its own row, padded on the right"
        raise ArgumentValueError("position_ids", "0, 1, 2, … in every row", "others", advice)
