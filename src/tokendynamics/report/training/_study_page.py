"""The page of a study: significant differences, validation curves, tokens through the layers, how the runs ended."""

from __future__ import annotations

from tokendynamics.numerics._intervals import T_COVERAGE
from tokendynamics.report._registry import page_of
from tokendynamics.report.kit._figure import NO_MARKUP, Section
from tokendynamics.report.kit._manifest import made, shortened
from tokendynamics.report.kit._page import piece, render
from tokendynamics.report.training._differences import differences
from tokendynamics.report.training._study_figures import layers, validation
from tokendynamics.report.training._study_tables import arms_table, claims_table, comparisons_table, unfinished_table
from tokendynamics.report.training._through_layers import ATTENTION_ALONE
from tokendynamics.report.training._tuning import tuning
from tokendynamics.sweeps.study import StudyResult
from tokendynamics.sweeps.study._words import ONE_SEED, about_grid_ends, about_runs
from tokendynamics.words import Convention, plural

_QUESTION = "which differences are significant?"


@page_of.register(StudyResult)
def study_page(result: StudyResult) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        result: From `tokendynamics.sweeps.study.study` or `open_study`.
    """
    record = result.manifest
    attributes = result.dataset.attrs
    specification = str(attributes.get("specification", ""))
    return render(
        "training.html.jinja",
        title=f"{result.name}: {_QUESTION}",
        verdict_title="What was found",
        sections=_sections(result),
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in record.items()},
        files=result.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        about=piece("specification.html.jinja", text=specification) if specification else NO_MARKUP,
        kind="study",
        name=result.name,
        question=_QUESTION,
        shape=_shape(result),
        facts=[("Preset", str(attributes.get("preset", ""))), ("Reference", result.reference), *made(record)],
        answer=result.answer,
        findings=result.findings,
        details=result.details,
    )


def _shape(result: StudyResult) -> str:
    better = "lower" if result.lower_is_better else "higher"
    return (
        f"{plural(len(result.arms), 'arm')}, each trained with {plural(len(result.seeds), 'seed')}, and compared by "
        f"{result.unit} on the test split: {better} is better"
    )


def _sections(result: StudyResult) -> list[Section]:
    lost, tuned = unfinished_table(result), "tuning" in result.dataset
    claims = [Section("claims", "Do the claims hold?", tables=(claims_table(result),))] if result.claims else []
    rates = (
        [
            Section(
                "tuning",
                "Was every arm tuned well enough?",
                _of_tuning(result),
                figures=(tuning(result),),
            )
        ]
        if tuned
        else []
    )
    compared = (comparisons_table(result),)
    return [
        Section("differences", "Which differences are significant?", tables=compared, figures=(differences(result),)),
        *claims,
        Section("arms", "How good is each arm?", tables=(arms_table(result),)),
        Section("course", "How does each arm learn?", figures=validation(result)),
        Section("layers", "Where do the tokens go?", figures=layers(result)),
        *rates,
        Section("ends", "How did the runs end?", (about_runs(result.dataset),), tables=() if lost is None else (lost,)),
    ]


def _of_tuning(result: StudyResult) -> tuple[str, ...]:
    one_seed = (ONE_SEED,) if result.dataset.sizes["tuning_seed"] == 1 else ()
    return (about_grid_ends(result.arms) or "No chosen learning rate is at an end of the grid.", *one_seed)


_CONVENTIONS = (
    Convention(
        "Pairs",
        "runs with one seed see the same data in the same order and start from the same weights outside attention, so "
        "arms are compared seed by seed",
        "variation between seeds would count as noise and hide smaller differences",
    ),
    Convention(
        "Intervals",
        f"are t-intervals; those of a difference are over the paired seeds. {T_COVERAGE}",
        "a mean over two seeds would look as certain as one over ten",
    ),
    Convention(
        "Significant",
        "means that the confidence interval of a difference excludes zero, without a correction for several intervals",
        "among many arms that do not differ, some would differ significantly by chance: claims are corrected for that",
    ),
    Convention(
        "Claims",
        "are tested together: the probability that chance alone decides any of them is at most that of a single "
        "interval (Holm, 1979)",
        "of twenty claims about arms that do not differ, one would hold by chance",
    ),
    Convention(
        "Detectable difference",
        "is the true difference whose interval excludes zero with 80 % probability, given the number of pairs and "
        "their standard deviation, which is itself estimated from these pairs",
        "a difference that is not significant would look like no difference",
    ),
    Convention(
        "Splits",
        "learning rates are chosen on the validation split, with separate seeds; arms are compared on the test "
        "split, which chooses nothing",
        "an arm that was tuned longer would look better than it is",
    ),
    ATTENTION_ALONE,
    Convention(
        "Runs that did not finish",
        "are excluded from every mean, and their seeds from every pair",
        "the measure of an incomplete run would be compared with that of a complete one",
    ),
)
