"""``tokendynamics inspect``: the kind of a transformer, and where its circuits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tokendynamics.cli._interrupted import Kept, says_what_is_kept
from tokendynamics.cli._options import Half
from tokendynamics.cli._signature import Json, Positive, command
from tokendynamics.cli._terminal import Console, echo_json, table
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.words import plural

if TYPE_CHECKING:
    from tokendynamics.diagnosis import NearStatement
    from tokendynamics.pretrained import Checkpoint


@command("inspect")
@says_what_is_kept
def inspect_command(
    model: str,
    *,
    half: Half | None = None,
    verify: bool = False,
    prompt: str | None = None,
    layer: Positive | None = None,
    allow_pickle: bool = False,
    as_json: Json = False,
    kept: Kept,
) -> None:
    """Print where the queries, keys, values and states of MODEL are.

    They are found by running it. MODEL is the same as for `diagnose`. Without --verify and --prompt no weights are
    read, only the names in the files.

    Options:
        half: Which half of a network with two, such as an encoder-decoder.
        verify: Recompute the attention of every layer from the model's own weights.
        prompt: Also hold a layer against every statement of the theory, with the tokens of this text where they enter
            it: what of the network has to be given up, and which hypotheses are then violated. Takes about a minute.
        layer: Which layer that is, counted from 1; the middle one if not given. Needs --prompt.
        allow_pickle: Also read pickled weights; use it for sources that you trust.
        as_json: Print the record as JSON on standard output.
    """
    from tokendynamics.diagnosis import nearest_statements
    from tokendynamics.pretrained import load
    from tokendynamics.provenance.manifest import plain

    if layer is not None and prompt is None:
        raise ArgumentValueError("layer", "--layer together with --prompt", f"--layer {layer} alone")
    kept.models([model])
    checkpoint = load(model, half=half, allow_pickle=allow_pickle)
    if verify:
        for _ in checkpoint.iter_attention():
            pass  # reading verifies
    near = [] if prompt is None else nearest_statements(checkpoint, prompt, layer)
    if as_json:
        facts = {
            "model": checkpoint.name,
            "architecture": vars(checkpoint.architecture),
            "notes": list(checkpoint.notes),
        }
        echo_json(
            plain(
                facts | {"layout": checkpoint.verified_layout().plain(), "verified": verify, "nearest_statements": near}
            )
        )
    else:
        _print(checkpoint, verified=verify)
        _print_statements(near)


def _print(checkpoint: Checkpoint, *, verified: bool) -> None:
    from tokendynamics.pretrained.discovery.words import kinds_in_words, whole_in_words

    console, facts = Console(highlight=False), checkpoint.architecture
    millions = f"{facts.parameters / 1e6:,.1f} million parameters"
    size = plural(facts.parameters, "parameter") if facts.parameters < 10**6 else millions
    heading = f"{checkpoint.name}: {facts.model_type}, {size}, width {facts.dim}"
    layout = checkpoint.verified_layout()
    whole = [*whole_in_words(layout), *(("read", note) for note in checkpoint.notes)]
    parts = [(heading, whole), *kinds_in_words(layout, verified=verified)]
    for title, rows in parts:
        table = Table(box=SIMPLE_HEAD, title=Text(title), title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, fact in rows:
            table.add_row(name, Text(fact))
        console.print(table)
    if verified:
        console.print("The factors of every layer reproduce its attention to 1e-5 of the largest entry.")


def _print_statements(near: Sequence[NearStatement]) -> None:
    """Print one row for each statement, the nearest first; nothing without any."""
    if not near:
        return
    from tokendynamics.words import listing

    title = f"The theory and layer {near[0].layer}, the nearest statement first"
    rows = table(
        "statement", "of", "given up", "violated", left=("statement", "of", "given up", "violated"), title=title
    )
    for one in near:
        of = "all heads" if one.head is None else f"head {one.head}"
        violated = [f"{missed.name}: {missed.text}" for missed in one.violated]
        rows.add_row(
            Text(one.statement),
            of,
            Text(listing(one.relaxations)),
            Text("; ".join(violated) or f"nothing: {one.prediction}"),
        )
    console = Console(highlight=False)
    console.print(rows)
    console.print(Text(f"Left out of the network in every row: {listing(near[0].always)}."))
