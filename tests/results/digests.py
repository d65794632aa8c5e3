"""What a saved result holds, in numbers that two versions can compare: counts and sums of numbers, hashes of words."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import numpy as np


def of_values(values: Any) -> list[Any]:
    """Return the shape, and the number and sum of all finite numbers, or a hash of all words."""
    array = np.asarray(values)
    if array.dtype.kind in "OUTS":
        words = "\x1f".join(map(str, array.astype(object).ravel().tolist()))
        return [list(array.shape), hashlib.sha256(words.encode()).hexdigest()[:12]]
    numbers = array.astype(np.float64)
    finite = np.isfinite(numbers)
    return [list(array.shape), int(finite.sum()), float(numbers[finite].sum())]


def of_table(table: Any) -> dict[str, Any]:
    """Return each variable of a dataset, and how many attributes it has."""
    variables = {str(name): [*variable.dims, of_values(variable.values)] for name, variable in table.variables.items()}
    return {"variables": variables, "attributes": sorted(map(str, table.attrs))}


def of_words(value: Any) -> str:
    """Return a hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


def of_diagnosis(result: Any) -> dict[str, Any]:
    """Return everything that a diagnosis has."""
    tables = {"audit": result.audit, "trace": result.trace, "paths": result.paths}
    tables |= {"levers": result.levers.table, "deeper": result.deeper.table}
    return {
        **{name: of_table(table) for name, table in tables.items()},
        "verdict": of_words(_of_verdict(result.verdict)),
        "levers in words": of_words(
            [result.levers.text, result.levers.answer, result.levers.kappa, result.levers.where]
        ),
        "deeper in words": of_words([result.deeper.sentences, result.deeper.refused, result.deeper.undecoded]),
        "model": of_words(result.model),
        "conventions": of_words([asdict(convention) for convention in result.conventions]),
        "refused": [result.audit_refused, result.levers_refused, result.deeper_refused],
        "manifest": of_words(result.manifest),
    }


def _of_0_1_0(value: Any) -> Any:
    """Return nested values without fields that 0.1.0 did not have, which must then be empty."""
    if not isinstance(value, dict):
        return [_of_0_1_0(item) for item in value] if isinstance(value, list | tuple) else value
    later = ("norms", "heads", "missing")
    assert not any(value.get(name) for name in later)
    return {name: _of_0_1_0(item) for name, item in value.items() if name not in later}


def _of_verdict(verdict: Any) -> dict[str, Any]:
    """Return what 0.1.0 had of a verdict; the state after the final norm, which it had not, must be unknown."""
    fields = asdict(verdict)
    assert fields.pop("final_norm") is None
    return fields


def of_comparison(result: Any) -> dict[str, Any]:
    """Return everything that a comparison of 0.1.0 has; it had no stored tensors, and no effects of heads."""
    assert result.tensors is None
    assert result.heads is None
    tables = {"table": result.table, "difference": result.difference, "gaps": result.gaps, "weights": result.weights}
    tables |= {f"trace {place}": trace for place, trace in enumerate(result.traces)}
    return {
        **{name: None if table is None else of_table(table) for name, table in tables.items()},
        "verdicts": of_words([_of_verdict(verdict) for verdict in result.verdicts]),
        "sentences": of_words([asdict(sentence) for sentence in result.sentences]),
        "partings": of_words([None if parting is None else _of_0_1_0(asdict(parting)) for parting in result.partings]),
        "models": list(result.models),
        "descriptions": of_words(result.descriptions),
        "conventions": of_words([asdict(convention) for convention in result.conventions]),
        "manifest": of_words(result.manifest),
    }


def of_monitor(result: Any) -> dict[str, Any]:
    """Return everything that a monitor has."""
    return {"dataset": of_table(result.dataset), "texts": result.texts, "changes": len(result.changes)}


def of_run(result: Any) -> dict[str, Any]:
    """Return everything that the record of a training has."""
    return {"record": of_words(result.as_json()), "steps": result.steps, "measures": result.measures}


def of_learning(result: Any) -> dict[str, Any]:
    """Return everything that a learned model has."""
    weights = {name: of_values(value.detach().numpy()) for name, value in result.parameters.items()}
    return {"record": of_words(result.as_json()), "weights": weights}


def of_trajectory(result: Any) -> dict[str, Any]:
    """Return everything that a trajectory has."""
    return {"dataset": of_table(result.dataset), "status": result.status.tolist(), "engine": result.engine}
