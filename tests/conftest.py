"""Shapes and dtypes of public functions are checked by jaxtyping and beartype while the tests run."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from jaxtyping import install_import_hook

install_import_hook("tokendynamics", "typecheck.checked")
