"""Whether the similarity after the last layer is usual: beside an untrained network, and trained ones measured before.

The table of measured networks ships with the package (``measured_networks.json``: numbers only); a user's own has the
same form and is read beside it. A row is what one diagnosis says of its network after the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import platformdirs
import xarray as xr

from tokendynamics.diagnosis.network import describe, sizes_differ
from tokendynamics.diagnosis.tracing.layer_states import OF_ALL_TEXTS, State, layer_states
from tokendynamics.diagnosis.tracing.measure import shares_over_prompts
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.diagnosis.tracing.prompts import NamedPrompts, noun_in
from tokendynamics.numerics import ArgumentValueError, CheckpointError, MemoryLimitError
from tokendynamics.numerics.arguments import as_choice, as_finite, as_integer, as_text
from tokendynamics.numerics.errors import shown, why
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.variant import Variant
from tokendynamics.pretrained.loading import untrained_twin
from tokendynamics.pretrained.other_libraries import refusing
from tokendynamics.provenance.manifest import write_json
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import whole_file
from tokendynamics.results import Refused
from tokendynamics.words import Finding, estimate, fixed, share

if TYPE_CHECKING:
    from tokendynamics.diagnosis.result import Diagnosis

Baseline: TypeAlias = Literal["auto", "untrained"]

MEASURES = ("shares", "consensus_within", "consensus_relative", "centred_cos2", "line_excess")
"""What is kept of the trace of the untrained network: numbers over all prompts, each with its interval."""

VERSION = 1
"""Of the form of a table; another one is refused."""

FEWEST = 3
"""Measured networks from which their range is worth a sentence."""

_NUMBERS = ("consensus_relative", "consensus_within", "share_common", "share_prompt", "share_own")

_SIZES = ("layers", "heads", "dim", "parameters")


@dataclass(frozen=True)
class MeasuredNetwork:
    """One trained network, measured: a row of the table.

    Attributes:
        name: What to call it.
        model_type: Its architecture.
        layers: Their number; the next likewise.
        heads: 0 where no attention was read.
        dim: Width of the residual stream.
        parameters: Their number.
        texts: Which inputs it read, in words.
        prompts: How many.
        noun: What one of them is called.
        consensus_relative: κ′ after the last layer.
        interval: Its 90 % interval over prompts.
        consensus_within: κ there.
        share_common: The shares of a token's direction there; the next likewise.
        share_prompt: Likewise.
        share_own: Likewise.
        state: The state there.
        worst_state: The worst state of any layer.
        worst_layer: Where it is, from 1.
        measured: The date.
        versions: Of the packages that matter.
    """

    name: str
    model_type: str
    layers: int
    heads: int
    dim: int
    parameters: int
    texts: str
    prompts: int
    noun: str
    consensus_relative: float
    interval: tuple[float, float]
    consensus_within: float
    share_common: float
    share_prompt: float
    share_own: float
    state: str
    worst_state: str
    worst_layer: int
    measured: str
    versions: dict[str, str]


def untrained_measures(
    ckpt: Checkpoint,
    prompts: NamedPrompts,
    traced: xr.Dataset,
    baseline: Baseline | None,
    counting: dict[str, Any],
    report: Progress,
) -> xr.Dataset | Refused:
    """Measure the same architecture with initial weights on the same prompts.

    Args:
        ckpt: The network that is diagnosed.
        prompts: What it read.
        traced: Its trace.
        baseline: See `tokendynamics.diagnose`.
        counting: Which tokens count; see `tokendynamics.trace`.
        report: Progress.

    Returns:
        `MEASURES` and their intervals, with the attributes ``model`` and ``random_seed``; refused where there is
        nothing to compare, and with "auto" also where there is no such network.

    Raises:
        CheckpointError: "untrained" was asked for, and the configuration builds no such network.
    """
    if baseline is None:
        return Refused("it was not requested")
    if isnan(float(_at_end(traced).consensus_relative)):
        return Refused("κ′ of this network is undefined")
    if baseline == "untrained":
        return _measured(ckpt, prompts, counting, report)
    if ckpt.random_seed is not None:
        return Refused("this network is itself untrained")
    if ckpt.streamed:
        return Refused("the network is streamed from disk; baseline=“untrained” measures it all the same")
    try:
        with refusing(lambda words: CheckpointError(words)):
            return _measured(ckpt, prompts, counting, report)
    except (ArgumentValueError, CheckpointError, MemoryLimitError) as error:
        return Refused(why(error, "baseline", "states"))


def _measured(ckpt: Checkpoint, prompts: NamedPrompts, counting: dict[str, Any], report: Progress) -> xr.Dataset:
    seed = 0 if ckpt.random_seed is None else ckpt.random_seed + 1
    twin = untrained_twin(ckpt, seed)
    if unlike := sizes_differ(ckpt, twin, "widths", "depths"):
        raise CheckpointError("baseline", "a configuration that describes the network", unlike)
    if ckpt.variant != Variant():
        twin = twin.under(ckpt.variant)
    shares = shares_over_prompts(twin, prompts, report, (*counting.values(),))
    table = shares[[*MEASURES, *(f"{name}_interval" for name in MEASURES)]]
    return table.assign_attrs(model=twin.name, random_seed=seed)


def yardstick_finding(
    traced: xr.Dataset, baseline: xr.Dataset | Refused | None, ckpt: Checkpoint, measured: Sequence[MeasuredNetwork]
) -> Finding | None:
    """Say whether the tokens after the last layer are as usual; None where nothing can be said.

    κ′ is compared, or the common share where that decides the state: beside one point κ′ says nothing.

    Args:
        traced: The trace of the network.
        baseline: From `untrained_measures`.
        ckpt: The network: a row of its own name and sizes is no other network.
        measured: From `measured_networks`.
    """
    facts, shared = describe(ckpt), layer_states(traced)[-1] in OF_ALL_TEXTS
    subject, measure = ("The common share", "share_common") if shared else ("This", "consensus_relative")
    (value, interval), texts, values = _compared(traced, measure), [], {}
    others = [row for row in measured if row.noun == noun_in(traced) and not _same(row, facts)]
    if len(others) >= FEWEST and not isnan(value):
        ends = {row.name: float(getattr(row, measure)) for row in others}
        kind = "other " if len(others) < len(measured) else ""
        texts.append(f"{subject} is {_beside(value, interval, list(ends.values()), kind, noun_in(traced))}")
        values |= {"measured": ends}
    untrained, ends_at = _compared(baseline, measure) if isinstance(baseline, xr.Dataset) else (nan, [nan, nan])
    if not isnan(untrained):
        how = f"has a common share of {share(untrained, ends_at, CONFIDENCE)}"
        how = how if shared else f"ends at {estimate(untrained, ends_at, CONFIDENCE, at_most=1.0)}"
        texts.append(f"Untrained, this architecture {how} on the same {noun_in(traced)}s.")
        values |= {"untrained": untrained}
    return Finding(" ".join(texts), "shares", values) if texts else None


def _compared(measures: xr.Dataset, measure: str) -> tuple[float, list[float]]:
    """Return a measure after the last layer, by its name in a row of the table, and its interval."""
    end = _at_end(measures)
    if measure == "share_common":
        end = end.sel(share="common")
        return float(end.shares), end.shares_interval.values.tolist()
    return float(end[measure]), end[f"{measure}_interval"].values.tolist()


def _beside(value: float, interval: Sequence[float], ends: Sequence[float], kind: str, noun: str) -> str:
    """Compare a measure with the range of measured networks."""
    low, high = min(ends), max(ends)
    networks = f"the {len(ends)} {kind}trained networks measured"
    between = f"{fixed(low)} to {fixed(high)}, each on {noun}s of its kind"
    if round(low, 2) <= round(value, 2) <= round(high, 2):  # as printed: 0.01 is not lower than 0.01 to 0.25
        return f"within the range of {networks} ({between})."
    above = value > high
    significant = interval[0] > high if above else interval[1] < low
    known = not isnan(interval[0])  # what has no interval is not denied to be significant
    significantly = "" if significant or not known else "not significantly "
    than = f"{significantly}{'higher' if above else 'lower'} than in {networks} ({between})"
    return f"{than}." if known else f"{than}, without a confidence interval."


def _same(row: MeasuredNetwork, facts: Mapping[str, Any]) -> bool:
    return row.name == facts["name"] or all(getattr(row, size) == facts[size] for size in _SIZES)


def unmeasured_finding(baseline: xr.Dataset | Refused | None) -> Finding | None:
    """Say why no untrained network was measured, where one was to be; None otherwise."""
    if not isinstance(baseline, Refused) or baseline.reason == "it was not requested":
        return None
    return Finding(f"No untrained network was measured for comparison: {baseline.reason}.", "shares", {})


def _at_end(measures: xr.Dataset) -> xr.Dataset:
    return measures.sel(site="feed_forward").isel(layer=-1)


def own_table() -> Path:
    """Return where the user's own table is, in the data folder of the user; it need not exist."""
    return Path(platformdirs.user_data_dir("tokendynamics")) / "reference.json"


def measured_networks(user_table: Path | None = None) -> tuple[MeasuredNetwork, ...]:
    """Return the rows of the table that ships with the package, then those of the user's own.

    Args:
        user_table: The user's table, which must exist; None for `own_table`, which need not.

    Raises:
        ArgumentValueError: The user's table is of another version, damaged, or no table.

    >>> sorted({row.noun for row in measured_networks()})
    ['text']
    """
    with as_file(files("tokendynamics.diagnosis").joinpath("measured_networks.json")) as path:
        shipped = _rows_in(path)
    if user_table is None and not own_table().exists():
        return shipped
    return (*shipped, *_rows_in(user_table or own_table()))


def _rows_in(path: Path) -> tuple[MeasuredNetwork, ...]:
    values = read_json(path, "reference")
    if not isinstance(values, dict) or "networks" not in values:
        raise ArgumentValueError("reference", "a table of measured networks", f"{path} without networks")
    if values.get("version") != VERSION:
        came = f"version {shown(values.get('version'))} at {path}"
        raise ArgumentValueError("reference", f"a table of version {VERSION}", came, "add the diagnoses to a new table")
    try:
        return tuple(map(_row, values["networks"]))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ArgumentValueError("reference", "a table of measured networks", f"{path} ({reason})") from error


def _row(values: Any) -> MeasuredNetwork:
    """Return one row, checked: what a file says is printed, and compared with."""
    texts = ("name", "model_type", "texts", "noun", "measured")
    fields: dict[str, Any] = {name: as_text(values[name], name) for name in texts}
    fields |= {name: as_integer(values[name], name, 0) for name in (*_SIZES, "prompts", "worst_layer")}
    fields |= {name: as_finite(values[name], name) for name in _NUMBERS}
    fields |= {name: as_choice(values[name], name, get_args(State)) for name in ("state", "worst_state")}
    low, high = (as_finite(end, "interval") for end in values["interval"])
    fields["versions"] = {
        as_text(name, "versions"): as_text(version, name) for name, version in values["versions"].items()
    }
    return MeasuredNetwork(**fields, interval=(low, high))


def measured_network(diagnosis: Diagnosis, texts: str, name: str | None = None) -> MeasuredNetwork:
    """Return the row of a diagnosis.

    Args:
        diagnosis: Of a trained network on several texts.
        texts: What it read, in words.
        name: What to call the network; None for its own name.

    Raises:
        ArgumentValueError: An untrained network, or κ′ without an interval.
    """
    model, end = diagnosis.model, _at_end(diagnosis.trace)
    if model.get("random_seed") is not None:
        raise ArgumentValueError("folder", "a diagnosis of a trained network", f"untrained {model['name']}")
    low, high = (float(bound) for bound in end.consensus_relative_interval)
    if isnan(low):
        came = f"{len(diagnosis.trace.prompt)}, without an interval"
        raise ArgumentValueError("folder", "a diagnosis with an interval of κ′ over its texts", came)
    versions = diagnosis.manifest["versions"]
    sizes: dict[str, Any] = {size: int(model[size]) for size in _SIZES}
    numbers: dict[str, Any] = {measure: round(float(end[measure]), 6) for measure in _NUMBERS}
    return MeasuredNetwork(
        name=name or str(model["name"]),
        model_type=str(model.get("model_type") or "unknown"),
        **sizes,
        texts=texts,
        prompts=len(diagnosis.trace.prompt),
        noun=noun_in(diagnosis.trace),
        **numbers,
        interval=(round(low, 6), round(high, 6)),
        state=diagnosis.verdict.state,
        worst_state=diagnosis.verdict.worst.state,
        worst_layer=diagnosis.verdict.worst.layer,
        measured=str(diagnosis.manifest["started"])[:10],
        versions={
            package: str(versions[package])
            for package in ("tokendynamics", "torch", "transformers")
            if package in versions
        },
    )


def write_table(path: Path, rows: Sequence[MeasuredNetwork]) -> None:
    """Write a table, whole or not at all.

    Args:
        path: The file.
        rows: In their order.
    """
    with whole_file(path) as made:
        write_json(made, {"version": VERSION, "networks": [asdict(row) for row in rows]})


def add_network(row: MeasuredNetwork, path: Path) -> None:
    """Add a network to a user's table, in the place of an older row of its name; the table is made if need be.

    Args:
        row: From `measured_network`.
        path: The table.

    Raises:
        ArgumentValueError: What is there is no table of this version.
    """
    rows = _rows_in(path) if path.exists() else ()
    write_table(path, [*(other for other in rows if other.name != row.name), row])
