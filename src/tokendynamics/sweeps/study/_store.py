"""The folder of a study: what it is of, which learning rates were chosen, and how each of its runs ended.

study.toml, study.json    the file as it was read, and what the results depend on
tuning/ARM/RATE/SEED      runs by which learning rates are chosen; tuning/chosen.json has the choice
runs/ARM/SEED             runs that are compared
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.printable import printable, shortened
from tokendynamics.provenance.manifest import write_json
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import whole_file
from tokendynamics.specification.file import parsed
from tokendynamics.specification.toml import read_text
from tokendynamics.sweeps._store import differences, first_few, own_versions
from tokendynamics.sweeps.study._plan import PlannedRun, StudyFile, StudyPlan
from tokendynamics.training import Experiment, Record
from tokendynamics.training.folder import RECORD
from tokendynamics.training.record import FINISHED

SPECIFICATION, STUDY, FAILURE = "study.toml", "study.json", "failure.json"
FAILED, NOT_RUN = "failed", "not run"
CHOSEN = "tuning/chosen.json"

_LONGEST_REASON = 300


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        status: "finished", "not finite", "failed" or "not run".
        reason: In one line; empty where it is finished.
        record: What it left, where it has come to an end of its own.
    """

    status: str
    reason: str = ""
    record: Record | None = None

    @property
    def settled(self) -> bool:
        """Whether a resumed study has nothing to do for it."""
        return self.record is not None


def write_study(staged: Path, place: Path, plan: StudyPlan) -> None:
    """Make the folder without runs, whole or not at all; `staged` is a folder on the same disk."""
    made = staged / "new"
    made.mkdir()
    (made / SPECIFICATION).write_text(plan.source.text, encoding="utf-8")
    write_json(made / STUDY, {"identity": plan.identity(), "versions": own_versions()})
    made.rename(place)


def stored_plan(place: Path) -> StudyPlan:
    """Return what a folder is a study of, as it was begun, whatever presets of that name are now.

    Raises:
        ArgumentValueError: No folder of a study, or a damaged one.
    """
    stored = _stored(place)
    try:
        values, source = parsed(read_text(place / SPECIFICATION), SPECIFICATION)
        identity = stored["identity"]
        arms = {arm: Experiment.from_json({**settings, "seed": 0}) for arm, settings in identity["arms"].items()}
        plan = StudyPlan(identity["name"], source, source.checked(StudyFile, values), arms)
        if differences(identity, plan.identity()):
            raise ArgumentValueError(f"{STUDY} and {SPECIFICATION} are of two studies")
    except (ArgumentTypeError, ArgumentValueError, OSError, LookupError, TypeError, AttributeError) as error:
        raise ArgumentValueError("store", "the folder of a study", f"{place} ({error})") from error
    return plan


def check_same(place: Path, plan: StudyPlan) -> None:
    """Refuse the folder of another study, or one begun with other versions.

    Raises:
        ArgumentValueError: With what differs, key by key.
    """
    stored = _stored(place)
    for key, given, advice in (
        ("identity", plan.identity(), "undo the change"),
        ("versions", own_versions(), "install the versions with which it was created"),
    ):
        if differing := differences(stored[key], given):
            came = f"another one: {first_few(differing)}"
            raise ArgumentValueError(
                f"store: expected this study at {place}, got {came}; {advice}, or choose another folder"
            )


def _stored(place: Path) -> dict[str, Any]:
    if not (place / STUDY).is_file():
        raise ArgumentValueError("store", "the folder of a study", str(place))
    stored = read_json(place / STUDY, "store")
    if not isinstance(stored, dict) or not all(isinstance(stored.get(key), dict) for key in ("identity", "versions")):
        raise ArgumentValueError("store", "the folder of a study", f"{place} with a damaged {STUDY}")
    return stored


def write_chosen(place: Path, rates: Mapping[str, float]) -> None:
    """Write down the learning rates that tuning chose: they are not chosen again, whatever runs come later."""
    with whole_file(place / CHOSEN) as made:
        write_json(made, dict(rates))


def chosen_rates(place: Path) -> dict[str, float]:
    """Return what `write_chosen` wrote; nothing before.

    Raises:
        ArgumentValueError: The file is damaged.
    """
    path = place / CHOSEN
    if not path.is_file():
        return {}
    rates = read_json(path, "store")
    if not isinstance(rates, dict) or not all(isinstance(rate, float) for rate in rates.values()):
        raise ArgumentValueError("store", "learning rates by arm", f"a damaged {path}", "remove the file")
    return rates


def write_failure(folder: Path, reason: str) -> None:
    """Write down why a run has no record: the last thing that its process said."""
    with whole_file(folder / FAILURE) as made:
        write_json(made, {"reason": shortened(printable(reason), _LONGEST_REASON)})


def how_ended(place: Path, run: PlannedRun) -> Ended:
    """Read how a run ended."""
    folder = place / run.place
    try:
        record = Record.open(folder)
    except ArgumentValueError as error:
        if (folder / RECORD).is_file():
            return Ended(NOT_RUN, f"its record cannot be used ({error})")
        try:
            reason = str(read_json(folder / FAILURE, "store")["reason"])
        except (ArgumentValueError, LookupError, TypeError):  # it did not fail, or nobody could write down why
            reason = ""
        return Ended(FAILED, reason) if reason else Ended(NOT_RUN)
    if record.experiment != run.experiment:
        return Ended(NOT_RUN, "its record belongs to another experiment")
    reason = "" if record.status == FINISHED else "; ".join(record.notes)
    return Ended(record.status, reason, record)


def measured(ended: Ended, split: str, measure: str) -> float:
    """Return a measure of a finished run at its end; NaN of any other."""
    if ended.record is None or ended.status != FINISHED:
        return math.nan
    value = ended.record.measures.get(split, {}).get(measure)
    return math.nan if value is None else float(value)
