"""What a sweep found: how often each outcome was, with intervals, in sentences, as files, and what its page shows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics import figures
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_path
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.intervals import wilson
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import check_free, whole_folder
from tokendynamics.results import Result
from tokendynamics.sweeps.systems._plan import DRAW, POINT, Plan
from tokendynamics.sweeps.systems._store import ENGINE, IDENTITY, VERSIONS, layout, size
from tokendynamics.sweeps.systems.measures import MISSING, OUTCOMES, STATUSES
from tokendynamics.words import plural

_MEGA = 2**20
_COLUMNS = ("count", "fraction", "low", "high")
_FACTOR = 100.0
"""From this ratio of largest to smallest on, cells are of equal factors."""
_WORDS = {"outcome": OUTCOMES, "status": STATUSES}


@typed_arguments
def fractions(
    dataset: xr.Dataset,
    variable: str = "outcome",
    *,
    over: tuple[str, ...] = (DRAW,),
    by: tuple[str, ...] = (),
    cells: int = 12,
) -> xr.Dataset:
    """Return the share of each word of `variable` among the systems that were run, with 95 % Wilson intervals.

    Args:
        dataset: From `sweep` or `open_store`.
        variable: "outcome" or "status".
        over: Dims whose systems are counted together.
        by: Of a random design, in place of `over`: coordinates by which its points are sorted into cells.
        cells: Along each of `by` that has more values than that, equally wide, or of equal factors where the largest
            is 100 times the smallest; a cell is named by its middle.

    Returns:
        Variables count, fraction, low, high with dims of `variable` without those of `over`, and `variable` itself;
        `total`, the systems that were run. NaN where none was.

    Raises:
        ArgumentValueError: The sweep did not measure `variable`, or has no coordinate of `by`.

    >>> import numpy as np
    >>> ended = xr.Dataset({"status": (("beta", "draw"), np.zeros((2, 10), dtype=int))}, {"beta": [1.0, 2.0]})
    >>> shares = fractions(ended, "status")
    >>> shares.fraction.dims, float(shares.fraction[0, 0]), round(float(shares.low[0, 0]), 3)
    (('beta', 'status'), 1.0, 0.722)
    """
    if variable not in _WORDS or variable not in dataset:
        wanted = "'outcome' or 'status', if the sweep measured it"
        raise ArgumentValueError("variable", wanted, repr(variable), "add it to measure in [sweep]")
    if cells < 1:
        raise ArgumentValueError("cells", "at least 1", cells)
    codes, words = dataset[variable], _WORDS[variable]
    if not by and (unknown := {*over} - {*codes.dims}):
        raise ArgumentValueError("over", f"names among {', '.join(map(str, codes.dims))}", ", ".join(sorted(unknown)))
    if by:
        count = _in_cells(codes, len(words), by, cells).rename(word=variable)
        total = count.sum(variable)
    else:
        count = xr.concat([(codes == code).sum(over) for code in range(len(words))], dim=variable)
        total = (codes != MISSING).sum(over)
    count = count.assign_coords({variable: list(words)}).transpose(..., variable)
    return with_intervals(count, total)


def with_intervals(count: xr.DataArray, total: xr.DataArray) -> xr.Dataset:
    """Return count, fraction, low and high of the 95 % Wilson interval, and total; NaN where no system was run.

    Args:
        count: Systems of each kind.
        total: Systems that were run, over the dims of `count` without the kind.
    """

    def ends(count: Any, total: Any) -> tuple[float, float]:
        return wilson(int(count), int(total)) if total else (np.nan, np.nan)

    low, high = xr.apply_ufunc(ends, count, total, output_core_dims=[[], []], vectorize=True)
    fraction = count / total.where(total > 0)
    return xr.Dataset({"count": count, "fraction": fraction, "low": low, "high": high, "total": total})


def _in_cells(codes: xr.DataArray, words: int, by: tuple[str, ...], cells: int) -> xr.DataArray:
    """Count systems (point, draw) of a random design in cells of some of its coordinates, over `by` and "word"."""
    known = [str(name) for name, coordinate in codes.coords.items() if coordinate.dims == (POINT,)]
    for name in by:
        if name not in known:
            raise ArgumentValueError("by", f"of {', '.join(known) or 'a random design'}", repr(name))
    sides = [_cells(codes[name].values, cells) for name in by]
    shape = [len(labels) for labels, _ in sides]
    places = np.ravel_multi_index([place for _, place in sides], shape)
    rows = codes.transpose(POINT, ...).values.reshape(len(places), -1)
    counts = np.zeros((int(np.prod(shape)), words), dtype=np.int64)
    which = np.broadcast_to(places[:, None], rows.shape)[rows != MISSING]
    np.add.at(counts, (which, rows[rows != MISSING]), 1)
    coords = {name: labels for name, (labels, _) in zip(by, sides, strict=True)}
    return xr.DataArray(counts.reshape(*shape, words), dims=(*by, "word"), coords=coords)


def _cells(values: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the names of cells and the cell of each value; few values, and words, are cells of their own."""
    distinct, place = np.unique(values, return_inverse=True)
    if values.dtype.kind not in "iuf" or len(distinct) <= cells:
        return distinct, place
    log = distinct[0] > 0 and distinct[-1] / distinct[0] >= _FACTOR
    edges = (np.geomspace if log else np.linspace)(distinct[0], distinct[-1], cells + 1)
    middles = np.sqrt(edges[1:] * edges[:-1]) if log else (edges[1:] + edges[:-1]) / 2
    return middles, np.clip(np.searchsorted(edges, values, side="right") - 1, 0, cells - 1)


WRITER = "tokendynamics sweep"
PAGE, DIAGRAM, SHARES = "report.html", "phase-diagram", "shares.csv"
_ROWS = 4
"""Values of a third parameter that a diagram has a row for."""
_IN_CELLS = (
    "The points of this random design are sorted into at most 12 cells along each parameter; a cell of numbers is "
    "named by its middle."
)


@dataclass(frozen=True, repr=False)
class SweepResult(Result):
    """What a sweep found, counted.

    Attributes:
        title: What it is called.
        shape: How many systems there are over what.
        shares: Counts, shares and intervals of each outcome over the parameters, from `fractions`.
        status: The same of the statuses.
        again: How many systems were tried again.
        systems: How many the design has; some of them may not have been run yet.
        facts: What else is known, by name.
        manifest: How to make it again.
        files: Names of the data files beside the page.
        notes: What is to be known of the diagrams.
    """

    title: str
    shape: str
    shares: xr.Dataset
    status: xr.Dataset
    again: int
    systems: int
    facts: tuple[tuple[str, str], ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Title and shape."""
        return f"{self.title}: {self.shape}"

    @property
    def findings(self) -> list[str]:
        """How many systems had each outcome, or ended with each status, the most frequent first."""
        kind = next(str(dim) for dim in self.shares["count"].dims if dim not in self.shares.total.dims)
        counts = self.shares["count"].sum(self.shares.total.dims)
        met = sorted(((int(many), str(word)) for word, many in zip(counts[kind].values, counts.values, strict=True)))
        return [f"{word}: {plural(many, 'system')}" for many, word in reversed(met) if many]


@typed_arguments
def report(
    dataset: xr.Dataset,
    path: str | Path,
    *,
    title: str = "A sweep",
    files: tuple[str, ...] = (),
    manifest: dict[str, Any] | None = None,
    max_bytes: int | None = None,
) -> Path:
    """Write the page of a sweep: sentences, phase diagrams with intervals, how the runs ended; one file.

    Args:
        dataset: From `sweep` or `open_store`.
        path: The file to write; its folder is made if need be.
        title: What the sweep is called.
        files: Names of the data files beside the page.
        manifest: How to make it again; None for what the dataset records.
        max_bytes: Refuse to write a page larger than this; None for no limit.

    Returns:
        The path written.

    Raises:
        ArgumentTypeError, ArgumentValueError: Not the dataset of a sweep, `path` is a folder, or the page would be
            larger than `max_bytes`.

    >>> from tempfile import mkdtemp
    >>> import numpy as np
    >>> codes = (("beta", "draw"), np.zeros((2, 10), dtype=int))
    >>> ended = xr.Dataset({"status": codes, "tries": codes}, {"beta": [1.0, 2.0]})
    >>> report(ended, Path(mkdtemp(), "sweep.html")).name
    'sweep.html'
    """
    if not isinstance(dataset, xr.Dataset) or not {"status", "tries"} <= set(dataset):
        raise ArgumentTypeError("dataset", "the result of `sweep` or `open_store`", shown(type(dataset).__name__))
    as_path(path, "path")
    if manifest is not None and not isinstance(manifest, dict):
        raise ArgumentTypeError("manifest", "a record by name, or None", shown(manifest))
    return counted(dataset, title=title, files=files, manifest=manifest).report(path, max_bytes=max_bytes)


def counted(
    dataset: xr.Dataset, *, title: str = "A sweep", files: tuple[str, ...] = (), manifest: dict[str, Any] | None = None
) -> SweepResult:
    """Count what the page of a sweep shows; the arguments are those of `report`."""
    shares = _over_parameters if POINT in dataset.dims else fractions
    status = shares(dataset, "status")
    recorded = {name: dataset.attrs[name] for name in (IDENTITY, VERSIONS, ENGINE) if name in dataset.attrs}
    versions = ", ".join(f"{name} {version}" for name, version in recorded.get(VERSIONS, {}).items())
    facts = (("Engine", str(recorded.get(ENGINE, ""))), ("With", versions))
    return SweepResult(
        title=title,
        shape=f"{plural(dataset['status'].size, 'system')}: "
        + " × ".join(f"{dim} ({length:,})" for dim, length in dataset["status"].sizes.items()),
        shares=shares(dataset, "outcome") if "outcome" in dataset else status,
        status=status,
        again=int((dataset["tries"] > 1).sum()),
        systems=dataset["status"].size,
        facts=tuple((name, text) for name, text in facts if text),
        manifest=json.loads(json.dumps(plain(recorded))) if manifest is None else manifest,
        files=files,
        notes=(_IN_CELLS,) if POINT in dataset.dims and parameters(dataset) else (),
    )


def write_results(
    dataset: xr.Dataset, store: Path, folder: Path, *, title: str, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write the shares of a sweep, then their phase diagram, then the page into a folder, each step whole.

    Args:
        dataset: From `sweep`.
        store: Where it is stored.
        folder: Need not exist; see `check_results`.
        title: What the sweep is called.
        overwrite: Replace foreign files that are in the way.

    Returns:
        Paths of what was written.

    Raises:
        ArgumentValueError: See `whole_folder`.
        PageError: The page cannot be drawn; everything else is written.
    """
    record, shares = read_json(store / MANIFEST, "store"), _drawn(dataset)
    put = partial(whole_folder, folder, record, WRITER, overwrite=overwrite, argument="--out")
    with put() as made:
        shares.to_dataframe().to_csv(made / SHARES)
    with put(keep=True) as made:
        if shares.total.ndim:
            for kind in ("png", "svg"):
                figures.save(figures.phase_diagram(shares), made / f"{DIAGRAM}.{kind}")
        names = {SHARES, PAGE, *(path.name for path in made.iterdir())}
    with put(keep=True) as made:
        report(dataset, made / PAGE, title=title, manifest=record, files=(SHARES,))
    return tuple(folder / name for name in sorted(names))


def check_results(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder in which `write_results` would replace what no sweep wrote, before anything is run.

    Raises:
        ArgumentValueError: See `whole_folder`.
    """
    entries = (PAGE, SHARES, f"{DIAGRAM}.png", f"{DIAGRAM}.svg")
    check_free(folder, entries, WRITER, overwrite=overwrite, argument="--out")


def _drawn(dataset: xr.Dataset) -> xr.Dataset:
    """Return the shares of a diagram: over two parameters, or three of which the last has few values."""
    variable = "outcome" if "outcome" in dataset else "status"
    if POINT in dataset.dims:
        return _over_parameters(dataset, variable)
    axes = [str(dim) for dim, length in dataset[variable].sizes.items() if dim != DRAW and length > 1]
    few = len(axes) == 3 and dataset.sizes[axes[2]] <= _ROWS
    kept = axes[: 3 if few else 2]
    over = tuple(str(dim) for dim in dataset[variable].dims if dim not in kept)
    return fractions(dataset, variable, over=over)


def _over_parameters(dataset: xr.Dataset, variable: str) -> xr.Dataset:
    """Return the shares of a random design over two parameters that vary; of one point, or equal ones, over nothing."""
    by = parameters(dataset)
    return fractions(dataset, variable, by=by) if by else fractions(dataset, variable, over=(POINT, DRAW))


def parameters(dataset: xr.Dataset) -> tuple[str, ...]:
    """Return the first two parameters of a random design that vary."""
    named = [str(name) for name, coordinate in dataset.coords.items() if coordinate.dims == (POINT,)]
    return tuple(name for name in named if len(np.unique(dataset[name])) > 1)[:2]


def described(plan: Plan) -> str:
    """Return the number of systems of a sweep, their tasks, and the size of the store, as a sentence."""
    *points, draws = plan.shape
    names = " × ".join(f"{length} {name}" for length, name in zip(points, plan.dims, strict=False)) or "1 point"
    tasks, needed = math.prod(plan.tasks), size(plan, layout(plan))
    return (
        f"{plan.name}: {names} × {plural(draws, 'draw')} = {plural(plan.systems, 'system')} in "
        f"{plural(tasks, 'task')}; the store takes {needed / _MEGA:,.1f} MiB"
    )


def totals(dataset: xr.Dataset, variable: str) -> list[dict[str, Any]]:
    """Return each outcome or status that occurs, with its count, share and interval over all systems."""
    shares = fractions(dataset, variable, over=tuple(map(str, dataset[variable].dims)))
    rows = [
        {"word": str(word), **{name: shares[name].sel({variable: word}).item() for name in _COLUMNS}}
        for word in shares[variable].values
    ]
    return [row for row in rows if row["count"]]


def tried_again(dataset: xr.Dataset) -> str:
    """Return how many systems the stiff engine ran again, as a sentence."""
    again, systems = int((dataset["tries"] > 1).sum()), dataset["tries"].size
    if not again:
        return f"no system of {systems:,} needed another try"
    return f"{again:,} of {systems:,} systems spent their steps and were tried again by the stiff engine"
