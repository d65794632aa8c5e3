"""The pages of results about circuits that were made in Python, without a command or a manifest."""

from __future__ import annotations

from tokendynamics.circuits.constructions import TaskComparison
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.landscape import LandscapeSurvey
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.report._registry import page_of
from tokendynamics.report.circuits.page import circuits_page
from tokendynamics.report.circuits.reports import built_report, evidence_report, landscape_report, learning_report


@page_of.register(TaskComparison)
def built_page(comparison: TaskComparison) -> str:
    """Return the page of a hand-built transformer.

    Args:
        comparison: Its outputs and the targets.
    """
    return circuits_page(built_report(comparison, {}, (), meant="exact"))


@page_of.register(Evidence)
def evidence_page(result: Evidence) -> str:
    """Return the page of a transformer and the five instruments.

    Args:
        result: The evidence.

    Raises:
        ArgumentValueError: It does not hold the model.
    """
    if result.model is None:
        raise ArgumentValueError(expected("result", "evidence with its model", "model=None", "measure the model again"))
    return circuits_page(evidence_report(result.model, result, {}, ()))


@page_of.register(LearningRecord)
def learning_page(record: LearningRecord) -> str:
    """Return the page of one run of `learn`, whose model is measured for it where the run finished.

    Args:
        record: The record of the run.
    """
    measurable = record.status == "finished" and record.task.positions > 1
    measured = evidence(record.transformer, record.task, seed=record.seed) if measurable else None
    return circuits_page(learning_report([record], [measured], {}, ()))


@page_of.register(LandscapeSurvey)
def landscape_page(survey: LandscapeSurvey) -> str:
    """Return the page of one loss landscape.

    Args:
        survey: The survey.
    """
    return circuits_page(landscape_report(survey, {}, ()))
