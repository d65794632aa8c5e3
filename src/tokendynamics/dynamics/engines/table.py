"""The engines by name: what runs a problem, and what each of them can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokendynamics.dynamics.engines import batched, fixed, layers, stiff
from tokendynamics.dynamics.engines.problem import Outcome, Problem


@dataclass(frozen=True)
class Engine:
    """One way to run a problem.

    Attributes:
        run: From the problem to what was found.
        options: Those of `simulate` that it uses; the others of `OPTIONS` are refused.
        controls_error: Whether it chooses its steps by `rtol` and `atol`: a problem is then reduced to the span of its
            start where that is exact, and states near `atol` are warned of.
        differentiable: Whether gradients flow through it.
        needs_jacobian: Whether it asks for the derivative of the field by formula.
    """

    run: Callable[[Problem], Outcome]
    options: frozenset[str]
    controls_error: bool = False
    differentiable: bool = True
    needs_jacobian: bool = False


ENGINES: dict[str, Engine] = {
    "batched": Engine(batched.run, frozenset({"rtol", "atol", "method"}), controls_error=True),
    "stiff": Engine(
        stiff.run, frozenset({"rtol", "atol"}), controls_error=True, differentiable=False, needs_jacobian=True
    ),
    "layers": Engine(layers.run, frozenset({"tau"})),
    "fixed": Engine(fixed.run, frozenset({"step", "method"})),
}

OPTIONS = ("rtol", "atol", "step", "tau", "method")


def users(option: str) -> tuple[str, ...]:
    """Return the engines that use an option, by name.

    >>> users("method")
    ('batched', 'fixed')
    """
    return tuple(name for name, engine in ENGINES.items() if option in engine.options)
