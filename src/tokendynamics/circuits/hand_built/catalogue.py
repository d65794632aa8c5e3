"""The transformers set by hand, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from tokendynamics.circuits.hand_built.linear_case import linear_case
from tokendynamics.circuits.hand_built.mixture import mixture
from tokendynamics.circuits.hand_built.softmax import softmax_solution_1, softmax_solution_3
from tokendynamics.circuits.hand_built.softmax_2 import softmax_solution_2
from tokendynamics.circuits.hand_built.solution_1 import solution_1
from tokendynamics.circuits.hand_built.solution_2 import solution_2
from tokendynamics.circuits.hand_built.solution_3 import solution_3
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask, pair_numbers
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments


@typed_arguments
def linear_solution(task: PairTask, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """`linear_case` for a task that is `pair_numbers` of that base.

    Raises:
        ArgumentValueError: The task asks for another functional.

    >>> from tokendynamics.circuits.pair_task import PairTask, pair_numbers
    >>> linear_solution(PairTask(pair_numbers(3), positions=2))([3, 1]).tolist()
    [3.0, 31.0]
    """
    numbers = pair_numbers(task.categories, base)
    difference = float((task.q_true - numbers).abs().max())
    if difference > 0.0:
        wanted = f"pair_numbers({task.categories}, base={base:g}), which is linear in the two categories"
        advice = "take a solution for any functional, such as solution-1"
        raise ArgumentValueError(expected("q_true", wanted, f"values that differ by up to {difference:g}", advice))
    return linear_case(task.categories, task.positions, base, causal)


HAND_BUILT: Mapping[str, Callable[..., OneLayerTransformer]] = MappingProxyType(
    {
        "solution-1": solution_1,
        "solution-1-uniform": partial(solution_1, form="uniform"),
        "solution-1-indicators": partial(solution_1, form="indicators"),
        "solution-1-printed": partial(solution_1, form="printed"),
        "solution-2": solution_2,
        "solution-2-printed": partial(solution_2, form="printed"),
        "solution-3": solution_3,
        "solution-3-printed": partial(solution_3, form="printed"),
        "linear": linear_solution,
        "softmax-1": softmax_solution_1,
        "softmax-2": softmax_solution_2,
        "softmax-3": softmax_solution_3,
        "mixture": mixture,
    }
)
"""Name → constructor of a `PairTask` and options."""
