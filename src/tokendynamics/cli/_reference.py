"""``tokendynamics reference``: the trained networks that a diagnosis is compared with, and one's own among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click

from tokendynamics.cli._signature import Json, Option, command
from tokendynamics.cli._terminal import Console, echo, echo_json, table

_EPILOG = """
\b
Examples:
  tokendynamics reference                                   the networks measured so far
  tokendynamics reference add ./diagnosis-mine --texts "12 support tickets"
"""

Table = Annotated[Path | None, Option(type=click.Path(dir_okay=False, path_type=Path))]


@command("add")
def add_command(folder: Path, *, texts: str = "its own texts", name: str | None = None, table: Table = None) -> None:
    """Add the network of a saved diagnosis in FOLDER to your table.

    Options:
        texts: What the network read, in words.
        name: What to call the network; a row of this name is replaced.  [default: its own name]
        table: The table.  [default: reference.json in the data folder of the user]
    """
    from tokendynamics.diagnosis import Diagnosis
    from tokendynamics.diagnosis.yardstick import add_network, measured_network, own_table

    row, path = measured_network(Diagnosis.open(folder), texts, name), table or own_table()
    add_network(row, path)
    echo(f"Added {row.name} to {path}")


@click.group("reference", invoke_without_command=True, epilog=_EPILOG, commands=[add_command])
@click.option("--table", "own", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Your table.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON on standard output.")
@click.pass_context
def reference_group(context: click.Context, own: Path | None, as_json: Json) -> None:
    """Print the trained networks that a diagnosis is compared with: those of the package, then your own."""
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from tokendynamics.diagnosis.yardstick import measured_networks

    rows = measured_networks(own)
    if as_json:
        echo_json([asdict(row) for row in rows])
        return
    Console(highlight=False).print(_printed(rows))


def _printed(rows: Any) -> Any:
    from rich.text import Text

    from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
    from tokendynamics.words import estimate, fixed

    columns = ("network", "layers", "κ′ at the end", "common", "worst state", "texts")
    shown = table(*columns, left=("network", "worst state", "texts"), unbroken=columns[:4])
    for row in rows:
        cells = (
            row.name,
            str(row.layers),
            estimate(row.consensus_relative, row.interval, CONFIDENCE),
            fixed(row.share_common),
            f"{row.worst_state}, layer {row.worst_layer}",
            f"{row.prompts}: {row.texts}",
        )
        shown.add_row(*map(Text, cells))
    return shown
