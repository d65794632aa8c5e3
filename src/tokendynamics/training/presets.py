"""Experiments by name: the paper's, and small ones that a processor trains in minutes."""

from __future__ import annotations

from typing import Any

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.training.experiment import Experiment, Recipe


def _decoder(dim: int, layers: int, heads: int, wide: int, norms: str = "pre") -> dict[str, Any]:
    return {
        "hidden_size": dim, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": wide,
        "positions": "sinusoidal", "norms": norms, "output": "free",
    }  # fmt: skip


_SMALL_DECODER = _decoder(64, 4, 4, 256)
_SMALL_RECIPE = Recipe(500, 16, 8e-3, warmup=50, lowest=0.1, betas=(0.9, 0.99), evaluate_every=125)

_ENWIK8 = Recipe(
    steps=100_000, batch=4, learning_rate=1e-4, accumulation=4, schedule="constant", optimizer="adam", clip=0.5,
    evaluate_every=100, save_every=1000, log_every=10,
)  # fmt: skip
_WIKITEXT = Recipe(
    steps=200_000, batch=30, learning_rate=2.5e-4, warmup=1000, optimizer="adam", clip=0.25,
    evaluate_every=4000, save_every=4000, log_every=200,
)  # fmt: skip
_IMAGENET = Recipe(
    steps=300 * 5005, batch=64, learning_rate=5e-4, warmup=5 * 5005, lowest=0.02, weight_decay=0.05, clip=None,
    precision="fp16", averaging=0.99996, evaluate_every=5005, save_every=5000, log_every=100,
)  # fmt: skip
_DIGITS = Recipe(300, 64, 3e-3, warmup=30, lowest=0.02, weight_decay=0.05, averaging=0.99)

PRESETS: dict[str, Experiment] = {
    preset.name: preset
    for preset in (
        Experiment(
            "enwik8", "bytes", "enwik8", _decoder(512, 6, 8, 2048), _ENWIK8, {"context": 1024, "held_out": 0.05}
        ),
        Experiment(
            "wikitext103", "words", "wikitext-103",
            _decoder(410, 16, 10, 2100, "post") | {"dropout": 0.05, "cutoffs": [20_000, 40_000, 200_000]},
            _WIKITEXT, {"context": 150, "evaluation_context": 156},
        ),
        Experiment(
            "imagenet", "images", "imagenet",
            {
                "patch_size": 16, "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3,
                "intermediate_size": 768, "bias": True, "drop_path": 0.1, "output": "free",
            },
            _IMAGENET,
        ),
        Experiment("bytes-small", "bytes", "pydoc", _SMALL_DECODER, _SMALL_RECIPE, {"context": 128, "held_out": 0.1}),
        Experiment("bytes-doc", "bytes", "python-doc", _SMALL_DECODER, _SMALL_RECIPE, {"context": 128}),
        Experiment(
            "words-small", "words", "pydoc", _SMALL_DECODER | {"cutoffs": [1000, 4000]}, _SMALL_RECIPE,
            {"context": 64, "evaluation_context": 64, "held_out": 0.1, "least": 2},
        ),
        Experiment(
            "digits", "digits", "digits",
            {
                "patch_size": 2, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                "intermediate_size": 256, "drop_path": 0.1, "output": "free",
            },
            _DIGITS,
        ),
    )
}  # fmt: skip
"""By name."""

PROCESSES = {"wikitext103": 2, "imagenet": 4}
"""How many train together where steps are counted in a preset, each with the recipe's batch; one in those not named."""


@typed_arguments
def preset(name: str) -> Experiment:
    """Return the experiment of that name.

    Raises:
        ArgumentValueError: An unknown name.

    >>> preset("enwik8").recipe.clip
    0.5
    """
    if name not in PRESETS:
        raise ArgumentValueError(expected("preset", "one of " + ", ".join(PRESETS), repr(name)))
    return PRESETS[name]


def counted_otherwise(experiment: Experiment, processes: int) -> list[str]:
    """Say where another number of processes makes a step of another size than the preset's steps are; else nothing.

    >>> counted_otherwise(preset("imagenet"), 4)
    []
    >>> print(*counted_otherwise(preset("imagenet"), 1))
    a step takes 64 items (processes × batch × accumulation = 1 × 64 × 1), in the preset imagenet 256 (4 × 64 × 1):
    recipe.accumulation=4 makes them the same
    """
    former, now = PRESETS.get(experiment.name), experiment.recipe
    counted = PROCESSES.get(experiment.name, 1)
    if former is None or processes == counted:
        return []
    its = former.recipe
    wanted, taken = counted * its.batch * its.accumulation, processes * now.batch * now.accumulation
    if taken == wanted:
        return []
    passes, rest = divmod(wanted, processes * now.batch)
    advice = "" if rest else f": recipe.accumulation={passes} makes them the same"
    return [
        f"a step takes {taken} items (processes × batch × accumulation = {processes} × {now.batch} × "
        f"{now.accumulation}), in the preset {experiment.name} {wanted} ({counted} × {its.batch} × {its.accumulation})"
        + advice
    ]
