"""Searches for counterexamples of the conjectures and false claims of the atlas, whose records are docs/searches.json.

``python -m reproductions.searches --minutes 60`` gives each statement that long, or those named by ``--statement``; the
records of others stay. A record says with which seed and how
many rounds it came about; `search_counterexample` with these gives the same numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokendynamics.provenance.manifest import versions, write_json
from tokendynamics.theorems import ATLAS, Search, Statement, search_counterexample

RECORDS = Path(__file__).parents[1] / "docs" / "searches.json"
SEED, COUNT = 39, 256
RUNS: dict[str, dict[str, Any]] = {
    "hardmax-3": {
        "times": list(itertools.accumulate((2 / (layer + 2) for layer in range(200)), initial=0.0)),
        "engine": "fixed",
        "method": "euler",
        "step": 1.0,
        "frame": "rescaled",
    },
}
"""How systems of a statement run where it is not as `search_counterexample` does: layers whose shares fall."""


def searched(statement: Statement, minutes: float, seed: int = SEED, count: int = COUNT) -> dict[str, Any]:
    """Search round by round for a number of minutes, one round at least, and return the record."""
    started, rounds = time.monotonic(), 0
    with TemporaryDirectory() as folder:
        store = Path(folder) / "search.json"
        while True:
            rounds += 1
            search = search_counterexample(
                statement,
                seed=seed,
                rounds=rounds,
                count=count,
                store=store,
                resume=True,
                progress=False,
                **RUNS.get(statement.name, {}),
            )
            spent = (time.monotonic() - started) / 60
            if search.counterexample is not None or spent >= minutes:
                return {"rounds": rounds, "count": count, "minutes": round(spent), **_entries(statement, search)}


def _entries(statement: Statement, search: Search) -> dict[str, Any]:
    return {
        "statement": search.statement,
        "standing": statement.standing,
        "seed": search.seed,
        "drawn": search.drawn,
        "applying": search.applying,
        "outcomes": search.outcomes,
        "shortfall": search.shortfall,
        "counterexample": search.counterexample and search.counterexample.text,
        "confirmed": search.counterexample and search.counterexample.confirmed,
    }


def main() -> None:
    """Search conjectures and false claims, one after the other, and write what came of it each time."""
    open_to_search = [statement.name for statement in ATLAS if statement.standing != "theorem"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--statement", action="append", choices=open_to_search, help="one to search; may be repeated")
    parser.add_argument("--out", type=Path, default=RECORDS)
    arguments = parser.parse_args()
    kept = json.loads(arguments.out.read_text(encoding="utf-8"))["searches"] if arguments.out.exists() else []
    records = {record["statement"]: record for record in kept}
    for statement in ATLAS:
        if statement.name in (arguments.statement or open_to_search):
            records[statement.name] = searched(statement, arguments.minutes)
            in_order = [records[name] for name in open_to_search if name in records]
            write_json(arguments.out, {"versions": versions("tokendynamics", "torch", "numpy"), "searches": in_order})


if __name__ == "__main__":
    main()
