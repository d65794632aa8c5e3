"""How a block adds its parts to what it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from tokendynamics.pretrained.discovery._maps import Norm

ROUNDING = 1e-3
"""How much of the largest entry of a token two passes may differ by where sums are taken in another order."""

_FACTORS = ("attention_factor", "feed_forward_factor", "attention_skip", "feed_forward_skip")


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How a block's output comes from its input x.

    Attributes:
        kind: "added": y = x + a·attention + b·feed-forward; "norm after": each sum goes through a norm.
        attention: Module, within the block, whose output is the attention's part; in a block without attention that
            of what mixes tokens otherwise, None where nothing does.
        attention_factor: What multiplies it; None where that is learned, or each feature has a factor of its own, which
            is the same for all tokens (layer scales, gates by a condition).
        feed_forward: Likewise the feed-forward part; None for a block that is an attention alone.
        feed_forward_factor: Likewise.
        further: Further modules of the feed-forward part, each with its factor (Macaron's two halves, experts beside a
            part, an adapter behind it). A gate on that part acts on all of them.
        ahead: Which modules of the feed-forward part act before the attention: no state is then one after the attention
            alone.
        attention_skip: What multiplies the state before the attention in the sum with it (DeepNorm's alpha); None where
            that is learned.
        feed_forward_skip: Likewise the state after the attention in the sum with the feed-forward part.
        parallel: Whether both read the same state.
        attention_norm: Norm at the end of the attention's part, inside the branch or after the sum; None without.
        feed_forward_norm: Likewise.
        after_attention: Module at which the state after the attention shows, and which side of it; the module and
            "sum" where it has to be added up; None where it does not show.
        norm: What `attention_norm` is.
    """

    kind: Literal["added", "norm after"]
    attention: str | None
    attention_factor: float | None
    feed_forward: str | None = None
    feed_forward_factor: float | None = 1.0
    further: tuple[tuple[str, float | None], ...] = ()
    ahead: tuple[str, ...] = ()
    attention_skip: float | None = 1.0
    feed_forward_skip: float | None = 1.0
    parallel: bool = False
    attention_norm: str | None = None
    feed_forward_norm: str | None = None
    after_attention: tuple[str, Literal["input", "output", "sum"]] | None
    norm: Norm | None = None

    @property
    def feed_forward_modules(self) -> tuple[str, ...]:
        """All modules of the feed-forward part."""
        return () if self.feed_forward is None else (*(name for name, _ in self.further), self.feed_forward)

    @property
    def plain(self) -> bool:
        """Whether the block hands on the state itself, neither multiplied nor normalized, beside its parts."""
        return self.kind == "added" and self.attention_skip == self.feed_forward_skip == 1.0

    @property
    def factors(self) -> dict[str, float | None]:
        """Every factor of the sums, by what it multiplies."""
        return {name: getattr(self, name) for name in _FACTORS} | dict(self.further)

    def with_fixed_factors(self, other: Residual | None) -> Residual:
        """Return the same with None for each factor that is another one in a second pass with other weights."""
        others = {} if other is None else other.factors

        def known(name: str, one: float | None) -> float | None:
            two = others.get(name)
            same = one is not None and two is not None and abs(one - two) <= ROUNDING * abs(one)
            return one if same or one == 1.0 else None

        factors: dict[str, Any] = {name: known(name, getattr(self, name)) for name in _FACTORS}
        further = tuple((name, known(name, factor)) for name, factor in self.further)
        return replace(self, further=further, **factors)
