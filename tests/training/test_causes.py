"""Every likely cause that is told has a case in which it is not."""

from __future__ import annotations

from typing import Any

import pytest

from tokendynamics.training import Experiment, Recipe
from tokendynamics.training._run import likely_causes

RISEN = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 2.6}]
STEADY = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 2.4}]


def causes(
    history: Any = STEADY, validation: Any = (), model: dict[str, Any] | None = None, **recipe: Any
) -> list[str]:
    made = Recipe(**{"steps": 9, "batch": 1, "learning_rate": 0.02, "warmup": 7, **recipe})
    return likely_causes(Experiment("one", "bytes", "pydoc", model or {}, made), history, validation)


def test_a_risen_loss_speaks_for_the_learning_rate_and_a_steady_one_does_not() -> None:
    (computed,) = causes(RISEN)
    assert computed.startswith("the loss rose from 2 to 2.6 before: the learning rate 0.02 is likely too high")
    assert "7 steps" in computed
    assert not any("rose" in cause for cause in causes(STEADY))
    assert not any("rose" in cause for cause in causes(RISEN[:2]))
    assert not any("rose" in cause for cause in causes([*RISEN[:2], {"step": 3, "loss": None}]))


def test_a_single_loss_above_any_guess_speaks_for_the_learning_rate_too() -> None:
    (computed,) = causes([{"step": 1, "loss": 4.53e7}])
    assert computed == (
        "the last loss was 4.53e+07, more than that of a random guess: the learning rate 0.02 is likely too high; "
        "halve it, or use a warm-up longer than 7 steps"
    )
    assert "more than that of a random guess" not in causes([{"step": 1, "loss": 20.0}])[0]
    assert "more than that of a random guess" in causes([{"step": 1, "loss": 20.1}])[0]


def test_where_nothing_was_seen_it_is_said_and_where_something_was_it_is_not() -> None:
    assert causes(STEADY) == ["no cause was recorded (last loss 2.4): halve the learning rate 0.02"]
    assert causes([]) == ["no cause was recorded (no loss was logged before): halve the learning rate 0.02"]
    assert not any("no cause was recorded" in cause for cause in causes(RISEN))
    assert not any("no cause was recorded" in cause for cause in causes(STEADY, SINGULAR, SOLVE))


SOLVE = {"form": "solve", "regime": "convergence"}
SINGULAR = [{"step": 1, "query_condition": 3e6, "contraction_condition": 10.0}]
SINGULAR_A = [{"step": 1, "query_condition": 9e4, "contraction_condition": None}]


@pytest.mark.parametrize(
    ("model", "validation", "matrices"),
    [
        (SOLVE, SINGULAR, ["the condition number of Q was 3,000,000"]),
        (SOLVE, SINGULAR_A, ["the condition number of A was infinity"]),
        (SOLVE, [*SINGULAR, {"step": 2, "query_condition": 10.0, "contraction_condition": 10.0}], []),
        (SOLVE, [], []),
        (SOLVE, [{"step": 1}], []),
        ({**SOLVE, "form": "congruence"}, SINGULAR, []),
        ({"regime": "convergence"}, SINGULAR, []),
        ({"form": "solve", "regime": "w_only"}, SINGULAR_A, []),  # A is measured and not inverted
        ({"form": "solve", "regime": "w_only"}, SINGULAR, ["the condition number of Q was 3,000,000"]),
        ({"form": "solve"}, SINGULAR, []),
    ],
)
def test_a_singular_matrix_is_named_where_it_is_inverted(
    model: dict[str, Any], validation: Any, matrices: list[str]
) -> None:
    values = [cause for cause in causes(STEADY, validation, model) if "condition number" in cause]
    assert len(values) == len(matrices)
    for cause, beginning in zip(values, matrices, strict=True):
        assert cause.startswith(f"{beginning} and form = 'solve' inverts {beginning[24]}")


def test_what_the_recipe_itself_allows_is_told_for_such_recipes_alone() -> None:
    assert any("65504" in cause for cause in causes(precision="fp16"))
    assert any("not clipped" in cause for cause in causes(clip=None))
    for precision in ("bf16", "float32"):
        assert len(causes(precision=precision, clip=0.5)) == 1
