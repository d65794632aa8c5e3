"""A study in sentences: which arms differ significantly from the reference, which claims hold, how the runs ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.sweeps.study._plan import StudyPlan
from tokendynamics.sweeps.study._store import NOT_RUN
from tokendynamics.sweeps.study.paired import POWER, Arm, PairedComparison, TestedClaim
from tokendynamics.training.record import FINISHED
from tokendynamics.words import count, fixed, interval, listing, number, percent, places_for, plural, signed

ONE_SEED = (
    "Each learning rate was tried with one seed: rates whose measures differ by less than the variation between seeds "
    "cannot be ranked."
)
"""The warning about a tuning with one seed."""

VERDICTS = {"separated": "significant", "not separated": "not significant", "undecided": "undecided"}
"""The words for a comparison's verdict."""

_ONE_PAIR = "one pair has no confidence interval"
_EQUAL = "all differences are equal, so that no confidence interval follows from how they vary"

_NAMED = 5
"""Most runs that a sentence names."""


def about_plan(plan: StudyPlan) -> str:
    """Return how many runs a study has."""
    arms, seeds, tuning = len(plan.arms), len(plan.seeds), plan.tables.tuning
    runs = f"{plan.name}: {arms} arms × {plural(seeds, 'seed')} = {arms * seeds} runs of the preset {plan.preset}"
    if tuning is None:
        return runs
    rates, tuning_seeds = len(tuning.learning_rate), len(tuning.seeds)
    grid = f"{arms} × {rates} learning rates × {plural(tuning_seeds, 'seed')} = {arms * rates * tuning_seeds} runs"
    return f"{runs}, after {grid} of tuning"


def table(
    arms: Sequence[Arm], comparisons: Sequence[PairedComparison], unit: str, reference: str, confidence: float
) -> list[tuple[str, ...]]:
    """Return a study as rows of texts, the names of the columns first."""
    level, by_arm = f"{percent(confidence)} CI", {pair.arm: pair for pair in comparisons}
    rows = [("arm", "learning rate", "seeds", f"{unit} ({level})", f"minus {reference} ({level})", "verdict")]
    for arm in arms:
        pair = by_arm.get(arm.name)
        rate = "none" if arm.learning_rate is None else f"{arm.learning_rate:g}"
        rate += f" ({arm.learning_rate_at_end} tried)" if arm.learning_rate_at_end else ""
        mean = _ends(arm.mean, arm.low, arm.high, arm.finished, lambda value: number(value, 4))
        difference = "" if pair is None else _ends(pair.mean, pair.low, pair.high, len(pair.seeds), signed)
        verdict = "reference" if pair is None else verdict_of(pair)
        rows.append((arm.name, rate, f"{arm.finished}/{arm.runs}", mean, difference, verdict))
    return rows


def verdict_of(pair: PairedComparison) -> str:
    """Return whether a difference is significant and which arm is better, in two words."""
    word = VERDICTS[pair.verdict]
    return word if pair.better is None else f"{word}, {'better' if pair.better else 'worse'}"


def answer(comparisons: Sequence[PairedComparison], reference: str) -> str:
    """Return the study in one sentence.

    Args:
        comparisons: Every other arm with the reference.
        reference: Its name.
    """
    significant = [pair for pair in comparisons if pair.better is not None]
    undecided = sum(pair.verdict == "undecided" for pair in comparisons)
    if undecided == len(comparisons):
        if all(len(pair.seeds) < 2 for pair in comparisons):
            return "No comparison is possible: no arm shares two finished seeds with the reference."
        return (
            "No comparison can be decided: each arm differs from the reference by one amount on all the finished seeds "
            "that they share."
        )
    if len(comparisons) == 1:
        (pair,) = comparisons
        if pair.better is None:
            return f"{pair.arm} does not differ significantly from {reference}."
        return f"{pair.arm} is significantly {'better' if pair.better else 'worse'} than {reference}."
    rest = f"; {undecided} of {len(comparisons)} cannot be decided" if undecided else ""
    if not significant:
        return f"No arm differs significantly from {reference}{rest}."
    sides = [
        f"{listing(names)} {'is' if len(names) == 1 else 'are'} {word}"
        for word, side in (("better", True), ("worse", False))
        if (names := [pair.arm for pair in significant if pair.better is side])
    ]
    verb = "differs" if len(significant) == 1 else "differ"
    arms = plural(len(comparisons), "arm")
    return f"{len(significant)} of {arms} {verb} significantly from {reference}: {'; '.join(sides)}{rest}."


def about_runs(dataset: xr.Dataset) -> str:
    """Return how many runs finished, and how the others ended."""
    status, reasons = dataset["status"].values, dataset["reason"].values
    others = [
        f"{arm} with seed {seed} {status[row, column]}" + (f" ({reason})" if (reason := reasons[row, column]) else "")
        for row, arm in enumerate(dataset["arm"].values)
        for column, seed in enumerate(dataset["seed"].values)
        if status[row, column] != FINISHED
    ]
    if not others:
        return f"All {plural(status.size, 'run')} finished."
    return f"{count(len(others))} of {plural(status.size, 'run')} did not finish: {_first_names(others)}."


def about_tuning(dataset: xr.Dataset) -> list[str]:
    """Return which learning rates were chosen, which are at an end of the grid, and which runs did not finish."""
    if "tuning" not in dataset:
        return []
    rates, seeds = dataset["rate"].values, ", ".join(map(str, dataset["tuning_seed"].values))
    chosen = {str(arm): float(dataset["learning_rate"].sel(arm=arm)) for arm in dataset["arm"].values}
    choices = ", ".join(f"{arm} {rate:g}" for arm, rate in chosen.items() if np.isfinite(rate)) or "none yet"
    sentences = [
        f"Each arm has the best of {len(rates)} learning rates on the validation split, over seeds used for nothing "
        f"else ({seeds}): {choices}."
    ]
    if dataset.sizes["tuning_seed"] == 1:
        sentences.append(ONE_SEED)
    for arm, rate in chosen.items():
        if not np.isfinite(rate):
            waits = (dataset["tuning_status"].sel(arm=arm) == NOT_RUN).any()
            why = "its tuning is not complete" if waits else "no learning rate finished on every seed"
            sentences.append(f"Arm {arm} has no learning rate and was not run: {why}.")
    status = dataset["tuning_status"].values
    lost = [
        f"{arm} at {rate:g} with seed {seed} {status[i, j, k]}"
        for i, arm in enumerate(dataset["arm"].values)
        for j, rate in enumerate(rates)
        for k, seed in enumerate(dataset["tuning_seed"].values)
        if status[i, j, k] != FINISHED
    ]
    if lost:
        sentences.append(
            f"{count(status.size - len(lost))} of {plural(status.size, 'tuning run')} finished. A learning rate is not "
            f"chosen unless all its seeds finished: {_first_names(lost)}."
        )
    return sentences


def about_grid_ends(arms: Sequence[Arm]) -> str:
    """Return which chosen learning rates are the largest or smallest tried; empty where none is."""
    names = [
        f"{arm.name} ({number(arm.learning_rate)}, the {arm.learning_rate_at_end} tried)"
        for arm in arms
        if arm.learning_rate_at_end
    ]
    return f"A better learning rate may lie beyond the grid for {listing(names)}." if names else ""


def about_comparison(pair: PairedComparison, unit: str, confidence: float) -> str:
    """Return an arm's difference from the reference with its confidence interval, and whether it is significant."""
    if pair.mean is None:
        return f"{pair.arm} cannot be compared with {pair.reference}: no seed finished in both{_left_out(pair)}."
    seeds = f"{plural(len(pair.seeds), 'paired seed')}{_left_out(pair)}"
    if pair.verdict == "not separated" and pair.low is None:
        return f"{pair.arm} equals {pair.reference} on every seed ({seeds}): not significant."
    if pair.low is None or pair.high is None:
        whose, why = (f"each of {seeds}", _EQUAL) if len(pair.seeds) > 1 else ("one seed" + _left_out(pair), _ONE_PAIR)
        of_both = f"The difference {pair.arm} − {pair.reference} is {signed(pair.mean)} {unit} for {whose}"
        return f"{of_both}: undecided, because {why}."
    places = places_for((pair.low, pair.high))
    if pair.better is not None:
        ends = sorted((abs(pair.low), abs(pair.high)))
        return (
            f"{pair.arm} is significantly {'better' if pair.better else 'worse'} than {pair.reference}, by "
            f"{fixed(abs(pair.mean), places)} {unit} ({interval(ends, confidence, places=places)}, {seeds})."
        )
    return (
        f"The difference {pair.arm} − {pair.reference} of {fixed(pair.mean, places, sign=True)} {unit} is not "
        f"significant ({interval((pair.low, pair.high), confidence, places=places)}, {seeds}). {_power(pair, unit)}"
    )


def claimed(claim: Any, unit: str) -> str:
    """Return a claim as a clause.

    Args:
        claim: Of the study.
        unit: Of the measure.
    """
    by = "" if claim.difference is None else f" by {number(claim.difference)} {unit} or more"
    return f"{claim.better} is better than {claim.worse}{by}"


def about_claim(tested: TestedClaim, unit: str) -> str:
    """Return whether a claim holds, and why."""
    sized = tested.claim.difference is not None
    start = f"Claim: {claimed(tested.claim, unit)}: {tested.decision}"
    if tested.p is None:
        equal = len(tested.comparison.seeds) > 1
        return f"{start}: {_EQUAL if equal else 'fewer than two seeds finished in both arms'}."
    corrected = f", corrected for {tested.tests} tests" if tested.tests > 1 else ""
    p = f"p = {number(tested.p, 2)}{corrected}"
    size = p if tested.p_size is None else f"p = {number(tested.p_size, 2)}{corrected}"
    if tested.decision == "holds":
        return f"{start} ({size})."
    if tested.decision == "does not hold":
        if sized:
            return f"{start}: a difference this large is excluded ({size})."
        return f"{start}: the difference is significant in the other direction ({p})."
    pair = tested.comparison
    alone = "the claimed size is not shown" if sized else "not after the correction for several tests"
    only = f"The difference is significant by itself, but {alone}. " if pair.verdict == "separated" else ""
    return f"{start} ({p}). {only}{_power(pair, unit)}"


def about_tests(comparisons: Sequence[PairedComparison], claims: Sequence[TestedClaim], confidence: float) -> list[str]:
    """Return what the confidence intervals assume, and how several intervals and tests are to be read together."""
    error, sentences = percent(1 - confidence), []
    if any(pair.low is not None for pair in (*comparisons, *(tested.comparison for tested in claims))):
        sentences.append(f"{T_COVERAGE}.")
    if len(comparisons) > 1:
        sentences.append(
            f"Confidence intervals are not corrected for their number: {error} of arms equal to the reference differ "
            "significantly by chance."
        )
    if claims and claims[0].tests > 1:
        sentences.append(
            f"The {claims[0].tests} tests of the claims share an error rate of {error} (Holm's correction). Detectable "
            "differences are those of the strictest test."
        )
    return sentences


def _power(pair: PairedComparison, unit: str) -> str:
    power = (
        f"A true difference of {number(pair.detectable, 2)} {unit} would be detected with {percent(POWER)} probability"
    )
    if pair.needed is None:
        return f"{power}."
    return f"{power}; the observed one takes {plural(pair.needed, 'seed')}."


def _ends(mean: float | None, low: float | None, high: float | None, runs: int, write: Callable[[float], str]) -> str:
    if mean is None:
        return "no run"
    if low is None or high is None:
        return f"{write(mean)} ({'one run' if runs == 1 else f'equal in {runs} runs'})"
    return f"{write(mean)} ({write(low)} to {write(high)})"


def _left_out(pair: PairedComparison) -> str:
    many = "s" if len(pair.left_out) > 1 else ""
    return f", without seed{many} {', '.join(map(str, pair.left_out))}" if pair.left_out else ""


def _first_names(names: Sequence[str]) -> str:
    more = f"; and {count(len(names) - _NAMED)} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more
