"""What a study found: a dataset of all runs, the comparisons and claims that follow from it, and its files."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.printable import printable
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain, write_json
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import check_free, whole_folder
from tokendynamics.results import Result
from tokendynamics.sweeps.study._plan import StudyPlan
from tokendynamics.sweeps.study._store import NOT_RUN, Ended, chosen_rates, how_ended, measured, stored_plan
from tokendynamics.sweeps.study.paired import (
    Arm,
    Claim,
    PairedComparison,
    TestedClaim,
    arm_of,
    at_end,
    compared,
    decided,
)
from tokendynamics.sweeps.study.words import (
    about_claim,
    about_comparison,
    about_grid_ends,
    about_runs,
    about_tests,
    about_tuning,
    answer,
    table,
)
from tokendynamics.training.record import FINISHED

WRITER = "tokendynamics study"
DATASET, SUMMARY, PAGE = "study.zarr", "study.json", "report.html"
TABLES = ("runs.csv", "comparisons.csv", "claims.csv")

STATES = ("full", "bare")
_OF_LAYERS = {"token_norm": "norm", "token_distance": "distance"}

Rows = Sequence[Sequence[Ended]]
"""Runs by arm and seed."""


class StudyResult(Result):
    """What a study found.

    Args:
        dataset: Dims ``arm``, ``seed``, ``step``, ``state`` ("full", "bare": without norms and feed-forward parts),
            ``layer`` (0: embeddings), and with tuning ``rate`` and ``tuning_seed``:

            - ``measure (arm, seed)``: of the test split;
            - ``final_validation (arm, seed)``: of the validation split at the end;
            - ``validation (arm, seed, step)``: of the validation split during training; NaN at steps of other arms;
            - ``token_norm``, ``token_distance (arm, seed, state, layer)``: means over tokens, over pairs of tokens;
            - ``status``, ``reason (arm, seed)``: "finished" or how else it ended ("not finite", "failed", "not run"),
              and why, in one line; numbers of others than "finished" are NaN;
            - ``seconds (arm, seed)``;
            - ``learning_rate (arm)``; NaN where tuning found none;
            - ``tuning``, ``tuning_status (arm, rate, tuning_seed)``: the measure on the validation split at the end;
            - ``learning_rate_at_end (arm)``, with tuning: "largest" or "smallest" where the chosen learning rate is
              that of those tried, else empty.

            Attributes: ``name``, ``preset``, ``measure`` (its name), ``better`` ("lower" or "higher"), ``reference``,
            ``confidence``, ``claims`` (JSON: a list of better, worse, difference), ``specification`` (the file's
            text), ``manifest`` (JSON).
        files: Names of the data files beside the page.
    """

    def __init__(self, dataset: xr.Dataset, files: tuple[str, ...] = ()) -> None:
        if not isinstance(dataset, xr.Dataset) or "measure" not in dataset or "reference" not in dataset.attrs:
            raise ArgumentTypeError("dataset", "the result of `study` or `open_study`", shown(type(dataset).__name__))
        self.dataset, self.files = dataset, files

    @property
    def name(self) -> str:
        """What the study is called."""
        return str(self.dataset.attrs["name"])

    @property
    def measure(self) -> str:
        """Name of what is compared."""
        return str(self.dataset.attrs["measure"])

    @property
    def lower_is_better(self) -> bool:
        """Direction of the measure."""
        return self.dataset.attrs["better"] == "lower"

    @property
    def reference(self) -> str:
        """The arm that the others are compared with."""
        return str(self.dataset.attrs["reference"])

    @property
    def confidence(self) -> float:
        """Of all intervals."""
        return float(self.dataset.attrs["confidence"])

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that every arm was to run."""
        return tuple(int(seed) for seed in self.dataset["seed"].values)

    @property
    def manifest(self) -> dict[str, Any]:
        """How to make it again."""
        return json.loads(self.dataset.attrs["manifest"])

    @property
    def headline(self) -> str:
        """Name and answer."""
        return f"{self.name}: {self.answer}"

    @cached_property
    def values(self) -> dict[str, dict[int, float]]:
        """Measures of the finished runs by arm and seed."""
        by_arm: dict[str, dict[int, float]] = {}
        for arm in self.dataset["arm"].values:
            row = self.dataset.sel(arm=arm)
            done = row["status"].values == FINISHED
            by_arm[str(arm)] = {
                seed: float(value)
                for seed, value, there in zip(self.seeds, row["measure"].values, done, strict=True)
                if there
            }
        return by_arm

    @cached_property
    def arms(self) -> list[Arm]:
        """Every arm by itself, in the order of the file."""
        rates = self.dataset["learning_rate"]
        return [
            arm_of(name, values, len(self.seeds), float(rates.sel(arm=name)), self.confidence, self._tried)
            for name, values in self.values.items()
        ]

    @cached_property
    def comparisons(self) -> list[PairedComparison]:
        """Every other arm beside the reference; each interval is one by itself."""
        return [
            compared(arm, self.reference, self.values, self.seeds, **self._settings)
            for arm in self.values
            if arm != self.reference
        ]

    @cached_property
    def claims(self) -> list[TestedClaim]:
        """What was to be tested, with the correction for several tests."""
        claims = [Claim(**claim) for claim in json.loads(self.dataset.attrs["claims"])]
        return decided(claims, self.values, self.seeds, **self._settings)

    @property
    def answer(self) -> str:
        """Which arms differ significantly from the reference, in one sentence."""
        return answer(self.comparisons, self.reference)

    @property
    def findings(self) -> list[str]:
        """Each comparison, significant ones first, then each claim, then how many runs finished."""
        order = ("separated", "not separated", "undecided")
        pairs = sorted(self.comparisons, key=lambda pair: order.index(pair.verdict))
        return [
            *(about_comparison(pair, self.unit, self.confidence) for pair in pairs),
            *(about_claim(tested, self.unit) for tested in self.claims),
            about_runs(self.dataset),
        ]

    @cached_property
    def details(self) -> list[str]:
        """How learning rates were chosen, and what the confidence intervals and tests assume."""
        return [
            *about_tuning(self.dataset),
            *filter(None, [about_grid_ends(self.arms)]),
            *about_tests(self.comparisons, self.claims, self.confidence),
        ]

    @property
    def sentences(self) -> list[str]:
        """The study in words: the answer, the findings, the details."""
        return [self.answer, *self.findings, *self.details]

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The arms as rows of texts, the names of the columns first."""
        return table(self.arms, self.comparisons, self.unit, self.reference, self.confidence)

    @property
    def unit(self) -> str:
        """The measure in words, such as "bits per byte"."""
        return printable(self.measure).replace("_", " ")

    @property
    def _settings(self) -> dict[str, Any]:
        """How differences are judged."""
        return {"confidence": self.confidence, "lower_is_better": self.lower_is_better}

    @property
    def _tried(self) -> list[float]:
        """Learning rates of the tuning; none without it."""
        return self.dataset["rate"].values.tolist() if "rate" in self.dataset else []

    def _at_ends(self, pair: PairedComparison) -> dict[str, str | None]:
        """Return at which end of its grid the learning rate of each of two arms is."""
        ends = {arm.name: arm.learning_rate_at_end for arm in self.arms}
        return {"arm_learning_rate_at_end": ends[pair.arm], "reference_learning_rate_at_end": ends[pair.reference]}

    @property
    def record(self) -> dict[str, Any]:
        """The result as plain JSON values; the numbers of single runs are in `dataset`."""
        return {
            "name": self.name,
            "measure": self.measure,
            "better": self.dataset.attrs["better"],
            "reference": self.reference,
            "confidence": self.confidence,
            "seeds": list(self.seeds),
            "sentences": self.sentences,
            "arms": plain(self.arms),
            "comparisons": [plain(pair) | self._at_ends(pair) for pair in self.comparisons],
            "claims": [
                plain(tested.comparison)
                | {"difference_claimed": tested.claim.difference, "decision": tested.decision, "tests": tested.tests}
                | {"p_corrected": tested.p, "p_size_corrected": tested.p_size}
                | self._at_ends(tested.comparison)
                for tested in self.claims
            ],
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> tuple[Path, ...]:
        """Write the dataset (Zarr), the runs, comparisons and claims as tables (CSV), a summary (JSON) and the page.

        Args:
            folder: It is replaced whole: files of an earlier study go, files of others stay.
            overwrite: Replace foreign files that are in the way.

        Returns:
            Paths of what was written.

        Raises:
            ArgumentValueError: A foreign file is in the way, or another command's results are.
            StorageError: The disk is full or cannot be written; nothing was replaced.
        """
        record = self.record
        put = partial(whole_folder, folder, self.manifest, WRITER, overwrite=overwrite)
        with put() as made:
            # Version 3 has no settled form for words; version 2 has, and every reader takes it.
            self.dataset.to_zarr(made / DATASET, mode="w", zarr_format=2, consolidated=False)
            write_json(made / SUMMARY, record)
            for name, rows in zip(TABLES, (self._runs, record["comparisons"], record["claims"]), strict=True):
                with (made / name).open("w", encoding="utf-8", newline="") as file:
                    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
                    writer.writeheader()
                    for row in rows:
                        fields = {
                            key: " ".join(map(str, value)) if isinstance(value, list) else value
                            for key, value in row.items()
                        }
                        writer.writerow(fields)
            names = sorted((*(path.name for path in made.iterdir()), PAGE))
        with put(keep=True) as made:
            StudyResult(self.dataset, (SUMMARY, *TABLES)).report(made / PAGE)
        return tuple(Path(folder) / name for name in names)

    @property
    def _runs(self) -> list[dict[str, Any]]:
        """The runs as rows of a table."""
        names = ("status", "reason", "measure", "final_validation", "seconds")
        return [
            {
                "arm": str(arm),
                "seed": seed,
                "learning_rate": plain(row["learning_rate"].item()),
                "learning_rate_at_end": str(row.get("learning_rate_at_end", xr.DataArray("")).item()),
                **{name: plain(row[name].sel(seed=seed).item()) for name in names},
            }
            for arm in self.dataset["arm"].values
            for row in [self.dataset.sel(arm=arm)]
            for seed in self.seeds
        ]


def check_results(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder in which `StudyResult.save` would replace what no study wrote, before anything is run.

    Raises:
        ArgumentValueError: See `whole_folder`.
    """
    check_free(folder, (DATASET, SUMMARY, PAGE, *TABLES), WRITER, overwrite=overwrite, argument="--out")


@typed_arguments
def open_study(store: str | Path) -> StudyResult:
    """Return what the runs of a study have left so far.

    Args:
        store: Its folder.

    Raises:
        ArgumentValueError: No folder of a study, or a damaged one.
    """
    place = Path(store)
    return StudyResult(dataset_of(stored_plan(place), place))


def dataset_of(plan: StudyPlan, place: Path) -> xr.Dataset:
    """Return what the runs in a study's folder have left."""
    rates = {arm: experiment.recipe.learning_rate for arm, experiment in plan.arms.items()}
    if plan.tables.tuning is not None:
        chosen = chosen_rates(place)
        rates = {arm: chosen.get(arm) for arm in plan.arms}
    unchosen = [Ended(NOT_RUN, "no learning rate was chosen")] * len(plan.seeds)
    rows = [
        unchosen if rate is None else [how_ended(place, run) for run in plan.runs(arm, rate)]
        for arm, rate in rates.items()
    ]
    measure, runs = plan.measure, ("arm", "seed")
    dataset = xr.Dataset(
        {
            "measure": (runs, _by_run(rows, lambda run: measured(run, "test", measure))),
            "final_validation": (runs, _by_run(rows, lambda run: measured(run, "validation", measure))),
            "status": (runs, _words(rows, "status")),
            "reason": (runs, _words(rows, "reason")),
            "seconds": (runs, _by_run(rows, lambda run: np.nan if run.record is None else run.record.seconds)),
            "learning_rate": (("arm",), np.array([np.nan if rate is None else rate for rate in rates.values()])),
        },
        {"arm": list(plan.arms), "seed": list(plan.seeds)},
        {
            "name": plan.name,
            "preset": plan.preset,
            "measure": plan.measure,
            "better": "lower" if plan.lower_is_better else "higher",
            "reference": plan.tables.study.reference,
            "confidence": plan.tables.study.confidence,
            "claims": json.dumps(plan.identity()["claims"]),
            "specification": plan.source.text,
            "manifest": _recorded(place / MANIFEST),
        },
    )
    return dataset.merge(_over_steps(rows, measure)).merge(_over_layers(rows)).merge(_tuning(plan, place))


def _recorded(path: Path) -> str:
    """Return the manifest of a study as JSON; one that cannot be read is refused, and written anew by --resume."""
    if not os.path.lexists(path):
        return "{}"
    if not isinstance(read_json(path, "store"), dict):
        raise ArgumentValueError("store", "the manifest of a study", f"another one at {path}", "resume the study")
    return path.read_text(encoding="utf-8")


def _by_run(rows: Rows, value: Callable[[Ended], float]) -> np.ndarray:
    return np.array([[value(run) for run in row] for row in rows], dtype=np.float64)


def _words(rows: Rows, name: str) -> np.ndarray:
    return np.array([[getattr(run, name) for run in row] for row in rows])


def _over_steps(rows: Rows, measure: str) -> xr.Dataset:
    """Return the measure on the validation split at each step at which any run was evaluated."""
    evaluated = [
        [{} if run.record is None else _by_step(run.record.validation, measure) for run in row] for row in rows
    ]
    steps = sorted({step for row in evaluated for run in row for step in run})
    values = np.array([[[run.get(step, np.nan) for step in steps] for run in row] for row in evaluated])
    shape = (len(rows), len(rows[0]), len(steps))
    return xr.Dataset({"validation": (("arm", "seed", "step"), values.reshape(shape))}, {"step": steps})


def _by_step(validation: Sequence[Mapping[str, Any]], measure: str) -> dict[int, float]:
    return {int(entry["step"]): _number(entry.get(measure)) for entry in validation}


def _over_layers(rows: Rows) -> xr.Dataset:
    """Return norms and distances through the layers; networks of fewer layers than another have NaN beyond."""
    layers_of_runs = [[{} if run.record is None else run.record.layers for run in row] for row in rows]
    depth = max(
        (len(values) for row in layers_of_runs for run in row for state in run.values() for values in state.values()),
        default=0,
    )
    arrays = {name: np.full((len(rows), len(rows[0]), len(STATES), depth), np.nan) for name in _OF_LAYERS}
    for i, row in enumerate(layers_of_runs):
        for j, run in enumerate(row):
            for k, state in enumerate(STATES):
                for name, key in _OF_LAYERS.items():
                    values = run.get(state, {}).get(key, [])
                    arrays[name][i, j, k, : len(values)] = [_number(value) for value in values]
    dims = ("arm", "seed", "state", "layer")
    coordinates = {"state": list(STATES), "layer": np.arange(depth)}
    return xr.Dataset({name: (dims, array) for name, array in arrays.items()}, coordinates)


def _tuning(plan: StudyPlan, place: Path) -> xr.Dataset:
    if plan.tables.tuning is None:
        return xr.Dataset()
    runs = [list(plan.tuning_runs(arm).values()) for arm in plan.arms]
    ended = [[[how_ended(place, run) for run in row] for row in arm] for arm in runs]
    values = np.array([_by_run(arm, lambda run: measured(run, "validation", plan.measure)) for arm in ended])
    dims = ("arm", "rate", "tuning_seed")
    coordinates = {"rate": plan.tables.tuning.learning_rate, "tuning_seed": plan.tables.tuning.seeds}
    status = np.array([_words(arm, "status") for arm in ended])
    chosen, tried = chosen_rates(place), plan.tables.tuning.learning_rate
    ends = [at_end(chosen.get(arm, np.nan), tried) or "" for arm in plan.arms]
    variables = {"tuning": (dims, values), "tuning_status": (dims, status), "learning_rate_at_end": (("arm",), ends)}
    return xr.Dataset(variables, coordinates)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
