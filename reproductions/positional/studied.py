"""The studies behind Tables 1 to 3: run as their examples say, or short ones of the same arms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reproductions.positional.trained import digest_of
from tokendynamics.provenance._progress import Progress
from tokendynamics.sweeps.study import StudyPlan, StudyResult, parse_plan, study
from tokendynamics.sweeps.study._dataset import dataset_of
from tokendynamics.sweeps.study.examples import example_text
from tokendynamics.training import train

DATA = {"pydoc": "the help pages of CPython", "python-doc": "the manual of Python", "digits": "scikit-learn's digits"}

_TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
_LITTLE = {"held_out": 0.01}


def plan_of(example: str) -> StudyPlan:
    """Return the study that ``tokendynamics study --example NAME`` prints."""
    return parse_plan(example_text(example), f"{example}.toml")


def studied(plan: StudyPlan, folder: Path, report: Progress) -> StudyResult:
    """Run a study in a folder of its name, or go on with it where it was stopped."""
    return study(plan, folder / "studies" / plan.name, resume=True, progress=report)


def size_of(plan: StudyPlan) -> str:
    """Say how large a study's networks are, and what they learn."""
    experiment = next(iter(plan.arms.values()))
    model, recipe = experiment.model, experiment.recipe
    return (
        f"{model['num_hidden_layers']} layers of {model['hidden_size']}, {recipe.steps} steps of {recipe.batch}, on "
        f"{DATA.get(experiment.data, experiment.data)}"
    )


def short(plan: StudyPlan, steps: int, seeds: int | None) -> StudyPlan:
    """Return a plan of few steps of tiny networks on the first seeds, without tuning, to see that all works."""
    table = plan.tables.study
    tables = plan.tables.model_copy(
        update={"tuning": None, "study": table.model_copy(update={"seeds": table.seeds[:seeds]})}
    )
    recipe = {"steps": steps, "warmup": 0, "evaluate_every": steps}
    arms = {
        arm: experiment.changed(model=_TINY, recipe=recipe, options=_LITTLE if "held_out" in experiment.options else {})
        for arm, experiment in plan.arms.items()
    }
    return replace(plan, tables=tables, arms=arms)


def in_this_process(plan: StudyPlan, folder: Path, report: Progress) -> StudyResult:
    """Train one run of a short plan after the other: to start a process for each would take longer than the runs."""
    runs = [run for arm in plan.arms for run in plan.runs(arm, None)]
    place = folder / "studies" / f"{plan.name}-{digest_of(plan.identity())}"
    for done, run in enumerate(runs):
        report(done, len(runs), f"Training {plan.name}")
        train(run.experiment, place / run.place, resume=True, threads=1, loggers=())
    report(len(runs), len(runs), f"Training {plan.name}")
    return StudyResult(dataset_of(plan, place))
