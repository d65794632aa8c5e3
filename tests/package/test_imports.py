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
from tokendynamics.cli import main
try:
    main({arguments!r})
except SystemExit as done:
    assert done.code == 0, done.code
"""
    assert loaded_after(code) == set()


@pytest.mark.slow
def test_observables_and_spectra_need_neither_transformers_nor_plotting() -> None:
    assert loaded_after("import tokendynamics as td; td.observables.norms; td.spectra.inertia") <= {"torch", "scipy"}


@pytest.mark.slow
def test_auditing_needs_no_plotting() -> None:
    loaded = loaded_after("import tokendynamics as td; td.load; td.audit; td.trace; td.diagnose")
    assert not loaded & {"transformers", "altair", "vl_convert", "matplotlib", "dask", "jinja2"}


@pytest.mark.slow
def test_figures_in_print_do_not_wait_for_altair_nor_pages_for_matplotlib() -> None:
    drawn = "import sys, tokendynamics as td; td.plots.over_time([0.0, 1.0], [1.0, 2.0], 'V')"
    loaded_after(f"{drawn}; assert 'altair.vegalite' not in sys.modules")
    assert "matplotlib" not in loaded_after(
        "from tokendynamics.figures.curves import Curve, Curves\n"
        "from tokendynamics.figures.svg import draw_for_screens\n"
        "curves = Curves([Curve('V', [0, 1], [1.0, 2.0], '#1f5a99')], 'V', last=1)\n"
        "draw_for_screens(curves.chart, ident='V', title='V?', description='V rises.')"
    )


def test_every_public_name_resolves_and_others_are_refused() -> None:
    import tokendynamics as td

    for name in td.__all__:
        assert getattr(td, name) is not None
    assert callable(td.audit)
    assert callable(td.trace)
    assert set(td.__all__) <= set(dir(td))
    with pytest.raises(AttributeError, match="no attribute 'simulation'; it has"):
        _ = td.simulation
