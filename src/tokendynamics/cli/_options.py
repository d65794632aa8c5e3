"""Options that several commands share: results, loading of models, tokens that count, limits for automatic checks."""

from __future__ import annotations

import errno
import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import click

from tokendynamics.cli._signature import Folder, Json, Number, Option, Sinks, whole
from tokendynamics.cli._terminal import echo, line
from tokendynamics.numerics.printable import shortened
from tokendynamics.words import number

if TYPE_CHECKING:
    import xarray as xr

    from tokendynamics.diagnosis import Verdict


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
        raise click.BadParameter(f"{existing} is not a folder that can be written to", param_hint="--out") from None


def file_to_run(spec: Path | None, example: str | None, kind: Literal["simulation", "sweep", "study"]) -> Path | None:
    """Return the file of a command, or print an example and return None.

    Args:
        spec: The file, if it was named.
        example: The name of an example, "list" for all names; None for none.
        kind: What the file describes.

    Raises:
        click.UsageError: Neither or both were named.
    """
    from tokendynamics.specification.examples import example_names, example_text

    if (spec is None) == (example is None):
        raise click.UsageError("expected either SPEC or --example NAME; --example list names the examples")
    if example == "list":
        texts = {name: example_text(name, kind) for name in example_names(kind)}
        titles = {name: text.splitlines()[0].removeprefix("title = ").strip('"# ') for name, text in texts.items()}
        width = max(map(len, titles))
        echo("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
    elif example is not None:
        echo(example_text(example, kind), nl=False)
    return spec


class DeviceMap(click.ParamType):
    """Either "auto", or the device of each module by name.

    >>> DeviceMap().convert("embed_tokens=cpu,layers=0", None, None)
    {'embed_tokens': 'cpu', 'layers': 0}
    """

    name = "devices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the argument `device_map` of `tokendynamics.load`."""
        if value == "auto":
            return value
        pairs = [part.partition("=") for part in str(value).split(",")]
        if not all(module.strip() and device.strip() for module, _, device in pairs):
            came = shortened(repr(value), 100)
            self.fail(
                f"expected 'auto', or modules and devices such as embed_tokens=cpu,layers=0, got {came}", param, ctx
            )
        if len({module.strip() for module, _, _ in pairs}) < len(pairs):
            self.fail(f"a module is named twice in {shortened(repr(value), 100)}", param, ctx)
        named = {module.strip(): device.strip() for module, _, device in pairs}
        return {module: int(word) if re.fullmatch(r"[0-9]{1,4}", word) else word for module, word in named.items()}


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How each of several models is read, named as the arguments of `tokendynamics.load`.

    Attributes:
        stream: Whether to read each block's weights just before it runs.  [default: where they do not fit into memory]
        device: Where the forward pass runs, such as cuda:0.
        device_map: Use several devices: filled in turn, or as named.
        half: Which half of a network with two, such as an encoder-decoder.
        allow_pickle: Also read pickled weights; use it for sources that you trust.
        cache: Folder for converted GGUF files.  [default: TOKENDYNAMICS_CACHE, or the user's cache]
    """

    stream: bool | None = None
    device: str = "cpu"
    device_map: Annotated[Any, Option(type=DeviceMap(), metavar="auto|MODULE=DEVICE,…")] = None
    half: Half | None = None
    allow_pickle: bool = False
    cache: OutFolder | None = None


@dataclass(frozen=True, kw_only=True)
class Loading(ReadingOptions):
    """How one model is loaded: further arguments.

    Attributes:
        adapter: Folder of an adapter (such as LoRA) to apply.
        dtype: Precision of the forward pass.
    """

    adapter: OutFolder | None = None
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"


NOT_MET = 3
"""Exit code if a limit is not met; the results are written all the same."""


class States(click.ParamType):
    """States of a verdict, separated by commas; a hyphen may stand for a space.

    >>> States().convert("rank-collapse, consensus", None, None)
    ('rank collapse', 'consensus')
    """

    name = "states"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names."""
        # Slow to import, and only needed with the option.
        from tokendynamics.diagnosis.tracing.layer_states import State

        states = get_args(State)
        parts = value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))
        names = tuple(part.replace("-", " ") for part in parts)
        wrong = next((part for part in names if part not in states), None)
        if wrong is not None:
            came = shortened(repr(wrong), 100)
            known = ", ".join(state.replace(" ", "-") for state in states)
            self.fail(f"expected states among {known}, separated by commas, got {came}", param, ctx)
        return names


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the states after the last layer must meet.

    Attributes:
        fail_on: Exit with code 3 if the state after the last layer or the final norm is one of these, as rank-collapse.
        max_similarity: Exit with code 3 if the within-text similarity κ′ after the last layer is above X.
        quiet: Print no progress, notes or results, only limits that are not met.
    """

    fail_on: Annotated[Any, Option(type=States(), metavar="STATE[,STATE]")] = None
    max_similarity: Annotated[float | None, Option(type=Number(up_to=1.0), metavar="X")] = None
    quiet: bool = False

    def code_for(self, judged: Sequence[tuple[str, Verdict, xr.Dataset]]) -> int:
        """Return the exit code of a command, after one line on standard error if a limit is not met.

        Args:
            judged: Name, verdict and trace of each network that must meet the limits; an undefined κ′ meets none.
        """
        reasons = []
        for name, verdict, trace in judged:
            kappa, most = float(trace.consensus_relative.sel(site="feed_forward")[-1]), self.max_similarity
            if verdict.state in (self.fail_on or ()):
                reasons.append(f"{name} ends in “{verdict.state}” (--fail-on)")
            elif verdict.final_norm in (self.fail_on or ()):
                reasons.append(f"{name} is in “{verdict.final_norm}” after the final norm (--fail-on)")
            if most is not None and math.isnan(kappa):
                reasons.append(
                    f"{name}: κ′ is undefined, so it cannot be compared with {number(most)} (--max-similarity)"
                )
            elif most is not None and kappa > most:
                reasons.append(f"{name}: κ′ {number(kappa)} is above {number(most)} (--max-similarity)")
        if reasons:
            line(f"limit not met: {'; '.join(reasons)}")
        return NOT_MET if reasons else 0
