"""A study's page in its first words: what is separated, what becomes of claims, and how many runs finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokendynamics.report.training._study_result import Comparison, Study, TestedClaim, percent_of, unit_of
from tokendynamics.training._record import FINISHED
from tokendynamics.words import count, number, plural, signed

SEPARATED, NOT_SEPARATED, UNDECIDED = "separated", "not separated", "undecided"


def answer(result: Study) -> str:
    """Return the study in one sentence.

    Args:
        result: What it found.
    """
    of, pairs = result.reference, result.comparisons
    found = _with(pairs, SEPARATED)
    if len(pairs) == 1 and pairs[0].verdict != UNDECIDED:
        (only,) = pairs
        told = "" if only.better is None else f": it is {_direction(only)}"
        return f"{only.arm} is {only.verdict} from {of}{told}."
    if found:
        parts = [f"{_are([each.arm for each in some])} {word}" for word, some in _by_direction(found)]
        are = "is" if len(found) == 1 else "are"
        return f"{count(len(found))} of {plural(len(pairs), 'arm')} {are} separated from {of}: {'; '.join(parts)}."
    undecided = len(_with(pairs, UNDECIDED))
    if undecided == len(pairs):
        return "Nothing can be decided: no arm shares two finished seeds with the reference."
    rest = f"; {count(undecided)} of {count(len(pairs))} cannot be compared" if undecided else ""
    return f"No arm is separated from {of}{rest}."


def findings(result: Study) -> list[str]:
    """Return what the answer stands on: differences with intervals, what was too small to be seen, claims, runs.

    Args:
        result: What the study found.
    """
    return [
        *(_separated(each, result) for each in _with(result.comparisons, SEPARATED)),
        *(_not_separated(each, result) for each in _with(result.comparisons, NOT_SEPARATED)),
        *(_undecided(each) for each in _with(result.comparisons, UNDECIDED)),
        *_claims(result.claims, unit_of(result)),
        how_many_finished(result),
    ]


def how_many_finished(result: Study) -> str:
    """Say how many runs finished, and how many ended in each other way."""
    ended = Counter(map(str, result.dataset["status"].values.ravel()))
    total, done = sum(ended.values()), ended.pop(FINISHED, 0)
    if done == total:
        return f"All {count(total)} runs finished."
    ways = ", ".join(f"{count(many)} {how}" for how, many in ended.most_common())
    return f"{count(total - done)} of {plural(total, 'run')} did not finish: {ways}."


def at_an_end(result: Study) -> list[str]:
    """Say of which arms the learning rate that was chosen is the largest or the smallest that was tried."""
    if "tuning" not in result.dataset:
        return []
    return [_edges(result) or "No learning rate that was chosen is at an end of the grid."]


def caution(result: Study) -> str:
    """Return what a table of differences has to say of its tuning: rates at an end of the grid; else nothing.

    Args:
        result: What the study found.
    """
    found = _edges(result)
    return f". {found.removesuffix('.')}" if found else ""


def _edges(result: Study) -> str:
    found = [
        f"{arm.name} ({number(arm.learning_rate)}, the {arm.learning_rate_at_end})"
        for arm in result.arms
        if arm.learning_rate_at_end
    ]
    return (
        f"At an end of the grid is the learning rate of {listed(found)}: a better one may lie beyond." if found else ""
    )


def tuned_on_one_seed(result: Study) -> list[str]:
    """Say where each learning rate was tried with one seed.

    Args:
        result: What the study found.
    """
    if "tuning" not in result.dataset or result.dataset.sizes["tuning_seed"] > 1:
        return []
    return [
        "Each learning rate was tried with one seed: rates whose measures differ by less than seeds do cannot be "
        "ranked."
    ]


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def claimed(found: TestedClaim, unit: str) -> str:
    """Return a claim in words."""
    claim = found.claim
    by = "" if claim.difference is None else f" by {number(claim.difference)} {unit} or more"
    return f"{claim.better} is better than {claim.worse}{by}"


def _with(pairs: Sequence[Comparison], verdict: str) -> list[Comparison]:
    return [each for each in pairs if each.verdict == verdict]


def _direction(pair: Comparison) -> str:
    return "better" if pair.better else "worse"


def _by_direction(pairs: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    sorted_out = [(word, [each for each in pairs if _direction(each) == word]) for word in ("better", "worse")]
    return [(word, some) for word, some in sorted_out if some]


def _are(names: Sequence[str]) -> str:
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def _separated(pair: Comparison, result: Study) -> str:
    """Say by how much: the interval is that of the difference without its sign, which the words have."""
    size, *ends = (abs(each) for each in (pair.mean, pair.low, pair.high) if each is not None)
    return (
        f"{pair.arm} is {_direction(pair)} than {pair.reference} by {number(size)} {unit_of(result)} "
        f"({_interval(pair, sorted(ends), result)}): separated."
    )


def _not_separated(pair: Comparison, result: Study) -> str:
    """Say what the difference is and what could have been seen, or that there is none on any seed."""
    if not any(pair.differences):
        return f"{pair.arm} has the measure of {pair.reference} on every seed: not separated."
    unit, ends = unit_of(result), [each for each in (pair.low, pair.high) if each is not None]
    told = (
        f"{pair.arm} − {pair.reference} is {signed(pair.mean)} {unit} ({_interval(pair, ends, result)}): not separated"
    )
    return (
        f"{told}; a true difference of {number(pair.detectable)} would have been separated with a probability of 80 %."
    )


def _interval(pair: Comparison, ends: Sequence[float], result: Study) -> str:
    low, high = ends
    return f"{percent_of(result)} interval {number(low)} to {number(high)}, {len(pair.seeds)} paired seeds"


def _undecided(pair: Comparison) -> str:
    shared = "one seed was finished by both: one seed has no interval" if pair.seeds else "no seed was finished by both"
    return f"{pair.arm} is undecided beside {pair.reference}: {shared}."


def _claims(claims: Sequence[TestedClaim], unit: str) -> list[str]:
    if not claims:
        return []
    told = "; ".join(f"“{claimed(each, unit)}” {each.decision}" for each in claims)
    return [f"{'Claim' if len(claims) == 1 else 'Claims'}: {told}."]
