"""Specifications that run as they are, as `tokendynamics simulate --example NAME` prints them."""

from __future__ import annotations

from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification.section import names_of_examples, text_of_example

__all__ = ["example_names", "example_text"]


def __dir__() -> list[str]:
    return __all__


def example_names() -> list[str]:
    """Return the names of the examples.

    >>> "fig3" in example_names()
    True
    """
    return names_of_examples(__name__)


@typed_arguments
def example_text(name: str) -> str:
    """Return the text of an example.

    Raises:
        ArgumentValueError: No example of that name; the nearest one is printed.

    >>> example_text("minimal").splitlines()[0]
    '# The least a file must say: attention, a space, a start and a horizon. Everything else has a default.'
    """
    return text_of_example(__name__, name)
