"""Shapes and dtypes of public functions are checked by jaxtyping and beartype while the tests run."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator

import pytest
from jaxtyping import config, install_import_hook

install_import_hook("tokendynamics", "typecheck.checked")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turns the runtime type checks off, for arguments that a type checker would refuse before the library can."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
