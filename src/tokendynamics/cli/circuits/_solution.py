"""A hand-built transformer by its name and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

if TYPE_CHECKING:
    from tokendynamics.circuits import OneLayerTransformer, PairTask

SOLUTIONS = (
    "solution-1", "solution-1-uniform", "solution-1-indicators", "solution-1-printed", "solution-2",
    "solution-2-printed", "solution-3", "solution-3-printed", "linear", "softmax-1", "softmax-2", "softmax-3",
    "mixture",
)  # fmt: skip
"""The names of the catalogue, repeated here so that help needs no heavy import."""

_FLAGS = {
    "form": "--form",
    "K": "-K",
    "sharpness": "--sharpness",
    "base": "--base",
    "attention_share": "--share",
    "causal": "--causal",
}


def solution_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the hand-built transformers."""
    options = (
        click.option("--causal", is_flag=True, default=None, help="Mask the attention; the outputs stay the same."),
        click.option(
            "--form", help="Form of solution 1: rows, uniform, indicators, printed; of 2 and 3: exact, printed."
        ),
        click.option(
            "-K", "K", type=float, help="Scale of solutions 2 and 3; too small a K is refused with the least one."
        ),
        click.option("--sharpness", type=float, help="β of softmax-1 and softmax-3.  [default: 40]"),
        click.option("--base", type=float, help="Base of the linear case.  [default: 10]"),
        click.option(
            "--share",
            "attention_share",
            type=float,
            help="Share of q_true that a mixture computes in attention.  [0.5]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def checked_name(name: str) -> str:
    """Return the name of a known solution.

    Raises:
        ArgumentValueError: An unknown name.
    """
    if name not in SOLUTIONS:
        raise ArgumentValueError(expected("SOLUTION", f"one of {', '.join(SOLUTIONS)}", repr(name)))
    return name


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were typed."""
    return {option: value for option, value in options.items() if value is not None}


def build_solution(name: str, task: PairTask, options: Mapping[str, Any]) -> OneLayerTransformer:
    """Return the transformer of that name.

    Args:
        name: One of `SOLUTIONS`.
        task: The task that it computes.
        options: Those of `solution_options`; None where an option was left out.

    Raises:
        ArgumentValueError: An option that this solution does not have, or a value that the constructor refuses.
    """
    from tokendynamics.circuits.constructions import HAND_BUILT

    constructor = HAND_BUILT[name]
    given = given_options(options)
    known = inspect.signature(constructor).parameters
    for option in given:
        if option not in known:
            having = [one for one in SOLUTIONS if option in inspect.signature(HAND_BUILT[one]).parameters]
            owners = " and ".join((", ".join(having[:-1]), having[-1]) if having[1:] else having)
            raise ArgumentValueError(f"{_FLAGS[option]}: is an option of {owners} only, not of {name}")
    return constructor(task, **given)


def default_functional(name: str, options: Mapping[str, Any]) -> str:
    """Return the default of q_true: the linear case computes digits of its base, softmax-2 only positive values."""
    if name != "linear":
        return "positive:0" if name == "softmax-2" else "random:0"
    return "digits" if options["base"] is None else f"digits:{options['base']!r}"
