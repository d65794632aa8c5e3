"""Puts a study into one page: what is separated, how arms learned, where their tokens go, and how the runs ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokendynamics.numerics._intervals import T_COVERAGE
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.report.kit._drawing import drawing
from tokendynamics.report.kit._figure import NO_MARKUP, Section
from tokendynamics.report.kit._page import piece, render, write_page
from tokendynamics.report.training._differences import differences
from tokendynamics.report.training._manifest import made, shortened
from tokendynamics.report.training._study_figures import layers, validation
from tokendynamics.report.training._study_result import Study, unit_of
from tokendynamics.report.training._study_tables import arms_table, claims_table, comparisons_table, unfinished_table
from tokendynamics.report.training._study_words import answer, at_an_end, findings, how_many_finished, tuned_on_one_seed
from tokendynamics.report.training._through_layers import ATTENTION_ALONE
from tokendynamics.report.training._tuning import tuning
from tokendynamics.words import Convention, plural

_QUESTION = "which differences are more than chance?"


@typed_arguments
@drawing()
def render_study(result: Study, *, files: Sequence[str] = (), manifest: Mapping[str, Any] | None = None) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        result: From `tokendynamics.sweeps.study.study` or `open_study`.
        files: Names of the data files beside the page.
        manifest: How to make it again; None for what the result records.
    """
    record = result.manifest if manifest is None else manifest
    attributes = result.dataset.attrs
    specification = str(attributes.get("specification", ""))
    return render(
        "training.html.jinja",
        title=f"{result.name}: {_QUESTION}",
        verdict_title="What was found",
        sections=_sections(result),
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in record.items()},
        files=files,
        scripts=("shared.js",),
        sheets=("page.css",),
        about=piece("specification.html.jinja", text=specification) if specification else NO_MARKUP,
        kind="study",
        name=result.name,
        question=_QUESTION,
        shape=_shape(result),
        facts=[("Preset", str(attributes.get("preset", ""))), ("Reference", result.reference), *made(record)],
        answer=answer(result),
        findings=findings(result),
        details=result.sentences,
    )


@typed_arguments
def write_study(
    result: Study,
    path: str | Path,
    *,
    files: Sequence[str] = (),
    manifest: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
) -> Path:
    """Write the page as one file, whole or not at all; see `tokendynamics.report.write_report`.

    Args:
        result: See `render_study`.
        path: The file to write; its folder is made if need be.
        files: See `render_study`.
        manifest: See `render_study`.
        max_bytes: Refuse to write a page larger than this; None for no limit.

    Returns:
        The path written.

    Raises:
        ArgumentValueError: `path` is a folder, or the page would be larger than `max_bytes`.
    """
    return write_page(render_study(result, files=files, manifest=manifest), path, max_bytes=max_bytes)


def _shape(result: Study) -> str:
    better = "lower" if result.lower_is_better else "higher"
    return (
        f"{plural(len(result.arms), 'arm')}, each trained with {plural(len(result.seeds), 'seed')}, and compared by "
        f"{unit_of(result)} on the test split: {better} is better"
    )


def _sections(result: Study) -> list[Section]:
    lost, tuned = unfinished_table(result), "tuning" in result.dataset
    claims = [Section("claims", "What becomes of the claims?", tables=(claims_table(result),))] if result.claims else []
    rates = (
        [
            Section(
                "tuning",
                "Was every arm tuned well enough?",
                (*at_an_end(result), *tuned_on_one_seed(result)),
                figures=(tuning(result),),
            )
        ]
        if tuned
        else []
    )
    compared = (comparisons_table(result),)
    return [
        Section(
            "differences", "Are the differences more than chance?", tables=compared, figures=(differences(result),)
        ),
        *claims,
        Section("arms", "How good is each arm?", tables=(arms_table(result),)),
        Section("course", "How does each arm learn?", figures=validation(result)),
        Section("layers", "Where do their tokens go?", figures=layers(result)),
        *rates,
        Section("ends", "How did the runs end?", (how_many_finished(result),), tables=() if lost is None else (lost,)),
    ]


_CONVENTIONS = (
    Convention(
        "Pairs",
        "runs of one seed see the same data in the same order and begin with the same weights outside of attention, so "
        "that arms are compared seed by seed",
        "what seeds share would count as noise, and differences smaller than it would not be seen",
    ),
    Convention(
        "Intervals",
        f"are t-intervals, those of a difference over the paired seeds. {T_COVERAGE}",
        "a mean would look as sure over two seeds as over ten",
    ),
    Convention(
        "Separated",
        "means that the interval of a difference leaves out nought; each interval is one by itself",
        "of many arms that do not differ some would be separated all the same: claims are corrected for that",
    ),
    Convention(
        "Claims",
        "are tested together: the probability that any of them is decided by chance alone is at most that of one "
        "interval by itself (Holm, 1979)",
        "of twenty claims of arms that do not differ one would hold by chance",
    ),
    Convention(
        "What could have been separated",
        "is the true difference for which the interval leaves out nought with a probability of 80 %, with as many "
        "pairs and the deviation that was found, which is itself known from these pairs alone",
        "nothing found would look like nothing there",
    ),
    Convention(
        "Splits",
        "learning rates are chosen on the validation split, with seeds of their own; arms are compared on the test "
        "split, which nothing is chosen by",
        "an arm that was tuned longer would look better than it is",
    ),
    ATTENTION_ALONE,
    Convention(
        "Runs that did not finish",
        "are in no mean, and their seed is in no pair",
        "a measure of half a training would be held against a whole one",
    ),
)
