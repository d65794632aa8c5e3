"""What importing costs: heavy libraries stay out until something needs them, and the public names are there."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "xarray", "altair", "vl_convert", "matplotlib", "dask", "scipy", "jinja2")


def loaded_after(code: str) -> set[str]:
    """Which of the heavy libraries are in `sys.modules` after `code` ran in a fresh interpreter."""
    program = f"import sys\n{code}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(eval(done.stdout.splitlines()[-1]))  # noqa: S307 - a list this test printed itself


def test_the_package_alone_imports_nothing_heavy() -> None:
    assert loaded_after("import tokendynamics") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["diagnose", "--help"]])
def test_help_and_version_answer_without_torch(arguments: list[str]) -> None:
    code = f"""
from tokendynamics.cli._main import main
try:
    main({arguments!r})
except SystemExit as done:
    assert done.code == 0, done.code
"""
    assert loaded_after(code) == set()


def test_observables_and_spectra_need_neither_transformers_nor_plotting() -> None:
    assert loaded_after("import tokendynamics as td; td.observables.norms; td.spectra.inertia") <= {"torch", "scipy"}


def test_auditing_needs_no_plotting() -> None:
    loaded = loaded_after("import tokendynamics as td; td.load; td.audit; td.trace; td.diagnose")
    assert not loaded & {"transformers", "altair", "vl_convert", "matplotlib", "dask", "jinja2"}


def test_every_public_name_resolves_and_others_are_refused() -> None:
    import tokendynamics as td

    for name in td.__all__:
        assert getattr(td, name) is not None
    assert callable(td.audit)
    assert callable(td.trace)
    assert set(td.__all__) <= set(dir(td))
    with pytest.raises(AttributeError, match="no attribute 'simulation'; it has"):
        _ = td.simulation
