"""A statement of `spheres`: exponential weights between the neighbours of a graph."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import LIMIT, flow_of_run, integration_tolerance, never_rises, tends_to_zero
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas import _masks
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    weights = flow.attention.weights
    return (
        measured.on_sphere(flow),
        measured.fact("dim at least 3", flow.dim >= 3, f"dim is {flow.dim}"),
        measured.fact("exponential weights", weights == "exponential", f"weights are {weights}"),
        measured.no_positions(flow),
        measured.one_head(flow),
    )


@measured.given(measured.multiples_of_the_identity)
def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    seen = _masks.visible(flow, start.shape[-2])
    rising = measured.at_most("β at least 0", -measured.temperature(flow)[0], 1e-12, "−β")
    text = "almost every start ends in one point; whether this one is among them cannot be read off it"
    graph = (_masks.both_ways(seen), _masks.connected(seen))
    return (rising, *graph, measured.assumed("generic start", text))


def _predict(flow: Flow, start: Tensor) -> Prediction:
    return Prediction("from almost every start all tokens of the connected graph end in one point", limit="one point")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double().cpu()
    seen = _masks.visible(flow, states.shape[-2]).double()
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
        name="spheres-graph",
        title="On spheres tokens of a connected graph meet from almost every start",
        equations="the abstract",
        erratum="",
        structure=_structure,
        hypotheses=_hypotheses,
        predict=_predict,
        conditions=_conditions,
        beyond=("graph",),
    ),
)
