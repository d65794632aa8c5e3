"""What an error says as a clause of a sentence."""

from __future__ import annotations

import pytest

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import why


@pytest.mark.parametrize(
    ("came", "clause"),
    [
        ("none", "which is missing"),
        ("none (its queries are no map of one tensor)", "which is missing (its queries are no map of one tensor)"),
        ("no softmax was seen in it; it may have none", "but no softmax was seen in it; it may have none"),
        ("no module gives the queries", "but no module gives the queries"),
        ("no such file; copy it", "but there is no such file; copy it"),
        ("nothing for 3 parameters", "but there is nothing for 3 parameters"),
        ("layer 2: no softmax was seen in it", "but in layer 2 no softmax was seen in it"),
        ("its attention is not read: a term acts on it", "but its attention is not read: a term acts on it"),
        ("layer 3: its keys are of another layer", "but in layer 3 its keys are of another layer"),
        ("layer 3", "not layer 3"),
        ("its weights", "not its weights"),
        ("notes", "not notes"),
        ("a matrix", "not a matrix"),
    ],
)
def test_what_came_is_a_clause_where_not_cannot_stand_before_it(came: str, clause: str) -> None:
    error = CheckpointError("network", "a block whose parts are found", came)
    assert why(error, "network") == f"this needs a block whose parts are found, {clause}"
