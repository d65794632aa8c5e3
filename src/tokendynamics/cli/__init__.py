"""The command line: one file per command, heavy imports only once a command runs."""

from __future__ import annotations

import click

from tokendynamics._version import __version__
from tokendynamics.cli._check import check_command
from tokendynamics.cli._compare import compare_command
from tokendynamics.cli._diagnose import diagnose_command
from tokendynamics.cli._explore import explore_command
from tokendynamics.cli._inspect import inspect_command
from tokendynamics.cli._reference import reference_group as _reference_group
from tokendynamics.cli._signature import epilog_of as _epilog_of
from tokendynamics.cli._simulate import simulate_command
from tokendynamics.cli._study import study_command
from tokendynamics.cli._sweep import sweep_command
from tokendynamics.cli._train import train_command
from tokendynamics.cli.circuits import circuits_group as _circuits_group

__all__ = ["commands"]


@click.group(
    epilog=_epilog_of("tokendynamics"),
    commands=[
        diagnose_command, compare_command, inspect_command, simulate_command, check_command, sweep_command,
        study_command, train_command, explore_command, _reference_group, _circuits_group,
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(__version__, prog_name="tokendynamics")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of a failure, for a bug report.")
def commands(traceback: bool) -> None:
    """Where do a transformer's tokens go with depth, why, and what can be done about it?"""
