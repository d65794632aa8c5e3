"""Options that several commands share."""

from __future__ import annotations

import errno
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import click

from tokendynamics.cli._signature import Json, Option
from tokendynamics.cli._terminal import echo
from tokendynamics.cli._values import Folder, Number, Sinks, whole
from tokendynamics.numerics.printable import shortened

Half = Annotated[Literal["encoder", "decoder", "text", "vision"], Option()]
OutFolder = Annotated[Path, Option(type=Folder())]
SpecFile = Annotated[Path, Option(type=click.Path(exists=True, dir_okay=False, path_type=Path))]


@dataclass(frozen=True, kw_only=True)
class Results:
    """How results are written.

    Attributes:
        data_format: Format of the data files.
        overwrite: Also replace files that no earlier run of this command wrote.
        as_json: Print the summary as JSON on standard output.
        markdown: Print the summary in Markdown on standard output, for a model card or a pull request.
    """

    data_format: Annotated[Literal["zarr", "netcdf"], Option("--format")] = "zarr"
    overwrite: bool = False
    as_json: Json = False
    markdown: bool = False

    def __post_init__(self) -> None:
        """Refuse two forms of the summary."""
        if self.as_json and self.markdown:
            raise click.UsageError("expected either --json or --markdown, got both")


@dataclass(frozen=True, kw_only=True)
class Running:
    """How many runs of a file are spread over processes.

    Attributes:
        workers: Number of processes on this machine.  [default: one for each processor]
        scheduler: Address of a scheduler of dask.distributed, such as tcp://10.0.0.1:8786.
        resume: Continue after a stop, with what is in the folder.
        overwrite: Also replace files that no earlier run of this command wrote.
        as_json: Print the summary as JSON on standard output.
    """

    workers: Annotated[int | None, Option(type=whole(1, 1024))] = None
    scheduler: Annotated[str | None, Option(metavar="ADDRESS")] = None
    resume: bool = False
    overwrite: bool = False
    as_json: Json = False

    def __post_init__(self) -> None:
        """Refuse two places to run."""
        if self.workers is not None and self.scheduler is not None:
            raise click.UsageError("expected either --workers or --scheduler, which has its own workers; got both")


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Which tokens count, named as the arguments of `tokendynamics.trace`.

    Attributes:
        sinks: Which tokens are left out as massive: those detected by norm, none, or positions such as 0,1.
        sink_ratio: A token is massive if its norm is this many times the median of its prompt.
        truncate: Cut prompts longer than the context instead of refusing them.
    """

    sinks: Annotated[Any, Option(type=Sinks(), metavar="detect|none|POSITIONS")] = "detect"
    sink_ratio: Annotated[float, Option(type=Number(above=1.0))] = 4.0
    truncate: bool = False


def as_file_name(name: str) -> str:
    """Return a name with only letters, digits, dots, underscores and hyphens.

    >>> as_file_name("org/model (half)")
    'org-model-half-'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def check_writable(out: Path | None) -> None:
    """Refuse a folder that cannot be written, before minutes are spent on its content.

    Args:
        out: The folder; None for a folder in the current one.

    Raises:
        click.BadParameter: Nothing can be written there.
    """
    target = (out or Path()).absolute()
    try:
        target.stat()
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            why = "is a link to itself" if error.errno == errno.ELOOP else "is longer than a name of a file can be"
            raise click.BadParameter(f"{shortened(str(target), 100)} {why}", param_hint="--out") from None
    existing = next(path for path in (target, *target.parents) if path.exists())
    try:
        # Permissions are not reliable: some file systems refuse what their mode allows.
        with tempfile.TemporaryDirectory(dir=existing, prefix=".probe-"):
            return
    except OSError:
        message = f"{existing} is not a folder that can be written to"
        raise click.BadParameter(message, param_hint="--out") from None


def file_to_run(spec: Path | None, example: str | None, examples: ModuleType) -> Path | None:
    """Return the file of a command, or print an example and return None.

    Args:
        spec: The file, if it was named.
        example: The name of an example, "list" for all names; None for none.
        examples: Has `example_names` and `example_text`.

    Raises:
        click.UsageError: Neither or both were named.
    """
    if (spec is None) == (example is None):
        raise click.UsageError("expected either SPEC or --example NAME; --example list names the examples")
    if example == "list":
        texts = {name: examples.example_text(name) for name in examples.example_names()}
        titles = {name: text.splitlines()[0].removeprefix("title = ").strip('"# ') for name, text in texts.items()}
        width = max(map(len, titles))
        echo("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
    elif example is not None:
        echo(examples.example_text(example), nl=False)
    return spec
