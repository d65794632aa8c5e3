"""Statements of `masks` and `spheres`: layers and flows whose mask is a graph, and layers with a norm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    deviations_of,
    flow_of_run,
    integration_tolerance,
    layers_only,
    log_tolerance,
    never_above,
    never_rises,
    tends_to_zero,
)
from tokendynamics.theorems._hypotheses import fact
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.contraction import free_softmax
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number, plural


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


def _bare(residual: float, tau: float) -> str | None:
    return None if residual == 0 else f"their residual factor is {number(residual)}, not 0"


def _norm(flow: Flow, name: str) -> Tensor:
    """Return the largest norm that the matrix of the one head has, (*system,)."""
    matrices, _ = measured.observed(getattr(flow.attention, name))
    return torch.stack([torch.linalg.matrix_norm(one.detach().cpu()[..., 0, :, :], 2) for one in matrices]).amax(dim=0)


# --- a graph with a root ---------------------------------------------------------------------------------------------


def _rooted_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    seen = visible(flow, start.shape[-2])
    excess = flow.weight_factor * _norm(flow, "ov") - 1
    allowed = measured.rounding(flow.dim, measured.precision(flow.attention.ov))
    values = measured.at_most("ov does not lengthen", excess, allowed, "ω ‖ov‖ − 1")
    return (sees_itself(seen), has_root(seen), values)


def least_weight(flow: Flow, start: Tensor) -> Tensor:
    """Return a lower bound of the weights that are not 0, (…,), while no token is longer than at the start.

    Logits of one receiver differ by at most ‖qk‖ max_i |x_i| D, D the largest distance of tokens.
    """
    spread = _norm(flow, "qk") * torch.linalg.vector_norm(start, dim=-1).amax(dim=-1) * diameter(start)
    most = int(visible(flow, start.shape[-2]).sum(dim=-1).max())
    return torch.sigmoid(-spread - np.log(max(most - 1, 1)))


def _predict_rooted(flow: Flow, start: Tensor) -> Prediction:
    steps = radius(visible(flow, start.shape[-2])) or 1
    share = float(least_weight(flow, start).pow(steps).min())
    layers = "at each layer" if steps == 1 else f"over {steps} layers"
    text = (
        f"without residual connection tokens become equal exponentially fast: {layers} the largest distance shrinks "
        f"by at least the share {number(share, 3)} of itself, as the mask has a root of radius {steps}"
    )
    return Prediction(text, limit="equal tokens")


def _rooted_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    text = "the largest distance of tokens shrinks by 1 − ε^r over r layers"
    if (refused := layers_only(trajectory, text, _bare)) is not None:
        return refused
    flow, deviations = flow_of_run(trajectory), deviations_of(trajectory)
    start = trajectory.tensor.detach().double().cpu()[..., 0, :, :]
    steps = radius(visible(flow, start.shape[-2]))
    layers = torch.as_tensor(np.asarray(trajectory.times, dtype=float) - float(trajectory.times[0]))
    stretch = float(trajectory.parameters["tau"]) * flow.weight_factor * _norm(flow, "ov")
    logs = deviations.log_diameter.cpu()
    bound = logs[..., :1] + stretch.log()[..., None] * layers
    if steps is not None:
        share = least_weight(flow, start).pow(steps)[..., None]
        bound = bound + torch.log1p(-share.clamp_max(1.0)) * (layers // max(steps, 1))
    above = torch.where(torch.isneginf(logs), -torch.inf, (logs - bound) / (1 + bound.abs()))
    return (
        never_above(above, trajectory, log_tolerance(trajectory), f"{text}, in logarithms", pointwise=True),
        tends_to_zero((logs - logs[..., :1]).exp().nan_to_num(0.0), LIMIT, "the largest distance tends to 0"),
    )


# --- a rest of full rank under a norm --------------------------------------------------------------------------------


def _pattern(flow: Flow, tokens: int) -> Tensor:
    """Return the weights of orthonormal tokens, (*system, token, token): logits are β at a token itself and 0 else."""
    beta = measured.temperature(flow)[0]
    return (beta[..., None, None] * torch.eye(tokens).double()).softmax(dim=-1)


def _rest_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    circuits = (*measured.multiple_of_the_identity(flow), measured.constant(flow.attention.ov, "ov"))
    if not all(one.anywhere for one in circuits):
        return circuits
    tokens, dim = start.shape[-2:]
    square = measured.fact(
        "as many tokens as dimensions", tokens == dim, f"{plural(tokens, 'token')} in {plural(dim, 'dimension')}"
    )
    rows = flow.space.project(start)
    gap = (rows @ rows.mT - torch.eye(tokens).double()).abs().amax(dim=(-2, -1))
    orthonormal = measured.at_most("orthonormal tokens", gap, 1e-10, "the largest entry of X X^T − I")
    if square.holds is False or not orthonormal.anywhere:
        return (*circuits, square, orthonormal)
    beta = measured.temperature(flow)[0]
    # At β = 0 all weights are equal, and no values give the tokens back.
    sharp = measured.above("β not 0", beta.abs(), 1e-10, "|β|")
    if not sharp.anywhere:
        return (*circuits, square, orthonormal, sharp)
    inverse = rows.mT @ torch.linalg.inv(_pattern(flow, tokens)) @ rows
    ov = flow.attention.ov.matrix_at(0.0)[..., 0, :, :].double()
    multiple = (ov * inverse).sum(dim=(-2, -1)) / inverse.square().sum(dim=(-2, -1))
    gap = (ov - multiple[..., None, None] * inverse).abs().amax(dim=(-2, -1)) / ov.abs().amax(dim=(-2, -1))
    values = measured.at_most("ov undoes the weights", gap, 1e-10, "the relative entry of ov − c X^T A^−1 X")
    positive = measured.above("by a positive multiple", multiple, 0.0, "c")
    return (*circuits, square, orthonormal, sharp, values, positive)


def _predict_rest(flow: Flow, start: Tensor) -> Prediction:
    text = (
        "layers with a norm and without residual connection leave these tokens as they are, of full rank; where β > 0 "
        "the rest is seen to be unstable"
    )
    return Prediction(text, limit="the start, of full rank")


def _rest_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    text = "the first layer leaves tokens as they are"
    if (refused := layers_only(trajectory, text, _bare)) is not None:
        return refused
    flow, start = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()[..., 0, :, :]
    after = flow.step(start, int(trajectory.times[0]), residual=0.0)
    shift = torch.linalg.vector_norm(after - start, dim=-1).amax(dim=-1)[..., None]
    excess = torch.cat([shift, torch.full((*shift.shape[:-1], len(trajectory.times) - 1), -torch.inf)], dim=-1)
    return (never_above(excess, trajectory, log_tolerance(trajectory), text, pointwise=True),)


# --- links of a graph on spheres -------------------------------------------------------------------------------------


def _links_structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_sphere(flow),
        measured.fact("dim at least 3", flow.dim >= 3, f"dim is {flow.dim}"),
        measured.weights_are(flow, "exponential"),
        measured.no_positions(flow),
        measured.one_head(flow),
    )


@measured.given(measured.multiples_of_the_identity)
def _links_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    seen = visible(flow, start.shape[-2])
    rising = measured.at_most("β at least 0", -measured.temperature(flow)[0], 1e-12, "−β")
    text = "almost every start ends in one point; whether this one is among them cannot be read off it"
    graph = (both_ways(seen), connected(seen))
    return (rising, *graph, measured.assumed("generic start", text))


def _links_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()
    seen = visible(flow, states.shape[-2]).double()
    beta = measured.temperature(flow)[0][..., None, None, None]
    # e^{β (cos − 1)} over the links: their sum rises, whatever the number of neighbours divides each velocity by.
    energy = ((beta * (states @ states.mT - 1)).exp() * seen).sum(dim=(-2, -1)) / seen.sum()
    text = "fall of the energy of the links relative to that of one point"
    return (
        never_rises(-energy, trajectory, integration_tolerance(trajectory), text),
        tends_to_zero(diameter(states), LIMIT, "the diameter tends to 0"),
    )


STATEMENTS = (
    Statement(
        name="masks-rooted",
        title="Layers whose mask has a root make tokens equal exponentially fast",
        equations="the abstract",
        structure=lambda flow: (*free_softmax(flow), measured.no_positions(flow), measured.one_head(flow)),
        hypotheses=_rooted_hypotheses,
        predict=_predict_rooted,
        conditions=_rooted_conditions,
        subject="layers",
        beyond=("graph",),
    ),
    Statement(
        name="masks-norm",
        title="Layers with a norm can be at rest with tokens of full rank",
        equations="the abstract",
        structure=measured.one_head_on_the_sphere,
        hypotheses=_rest_hypotheses,
        predict=_predict_rest,
        conditions=_rest_conditions,
        subject="layers",
    ),
    Statement(
        name="spheres-graph",
        title="On spheres tokens of a connected graph meet from almost every start",
        equations="the abstract",
        structure=_links_structure,
        hypotheses=_links_hypotheses,
        predict=lambda flow, start: Prediction(
            "from almost every start all tokens of the connected graph end in one point", limit="one point"
        ),
        conditions=_links_conditions,
        beyond=("graph",),
    ),
)
