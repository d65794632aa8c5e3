"""Masks as graphs: who sees whom, directly or through others."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics import Flow
from tokendynamics.theorems._hypotheses import fact
from tokendynamics.theorems.result import Hypothesis


def visible(flow: Flow, tokens: int) -> Tensor:
    """Return whom each token sees, (token, token), receivers first."""
    if flow.attention.mask is not None:
        return flow.attention.mask
    everyone = torch.ones(tokens, tokens, dtype=torch.bool)
    return everyone.tril() if flow.attention.causal else everyone


def _step(reached: Tensor, seen: Tensor) -> Tensor:
    return (seen.double() @ reached.double()) > 0


def reachable(seen: Tensor) -> Tensor:
    """Return whom each token sees directly, through others, or as itself."""
    reached = seen | torch.eye(len(seen), dtype=torch.bool)
    for _ in range(max(len(seen) - 1, 1).bit_length()):
        reached = _step(reached, reached)
    return reached


def radius(seen: Tensor) -> int | None:
    """Return after how many layers some token is seen by all, tokens also seeing themselves; None without a root."""
    with_self = seen | torch.eye(len(seen), dtype=torch.bool)
    reached = torch.eye(len(seen), dtype=torch.bool)
    for layers in range(len(seen)):
        if bool(reached.all(dim=0).any()):
            return layers
        reached = _step(reached, with_self)
    return None


def sees_itself(seen: Tensor) -> Hypothesis:
    """Tell whether every token sees itself."""
    blind = (~seen.diagonal()).nonzero().flatten().tolist()
    return fact("tokens see themselves", not blind, f"token {blind[0]} does not" if blind else "all do")


def has_root(seen: Tensor) -> Hypothesis:
    """Tell whether some token is seen by all, directly or through others; else name two groups without a common one."""
    reached = reachable(seen)
    # Those seen back by all whom they see see nobody outside their group.
    closed = (~reached | reached.T).all(dim=-1).nonzero().flatten().tolist()
    first = closed[0]
    other = next((token for token in closed if not reached[first, token]), None)
    if other is None:
        return fact("a mask with a root", True, f"token {first} is seen by all, directly or through others")
    text = f"tokens {first} and {other} see no common token, directly or through others"
    return fact("a mask with a root", False, text)


def connected(seen: Tensor) -> Hypothesis:
    """Tell whether every token is linked to every other."""
    apart = (~reachable(seen)).nonzero().tolist()
    text = f"tokens {apart[0][0]} and {apart[0][1]} are not linked" if apart else "all tokens are linked"
    return fact("a connected graph", not apart, text)


def both_ways(seen: Tensor) -> Hypothesis:
    """Tell whether tokens see those that see them."""
    one_way = (seen & ~seen.T).nonzero().tolist()
    text = f"token {one_way[0][0]} sees token {one_way[0][1]} and not the other way" if one_way else "all are"
    return fact("links both ways", not one_way, text)
