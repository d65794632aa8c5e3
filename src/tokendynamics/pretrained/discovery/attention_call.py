"""What one attention of a network was given and gave, and its weights, all or some receivers' at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.pretrained.discovery.rows import row_blocks, rows_of


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What one attention was given and gave: the tensors themselves, which what runs next may overwrite; see `kept`.

    Attributes:
        module: The attention module; None where it called torch's fused attention itself.
        query: Queries, with norms and rotations applied.
        key: Keys, likewise.
        value: Values.
        output: Σ_j w_ij v_j of each head, before the output projection.
        weights_of: Returns the attention weights of some receivers, (batch, head, row, sender).
        mask_of: Returns what is added to their logits, (…, row, sender); None where every token sees every token.
        scale: Factor of the logits.
        soft_cap: Logits s become c·tanh(s/c) before the mask; None without.
        sinks: A learned logit for each head that takes part in the softmax and carries no value; None without.
        bias: Added to the logits by position, (…, head, query, key); None without.
        window: Width of the sliding window; None without.
    """

    module: nn.Module | None
    query: Float[Tensor, "batch head token d_head"]
    key: Float[Tensor, "batch kv_head token d_head"]
    value: Float[Tensor, "batch kv_head token d_value"]
    output: Float[Tensor, "batch token head d_value"]
    weights_of: Callable[[slice], Tensor]
    mask_of: Callable[[slice], Tensor | None]
    scale: float
    soft_cap: float | None
    sinks: Float[Tensor, " head"] | None
    bias: Tensor | None
    window: int | None

    @property
    def weights(self) -> Float[Tensor, "batch head token token"]:
        """The attention weights of all receivers."""
        return self.weights_of(self._all)

    @property
    def mask(self) -> Tensor | None:
        """What is added to the logits; None where every token sees every token."""
        return self.mask_of(self._all)

    @property
    def _all(self) -> slice:
        return slice(0, self.query.shape[2])

    def blocks(self) -> list[slice]:
        """Return which receivers' weights to compute at a time, so that memory is linear in the tokens."""
        return row_blocks(self.query, self.key)

    def by_rows(self) -> Iterator[tuple[slice, Float[Tensor, "batch head row token"], Tensor | None]]:
        """Yield receivers, their attention weights, and what is added to their logits, block by block."""
        for rows in self.blocks():
            yield rows, self.weights_of(rows), self.mask_of(rows)

    def kept(self) -> AttentionCall:
        """Return the same with tensors of its own, of a short input."""
        own = {name: getattr(self, name).clone() for name in ("query", "key", "value", "output")}
        weights, mask, receivers = self.weights, self.mask, self.query.shape[2]
        return replace(
            self,
            **own,
            weights_of=lambda rows: weights[:, :, rows],
            mask_of=lambda rows: rows_of(mask, rows, receivers),
        )
