"""A study in sentences: how many runs there are, how arms were tuned, what is separated, and what becomes of claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from tokendynamics.numerics._intervals import T_COVERAGE
from tokendynamics.sweeps.study._claims import TestedClaim
from tokendynamics.sweeps.study._paired import POWER, Arm, Comparison, at_end
from tokendynamics.sweeps.study._plan import StudyPlan
from tokendynamics.sweeps.study._store import NOT_RUN
from tokendynamics.training._record import FINISHED
from tokendynamics.words import number, signed

ONE_SEED = (
    "Each learning rate was tried with one seed: rates whose measures differ by less than seeds do cannot be ranked."
)
"""What is said where the tuning has one seed."""

_NAMED = 5
"""Runs that a sentence names."""


def about_plan(plan: StudyPlan) -> str:
    """Say how many runs a study has."""
    arms, seeds, tuning = len(plan.arms), len(plan.seeds), plan.tables.tuning
    told = (
        f"{plan.name}: {arms} arms × {seeds} seed{'s' * (seeds > 1)} = {arms * seeds} runs of the preset {plan.preset}"
    )
    if tuning is None:
        return told
    rates, own = len(tuning.learning_rate), len(tuning.seeds)
    grid = f"{arms} × {rates} learning rates × {own} seed{'s' * (own > 1)} = {arms * rates * own} runs"
    return f"{told}, after {grid} of tuning"


def table(
    arms: Sequence[Arm], comparisons: Sequence[Comparison], unit: str, reference: str, confidence: float
) -> list[tuple[str, ...]]:
    """Return a study as rows of texts, the names of the columns first."""
    percent, beside = f"{100 * confidence:.4g} %", {found.arm: found for found in comparisons}
    rows = [("arm", "learning rate", "seeds", f"{unit} ({percent})", f"minus {reference} ({percent})", "verdict")]
    for arm in arms:
        found = beside.get(arm.name)
        rate = "none" if arm.learning_rate is None else f"{arm.learning_rate:g}"
        rate += f" ({arm.learning_rate_at_end} tried)" if arm.learning_rate_at_end else ""
        level = _ends(arm.mean, arm.low, arm.high, _four_digits)
        difference = "" if found is None else _ends(found.mean, found.low, found.high, signed)
        rows.append((arm.name, rate, f"{arm.finished}/{arm.runs}", level, difference, _verdict(found)))
    return rows


def _ends(mean: float | None, low: float | None, high: float | None, told: Callable[[float], str]) -> str:
    if mean is None:
        return "no run"
    return f"{told(mean)} ({'one run' if low is None or high is None else f'{told(low)} … {told(high)}'})"


def _verdict(found: Comparison | None) -> str:
    if found is None:
        return "the reference"
    return found.verdict if found.better is None else f"{found.verdict}, {'better' if found.better else 'worse'}"


def about_runs(dataset: xr.Dataset) -> list[str]:
    """Say how many runs finished, and how the others ended."""
    status = dataset["status"].values
    ended = [
        f"{arm} with seed {seed} {_ended(status[row, column], dataset['reason'].values[row, column])}"
        for row, arm in enumerate(dataset["arm"].values)
        for column, seed in enumerate(dataset["seed"].values)
        if status[row, column] != FINISHED
    ]
    told = f"{status.size - len(ended)} of {status.size} runs finished"
    return [told + (f": {_some(ended)}." if ended else ".")]


def about_tuning(dataset: xr.Dataset) -> list[str]:
    """Say which learning rates were chosen, where one is at an end of the grid, and which runs were of no use."""
    if "tuning" not in dataset:
        return []
    rates, seeds = dataset["rate"].values, ", ".join(map(str, dataset["tuning_seed"].values))
    chosen = {str(arm): float(dataset["learning_rate"].sel(arm=arm)) for arm in dataset["arm"].values}
    found = ", ".join(f"{arm} {rate:g}" for arm, rate in chosen.items() if np.isfinite(rate)) or "none so far"
    sentences = [
        f"The learning rate of each arm is the best of {len(rates)} on the validation split, over seeds that nothing "
        f"else is run with ({seeds}): {found}."
    ]
    if dataset.sizes["tuning_seed"] == 1:
        sentences.append(ONE_SEED)
    for arm, rate in chosen.items():
        if end := at_end(rate, rates.tolist()):
            told = f"The best learning rate of arm {arm} is the {end} tried ({rate:g}): a better may lie beyond."
            sentences.append(told)
        elif not np.isfinite(rate):
            waits = (dataset["tuning_status"].sel(arm=arm) == NOT_RUN).any()
            why = "not all of its tuning has been run" if waits else "none finished on every seed"
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
            f"{status.size - len(lost)} of {status.size} tuning runs finished, and a learning rate without all its "
            f"seeds is not chosen: {_some(lost)}."
        )
    return sentences


def about_comparison(found: Comparison, unit: str, confidence: float) -> str:
    """Say what is between an arm and the reference: never a mean without its interval, unless there is none."""
    pair, left = f"{found.arm} − {found.reference}", _left_out(found)
    if found.mean is None:
        return f"{pair}: undecided, no seed was finished by both{left}."
    told = f"{pair} = {signed(found.mean)} {unit}"
    if found.low is None or found.high is None:
        return f"{told} for one seed{left}: undecided, one pair has no interval."
    ends = f"{100 * confidence:.4g} % interval {signed(found.low)} … {signed(found.high)}"
    told += f" ({ends}, {len(found.seeds)} paired seeds{left})"
    if found.verdict == "separated":
        return f"{told}: separated, {found.arm} is {'better' if found.better else 'worse'}."
    return f"{told}: not separated; {_size(found, unit)}."


def about_claim(found: TestedClaim, unit: str) -> str:
    """Say what becomes of a claim, and why."""
    claim, pair = found.claim, found.comparison
    by = "" if claim.difference is None else f" by {claim.difference:g} {unit} or more"
    told = f"Claim: {claim.better} is better than {claim.worse}{by}: {found.decision}"
    if found.p is None:
        return f"{told}: fewer than two seeds were finished by both."
    corrected = f", corrected for {found.tests} tests" if found.tests > 1 else ""
    p = f"p = {found.p:.2g}{corrected}"
    if found.decision == "holds":
        return f"{told} ({p if found.p_size is None else f'p = {found.p_size:.2g}{corrected}'})."
    if found.decision == "does not hold" and claim.difference is None:
        return f"{told}: it is the other way round ({p})."
    if found.decision == "does not hold":
        return f"{told}: differences so large are excluded (p = {found.p_size:.2g}{corrected})."
    shown = "not among all tests" if claim.difference is None else "not from one so large"
    alone = f"separated by itself, but {shown}; " if pair.verdict == "separated" else ""
    return f"{told} ({p}): {alone}{_size(pair, unit)}."


def about_tests(comparisons: Sequence[Comparison], claims: Sequence[TestedClaim], confidence: float) -> list[str]:
    """Say what the intervals assume, and what several intervals and several tests mean together."""
    error, sentences = f"{100 * (1 - confidence):.3g} %", []
    if any(pair.low is not None for pair in (*comparisons, *(each.comparison for each in claims))):
        sentences.append(f"{T_COVERAGE}.")
    if len(comparisons) > 1:
        sentences.append(
            f"Each interval is one by itself: of arms that do not differ from the reference, {error} are separated."
        )
    if claims and claims[0].tests > 1:
        sentences.append(
            f"The {claims[0].tests} tests of the claims share one error of {error} (Holm's correction); what could be "
            "separated is told for the strictest of them."
        )
    return sentences


def _size(found: Comparison, unit: str) -> str:
    if found.detectable == 0:
        return "all differences are the same"
    sure = f"with a probability of {100 * POWER:.0f} %"
    told = f"a difference of {found.detectable:.2g} {unit} would have been separated {sure}"
    return told if found.needed is None else f"{told}, one as large as this takes {found.needed:,} seeds"


def _left_out(found: Comparison) -> str:
    many = "s" if len(found.left_out) > 1 else ""
    return f", without seed{many} {', '.join(map(str, found.left_out))}" if found.left_out else ""


def _ended(status: object, reason: object) -> str:
    return f"{status} ({reason})" if reason else f"{status}"


def _some(named: Sequence[str]) -> str:
    more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return "; ".join(named[:_NAMED]) + more


def _four_digits(value: float) -> str:
    return number(value, 4)
