"""``tokendynamics reference``: the trained networks that a diagnosis is compared with, and one's own among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
from rich.text import Text

from tokendynamics.cli._interrupted import NOTHING, interruptible, stamp
from tokendynamics.cli._signature import Json, Option, command, epilog_of
from tokendynamics.cli._terminal import Console, echo, echo_json, table

TableFile = Annotated[Path | None, Option(type=click.Path(dir_okay=False, path_type=Path))]


@command("add")
def add_command(
    folder: Path, *, texts: str = "its own texts", name: str | None = None, table: TableFile = None
) -> None:
    """Add the network of a saved diagnosis in FOLDER to your table.

    Options:
        texts: What the network read, in words.
        name: What to call the network; a row of this name is replaced.  [default: its own name]
        table: The table.  [default: reference.json in the data folder of the user]
    """
    from tokendynamics.diagnosis import Diagnosis
    from tokendynamics.diagnosis.yardstick import add_network, measured_network, own_table

    path = table or own_table()
    former = stamp(path)
    with interruptible(lambda: NOTHING if stamp(path) == former else f"{path} has the new row"):
        row = measured_network(Diagnosis.open(folder), texts, name)
        add_network(row, path)
        echo(f"Added {row.name} to {path}")


@click.group("reference", invoke_without_command=True, epilog=epilog_of("reference"), commands=[add_command])
@click.option("--table", "user_table", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Your table.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON on standard output.")
@click.pass_context
def reference_group(context: click.Context, user_table: Path | None, as_json: Json) -> None:
    """Print the networks that a diagnosis is compared with.

    First come those of the package, then your own.
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from tokendynamics.diagnosis.yardstick import measured_networks
    from tokendynamics.words import listing, plural

    rows = measured_networks(user_table)
    if as_json:
        echo_json([asdict(row) for row in rows])
        return
    from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
    from tokendynamics.words import estimate, fixed

    console = Console(highlight=False)
    columns = ("network", "layers", "κ′ at the end", "common", "worst state")
    shown = table(*columns, left=("network", "worst state"), unbroken=columns[1:4])
    for row in rows:
        cells = (
            row.name, str(row.layers), estimate(row.consensus_relative, row.interval, CONFIDENCE),
            fixed(row.share_common), row.worst_state,
        )  # fmt: skip
        shown.add_row(*map(Text, cells))
    console.print(shown)
    for texts in dict.fromkeys((row.prompts, row.texts) for row in rows):
        names = [row.name for row in rows if (row.prompts, row.texts) == texts]
        console.print(Text(f"{listing(names)}: {plural(texts[0], 'text')}, {texts[1]}"))
