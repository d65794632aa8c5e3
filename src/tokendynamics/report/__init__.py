"""Reports: each result as one self-contained HTML page that reads without network and without scripts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tokendynamics.numerics.arguments import check_open
from tokendynamics.numerics.errors import ArgumentTypeError, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.report._page import page_of as _page_of

if TYPE_CHECKING:
    from tokendynamics.diagnosis import Diagnosis
    from tokendynamics.figures.svg import Drawing

__all__ = ["chart", "explore", "notebook_html", "page", "write"]

_PAGES = {
    "circuits": ("tokendynamics.report.circuits.landscape", "tokendynamics.report.circuits.models"),
    "diagnosis": ("tokendynamics.report._comparison", "tokendynamics.report.diagnosis._page"),
    "dynamics": ("tokendynamics.report.simulation._page",),
    "specification": ("tokendynamics.report.simulation._page",),
    "sweeps": ("tokendynamics.report._sweep", "tokendynamics.report.training._study_page"),
    "training": ("tokendynamics.report.training._monitor_page", "tokendynamics.report.training._run_page"),
}
"""Modules with the pages of the results of each package; they are imported for the first result of that package."""


def page(result: Any) -> str:
    """Return the page of a result as HTML that needs nothing else.

    Every figure is an SVG with title and description and a table of its numbers; nothing is fetched, and all text
    that came from a user, a tokenizer or a checkpoint is escaped, with control characters made visible.

    Args:
        result: What `tokendynamics.diagnose`, `compare`, `simulate`, `specification.run`, `training.train`, a monitor,
            a study or a question about circuits gave.

    Returns:
        HTML, to be stored as UTF-8.

    Raises:
        ArgumentTypeError: Something else, which has no page.
    """
    from tokendynamics.figures.drawing import drawing

    check_open(result, "result")
    for kind in type(result).__mro__:
        library, _, package = kind.__module__.partition(".")
        if library == "tokendynamics":
            for module in _PAGES.get(package.partition(".")[0], ()):
                import_module(module)
    with drawing():
        return _page_of(result)


@typed_arguments
def write(result: Any, path: str | Path, max_bytes: int | None = None) -> Path:
    """Write the page of a result as one HTML file.

    It is made beside its place and then renamed: a failure or a kill leaves neither a half-written page nor a damaged
    older one.

    Args:
        result: See `page`.
        path: The file to write; its folder is made if need be.
        max_bytes: Refuse to write a page larger than this; None for no limit.

    Returns:
        The path written.

    Raises:
        ArgumentTypeError: A result that has no page.
        ArgumentValueError: `path` is a folder, or the page would be larger than `max_bytes`.
    """
    from tokendynamics.report._page import write_page

    return write_page(page(result), path, max_bytes=max_bytes)


@typed_arguments
def explore(
    path: str | Path,
    subject: Any = None,
    texts: Any = None,
    *,
    observables: Any = None,
    progress: bool | Progress = False,
) -> Path:
    """Write the explorer: a page on which tokens move under attention, as one HTML file without any request.

    The browser integrates the flow with steps controlled as those of `tokendynamics.simulate`, so that β, the mask,
    the weights, positions and the number of tokens can be changed while it runs. Beside it stand the theorems that
    apply, from `tokendynamics.check`.

    Args:
        path: The file to write; its folder is made if need be.
        subject: A trajectory, a simulation, or a file from `tokendynamics.specification.read`; None for five presets.
            A flow that no browser can integrate (more than 128 tokens, 16 features or 16 heads, matrices that depend
            on time, a space or positions defined by the user) is played from the states that Python computes.
            Or a network, as `tokendynamics.load` takes it: the tokens of its first three texts, layer by layer, and
            the flow of one layer's circuits on three directions that tokens share. Or a diagnosis: the text whose
            paths it holds.
        texts: What a network reads, at least two for the flow of circuits; see `tokendynamics.trace`. None for some
            default texts.
        observables: Functions of a state (token, dim), a float64 tensor, by name, each of which gives one number: a
            chart for each stands beside those of the page. The states of the run are then played, as Python alone can
            compute them.
        progress: Whether a bar on standard error shows how many of the presets are computed; or a function
            (done, total, what).

    Returns:
        The path written.

    Raises:
        ArgumentTypeError: Another subject, texts without a network, observables that are no functions of states by
            name or give no number, or observables where no run is played.
        ArgumentValueError: `path` is a folder, more tokens than a page can hold, or the name of an observable is one
            of the page's own.
    """
    from tokendynamics.report._page import write_page
    from tokendynamics.report.explorer._page import explorer_page

    with reporting(progress) as report:
        return write_page(explorer_page(subject, texts, observables, report), path)


def notebook_html(diagnosis: Diagnosis) -> str:
    """Return the verdict's sentences and the shares as HTML that needs nothing else; all foreign text is escaped.

    Args:
        diagnosis: From `tokendynamics.diagnose`.

    Raises:
        ArgumentTypeError: Something else.
    """
    return _diagnosed(diagnosis).notebook_html(diagnosis)


def chart(diagnosis: Diagnosis) -> Drawing:
    """Return the shares of a token's direction over depth as an Altair chart; where there are none, it says why.

    Args:
        diagnosis: From `tokendynamics.diagnose`.

    Raises:
        ArgumentTypeError: Something else.
    """
    return _diagnosed(diagnosis).shares_chart(diagnosis)


def _diagnosed(diagnosis: Any) -> ModuleType:
    """Return the module with the page of a diagnosis, which anything else is refused for."""
    from tokendynamics.diagnosis import Diagnosis
    from tokendynamics.report.diagnosis import _page

    check_open(diagnosis, "diagnosis")
    if not isinstance(diagnosis, Diagnosis):
        raise ArgumentTypeError("diagnosis", "a Diagnosis", shown(diagnosis))
    return _page
