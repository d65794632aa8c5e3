"""A small sweep whose systems end soon, and workers in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from tokendynamics.sweeps import Plan, parse_plan, sweep

SMALL = """
[attention]
qk = { law = "normal", scale = 0.5 }
ov = { definite = "mixed", skew = 0.5 }

[space]
kind = "sphere"

[start]
law = "uniform"
tokens = 3
dim = 2

[time]
end = 2.0
points = 5

[solver]
engine = "batched"
rtol = 1e-4

[sweep]
seed = 7
draws = 4
task = 2
measure = ["outcome", "consensus", "log_norm"]

[[sweep.axis]]
key = "start.tokens"
values = [2, 3]

[[sweep.axis]]
key = "attention.qk.scale"
low = 0.5
high = 1.5
points = 3
"""


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with Client(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None, set_as_default=False
    ) as made:
        yield made


@pytest.fixture
def small() -> Plan:
    return parse_plan(SMALL, "small.toml")


@pytest.fixture(scope="session")
def whole(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the small sweep that nothing stopped."""
    store = tmp_path_factory.mktemp("whole") / "sweep.zarr"
    sweep(parse_plan(SMALL, "small.toml"), store, client)
    return store


def files(store: Path) -> dict[str, bytes]:
    """Every file of a store by its name, its manifest apart."""
    names = (path for path in sorted(store.rglob("*")) if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(store)): path.read_bytes() for path in names}
