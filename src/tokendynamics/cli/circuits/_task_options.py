"""The options that define the task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendynamics.cli._options import whole
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, MemoryLimitError
from tokendynamics.numerics.errors import expected

if TYPE_CHECKING:
    from tokendynamics.circuits import PairTask


Refusal = ArgumentTypeError | ArgumentValueError | MemoryLimitError
_NOT_NAMED_ALIKE = {"task": "--positions"}
"""The library refuses a whole task only if it is too short."""


def renamed(error: Refusal, names: Mapping[str, str]) -> Refusal:
    """Return the error with the argument before its colon renamed; itself where `names` does not have it.

    >>> from tokendynamics.numerics import ArgumentValueError
    >>> str(renamed(ArgumentValueError("law: expected more"), {"law": "--law"}))
    '--law: expected more'
    """
    argument, colon, rest = str(error).partition(":")
    return type(error)(names[argument] + colon + rest) if argument in names else error


def flags_of(command: click.Command) -> dict[str, str]:
    """Return what the user typed for each argument of the library: the longest spelling of each option.

    >>> import click
    >>> flags_of(click.Command("one", params=[click.Option(["--x", "sequences"]), click.Argument(["model"])]))["x"]
    '--x'
    """
    flags = dict(_NOT_NAMED_ALIKE)
    for parameter in command.params:
        name = parameter.name or ""
        shown = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
        spelt = {option.lstrip("-").replace("-", "_") for option in parameter.opts}
        flags |= dict.fromkeys(spelt | {name}, shown)
    return flags


_DRAWN = re.compile(r"random(?::(\d+))?")
_POSITIVE = re.compile(r"positive(?::(\d+))?")
_DIGITS = re.compile(r"digits(?::(.*))?")


def task_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --categories, --positions, --q-true and --law."""
    options = (
        click.option("--categories", "-N", type=whole(), help="N, the number of categories."),
        click.option("--positions", "-M", type=whole(), help="M, the longest sequence."),
        click.option(
            "--q-true",
            "q_true",
            metavar="FILE|random:SEED|positive:SEED|digits[:BASE]",
            help="N × N numbers (.json, .csv or .npy; previous category first), standard normal draws, positive ones "
            "with columns of mean 1, or 10·a + b.",
        ),
        click.option("--law", metavar="uniform|zipf|P1,P2,…", help="Law of the categories.  [default: uniform]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def task_of(
    categories: int | None,
    positions: int | None,
    q_true: str | None,
    law: str | None,
    *,
    defaults: tuple[int, int, str],
) -> PairTask:
    """Return the task of the options.

    Raises:
        ArgumentValueError: A file that cannot be read, whose size contradicts --categories, or what `PairTask` refuses.
    """
    from tokendynamics.circuits import PairTask

    chosen = None if law is None else law_of(law)
    functional = functional_of(defaults[2] if q_true is None else q_true, categories, defaults[0], chosen)
    return PairTask(functional, defaults[1] if positions is None else positions, chosen)


def task_parameters(task: PairTask, q_true: str, law: str | None) -> dict[str, Any]:
    """Return the entries of a manifest about the task."""
    described = {"categories": task.categories, "positions": task.positions}
    return {**described, "q_true": q_true, "law": "uniform" if law is None else law}


def functional_of(spec: str, categories: int | None, default: int, law: Any) -> Any:
    """Return the matrix that --q-true describes; the law defines the means of columns."""
    from tokendynamics.circuits import PairTask
    from tokendynamics.circuits.functionals import pair_numbers, positive_functional, random_functional

    size = default if categories is None else categories
    drawn = _DRAWN.fullmatch(spec)
    if drawn is not None:
        return random_functional(size, seed=int(drawn[1] or 0))
    positive = _POSITIVE.fullmatch(spec)
    if positive is not None:
        return positive_functional(size, int(positive[1] or 0), law)
    digits = _DIGITS.fullmatch(spec)
    if digits is not None:
        return pair_numbers(size, _base(digits[1], spec))
    matrix = _read(spec)
    if categories is not None and matrix.shape != (categories, categories):
        wanted = f"{categories} × {categories} numbers, as --categories says"
        raise ArgumentValueError(expected("--q-true", wanted, f"shape {tuple(matrix.shape)} in {spec}"))
    try:
        PairTask(matrix, 1)
    except ArgumentValueError as error:
        raise renamed(error, {"q_true": f"--q-true {spec}"}) from error
    return matrix


def _base(written: str | None, spec: str) -> float:
    try:
        return 10.0 if written is None else float(written)
    except ValueError as error:
        raise ArgumentValueError(expected("--q-true", "digits:BASE with a number", repr(spec))) from error


def law_of(spec: str) -> Any:
    """Return the law that --law describes: a name, or probabilities."""
    if "," not in spec:
        return spec
    try:
        return [float(part) for part in spec.split(",")]
    except ValueError as error:
        wanted = "uniform, zipf or probabilities such as 0.5,0.3,0.2"
        raise ArgumentValueError(expected("--law", wanted, repr(spec))) from error


def _read(spec: str) -> Any:
    import numpy as np

    from tokendynamics.numerics.arguments import as_path

    path = Path(spec)
    readers = {".json": _read_json, ".csv": _read_csv, ".npy": _read_npy}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        wanted = "random:SEED, positive:SEED, digits, digits:BASE or a file that ends in .json, .csv or .npy"
        raise ArgumentValueError(expected("--q-true", wanted, repr(spec)))

    as_path(spec, "--q-true")
    if not path.is_file():
        raise ArgumentValueError(expected("--q-true", "a file that exists", path))
    try:
        matrix = np.asarray(reader(path))
    except (OSError, ValueError, TypeError, EOFError, OverflowError) as error:
        if isinstance(error, ArgumentValueError):
            raise
        raise ArgumentValueError(expected("--q-true", "a matrix of numbers", f"{path} ({error})")) from error
    if matrix.dtype.kind not in "iuf":
        raise ArgumentValueError(expected("--q-true", "real numbers", f"{matrix.dtype} in {path}"))
    return matrix.astype(np.float64)


def _read_json(path: Path) -> Any:
    import numpy as np

    from tokendynamics.provenance.reading import read_json

    return np.array(read_json(path, "--q-true"))


def _read_csv(path: Path) -> Any:
    import warnings

    import numpy as np

    with warnings.catch_warnings():
        # An empty file is refused below by its shape, so NumPy's warning adds nothing.
        warnings.simplefilter("ignore", UserWarning)
        return np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8-sig")


def _read_npy(path: Path) -> Any:
    from tokendynamics.provenance.array_files import read_npy

    return read_npy(path, "--q-true")
