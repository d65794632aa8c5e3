"""The options that define the task, and a hand-built transformer by its name and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from tokendynamics.cli._signature import Option
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, MemoryLimitError
from tokendynamics.words import listing

if TYPE_CHECKING:
    from tokendynamics.circuits import OneLayerTransformer, PairTask


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


class Group(click.Group):
    """Names the option that was typed where the library names its argument."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ArgumentTypeError, ArgumentValueError, MemoryLimitError) as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise renamed(error, {} if command is None else flags_of(command)) from error


LAWS = "uniform|zipf|P1,P2,…"
_DRAWN = re.compile(r"random(?::(\d+))?")
_POSITIVE = re.compile(r"positive(?::(\d+))?")
_DIGITS = re.compile(r"digits(?::(.*))?")


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The task.

    Attributes:
        categories: N, the number of categories.
        positions: M, the longest sequence.
        q_true: N × N numbers (.json, .csv or .npy; previous category first), standard normal draws, positive ones with
            columns of mean 1, or 10·a + b.
        law: Law of the categories.  [default: uniform]
    """

    categories: Annotated[int | None, Option("--categories", "-N")] = None
    positions: Annotated[int | None, Option("--positions", "-M")] = None
    q_true: Annotated[str | None, Option(metavar="FILE|random:SEED|positive:SEED|digits[:BASE]")] = None
    law: Annotated[str | None, Option(metavar=LAWS)] = None

    def task(self, categories: int, positions: int, functional: str) -> tuple[PairTask, dict[str, Any]]:
        """Return the task, and the entries of a manifest about it; the arguments stand for options left out.

        Raises:
            ArgumentValueError: A file that cannot be read, whose size contradicts --categories, or what `PairTask`
                refuses.
        """
        from tokendynamics.circuits import PairTask

        law = None if self.law is None else law_of(self.law)
        chosen = functional if self.q_true is None else self.q_true
        matrix = functional_of(chosen, self.categories, categories, law)
        task = PairTask(matrix, positions if self.positions is None else self.positions, law)
        described = {"categories": task.categories, "positions": task.positions}
        return task, {**described, "q_true": self.q_true or functional, "law": self.law or "uniform"}


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
    import numpy as np

    from tokendynamics.numerics.arguments import as_path

    path = Path(spec)
    readers = {".json": _read_json, ".csv": _read_csv, ".npy": _read_npy}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        endings = "random:SEED, positive:SEED, digits, digits:BASE or a file that ends in .json, .csv or .npy"
        raise ArgumentValueError("--q-true", endings, repr(spec))
    as_path(spec, "--q-true")
    from tokendynamics.provenance.reading import kind_of

    if (came := kind_of(path)) != "a file":
        raise ArgumentValueError("--q-true", "a file that exists", f"{came} ({path})")
    if (size := path.stat().st_size) > _LARGEST_TABLE:
        raise ArgumentValueError("--q-true", f"a file of at most {_LARGEST_TABLE:,} bytes", f"{size:,} in {path}")
    try:
        values = np.asarray(reader(path))
    except (OSError, ValueError, TypeError, EOFError, OverflowError) as error:
        if isinstance(error, ArgumentValueError):
            raise
        raise ArgumentValueError("--q-true", "a matrix of numbers", f"{path} ({error})") from error
    if values.dtype.kind not in "iuf":
        raise ArgumentValueError("--q-true", "real numbers", f"{values.dtype} in {path}")
    matrix = values.astype(np.float64)
    if categories is not None and matrix.shape != (categories, categories):
        wanted = f"{categories} × {categories} numbers, as --categories says"
        raise ArgumentValueError("--q-true", wanted, f"shape {tuple(matrix.shape)} in {spec}")
    try:
        PairTask(matrix, 1)
    except ArgumentValueError as error:
        raise renamed(error, {"q_true": f"--q-true {spec}"}) from error
    return matrix


_LARGEST_TABLE = 2**26
"""Bytes of a file of numbers: a thousand categories with 64 characters for each number."""


def _base(written: str | None, spec: str) -> float:
    try:
        return 10.0 if written is None else float(written)
    except ValueError as error:
        raise ArgumentValueError("--q-true", "digits:BASE with a number", repr(spec)) from error


def law_of(spec: str) -> Any:
    """Return the law that --law describes: a name, or probabilities."""
    if "," not in spec:
        return spec
    try:
        return [float(part) for part in spec.split(",")]
    except ValueError as error:
        raise ArgumentValueError("--law", "uniform, zipf or probabilities such as 0.5,0.3,0.2", repr(spec)) from error


def _read_json(path: Path) -> Any:
    import numpy as np

    from tokendynamics.provenance.reading import read_json

    return np.array(read_json(path, "--q-true"))


def _read_csv(path: Path) -> Any:
    import warnings

    import numpy as np

    # An empty file is refused below by its shape, so NumPy's warning adds nothing.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8-sig")


def _read_npy(path: Path) -> Any:
    from tokendynamics.provenance.array_files import read_npy

    return read_npy(path, "--q-true")


SOLUTIONS = (
    "solution-1", "solution-1-uniform", "solution-1-indicators", "solution-1-printed", "solution-2",
    "solution-2-printed", "solution-3", "solution-3-printed", "linear", "softmax-1", "softmax-2", "softmax-3",
    "mixture",
)  # fmt: skip
"""The names of the catalogue, repeated here so that help needs no heavy import."""


@dataclass(frozen=True, kw_only=True)
class SolutionOptions:
    """Options of the hand-built transformers, named as the arguments of their constructors.

    Attributes:
        causal: Mask the attention; the outputs stay the same.
        form: Form of solution 1: rows, uniform, indicators, printed; of 2 and 3: exact, printed.
        K: Scale of solutions 2 and 3; too small a K is refused with the least one.
        sharpness: β of softmax-1 and softmax-3.  [default: 40]
        base: Base of the linear case.  [default: 10]
        attention_share: Share of q_true that a mixture computes in attention.  [default: 0.5]
    """

    causal: Annotated[bool | None, Option("--causal")] = None
    form: str | None = None
    K: Annotated[float | None, Option("-K")] = None
    sharpness: float | None = None
    base: float | None = None
    attention_share: Annotated[float | None, Option("--share")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that were typed."""
        return {option: value for option, value in vars(self).items() if value is not None}

    def default_functional(self, name: str) -> str:
        """Return the default of q_true: the linear case computes digits of its base, softmax-2 only positive values."""
        if name != "linear":
            return "positive:0" if name == "softmax-2" else "random:0"
        return "digits" if self.base is None else f"digits:{self.base!r}"

    def build(self, name: str, task: PairTask) -> OneLayerTransformer:
        """Return the transformer of that name.

        Args:
            name: One of `SOLUTIONS`.
            task: The task that it computes.

        Raises:
            ArgumentValueError: An option that this solution does not have, or a value that the constructor refuses.
        """
        from tokendynamics.circuits.constructions.solutions import HAND_BUILT

        known = {solution: inspect.signature(HAND_BUILT[solution]).parameters for solution in SOLUTIONS}
        for option in self.given:
            if option not in known[name]:
                having = [solution for solution in SOLUTIONS if option in known[solution]]
                raise ArgumentValueError(f"{option}: is an option of {listing(having)} only, not of {name}")
        return HAND_BUILT[name](task, **self.given)
