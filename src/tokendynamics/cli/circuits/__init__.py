"""``tokendynamics circuits``: one-layer transformers on pairs of categories, built by hand or learned."""

from __future__ import annotations

import click

from tokendynamics.cli._signature import epilog_of as _epilog_of
from tokendynamics.cli.circuits._build import build_command
from tokendynamics.cli.circuits._evidence import evidence_command
from tokendynamics.cli.circuits._landscape import landscape_command
from tokendynamics.cli.circuits._learn import learn_command
from tokendynamics.cli.circuits._options import Group as _Group

__all__ = ["circuits_group"]


@click.group(
    "circuits",
    cls=_Group,
    epilog=_epilog_of("circuits"),
    commands=[build_command, landscape_command, learn_command, evidence_command],
)
def circuits_group() -> None:
    """Is the logic in the attention or in the feed-forward part?

    The task: sequences of categories 1..N, at most M long; for each token the number q_true[previous, current].
    """
