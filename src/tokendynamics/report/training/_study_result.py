"""What a study's page takes of its result, by name: `tokendynamics.sweeps` stands beside the pages, not below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import xarray as xr

from tokendynamics.numerics._printable import printable
from tokendynamics.training._record import FINISHED


@runtime_checkable
class Arm(Protocol):
    """One arm by itself, see `tokendynamics.sweeps.study.Arm`."""

    @property
    def name(self) -> str: ...
    @property
    def runs(self) -> int: ...
    @property
    def finished(self) -> int: ...
    @property
    def learning_rate(self) -> float | None: ...
    @property
    def mean(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def learning_rate_at_end(self) -> str | None: ...


@runtime_checkable
class Comparison(Protocol):
    """An arm beside another one, see `tokendynamics.sweeps.study.Comparison`."""

    @property
    def arm(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def differences(self) -> tuple[float, ...]: ...
    @property
    def mean(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def p(self) -> float | None: ...
    @property
    def verdict(self) -> str: ...
    @property
    def better(self) -> bool | None: ...
    @property
    def detectable(self) -> float | None: ...
    @property
    def needed(self) -> int | None: ...


@runtime_checkable
class Claim(Protocol):
    """That one arm is better than another one, see `tokendynamics.sweeps.study.Claim`."""

    @property
    def better(self) -> str: ...
    @property
    def worse(self) -> str: ...
    @property
    def difference(self) -> float | None: ...


@runtime_checkable
class TestedClaim(Protocol):
    """What becomes of a claim, see `tokendynamics.sweeps.study.TestedClaim`."""

    @property
    def claim(self) -> Claim: ...
    @property
    def comparison(self) -> Comparison: ...
    @property
    def p(self) -> float | None: ...
    @property
    def p_size(self) -> float | None: ...
    @property
    def decision(self) -> str: ...
    @property
    def tests(self) -> int: ...


@runtime_checkable
class Study(Protocol):
    """What a study found, see `tokendynamics.sweeps.study.StudyResult`, which says what is in the dataset."""

    @property
    def dataset(self) -> xr.Dataset: ...
    @property
    def name(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def lower_is_better(self) -> bool: ...
    @property
    def reference(self) -> str: ...
    @property
    def confidence(self) -> float: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def values(self) -> Mapping[str, Mapping[int, float]]: ...
    @property
    def arms(self) -> Sequence[Arm]: ...
    @property
    def comparisons(self) -> Sequence[Comparison]: ...
    @property
    def claims(self) -> Sequence[TestedClaim]: ...
    @property
    def sentences(self) -> Sequence[str]: ...


def unit_of(result: Study) -> str:
    """Return the measure as it is read, such as "bits per byte"."""
    return printable(result.measure).replace("_", " ")


def percent_of(result: Study) -> str:
    """Return the confidence of the intervals, such as "95 %"."""
    return f"{100 * result.confidence:.4g} %"


def finished_only(result: Study, name: str) -> np.ndarray:
    """Return a variable of the dataset over arms and seeds first, NaN where a run did not finish."""
    values = result.dataset[name].transpose("arm", "seed", ...)
    return values.where(result.dataset["status"] == FINISHED).transpose(*values.dims).values
