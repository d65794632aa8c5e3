"""Experiments by name: the paper's, and small ones that a processor trains in minutes."""

from __future__ import annotations

from typing import Any

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.training.experiment import Experiment, Recipe

_SMALL_DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "positions": "sinusoidal",
    "norms": "pre",
    "output": "free",
}
_SMALL_RECIPE = Recipe(
    steps=500,
    batch=16,
    learning_rate=8e-3,
    warmup=50,
    lowest=0.1,
    betas=(0.9, 0.99),
    evaluate_every=125,
)

PRESETS: dict[str, Experiment] = {
    each.name: each
    for each in (
        Experiment(
            "enwik8",
            "bytes",
            "enwik8",
            {
                "hidden_size": 512,
                "num_hidden_layers": 6,
                "num_attention_heads": 8,
                "intermediate_size": 2048,
                "positions": "sinusoidal",
                "norms": "pre",
                "output": "free",
            },
            Recipe(
                steps=100_000,
                batch=4,
                learning_rate=1e-4,
                accumulation=4,
                schedule="constant",
                optimizer="adam",
                clip=0.5,
                evaluate_every=100,
                save_every=1000,
                log_every=10,
            ),
            {"context": 1024, "held_out": 0.05},
        ),
        Experiment(
            "wikitext103",
            "words",
            "wikitext-103",
            {
                "hidden_size": 410,
                "num_hidden_layers": 16,
                "num_attention_heads": 10,
                "intermediate_size": 2100,
                "positions": "sinusoidal",
                "norms": "post",
                "output": "free",
                "dropout": 0.05,
                "cutoffs": [20_000, 40_000, 200_000],
            },
            Recipe(
                steps=200_000,
                batch=30,
                learning_rate=2.5e-4,
                warmup=1000,
                optimizer="adam",
                clip=0.25,
                evaluate_every=4000,
                save_every=4000,
                log_every=200,
            ),
            {"context": 150, "evaluation_context": 156},
        ),
        Experiment(
            "imagenet",
            "images",
            "imagenet",
            {
                "patch_size": 16,
                "hidden_size": 192,
                "num_hidden_layers": 12,
                "num_attention_heads": 3,
                "intermediate_size": 768,
                "bias": True,
                "drop_path": 0.1,
                "output": "free",
            },
            Recipe(
                steps=300 * 5005,
                batch=64,
                learning_rate=5e-4,
                warmup=5 * 5005,
                lowest=0.02,
                weight_decay=0.05,
                clip=None,
                precision="fp16",
                averaging=0.99996,
                evaluate_every=5005,
                save_every=5000,
                log_every=100,
            ),
        ),
        Experiment("bytes-small", "bytes", "pydoc", _SMALL_DECODER, _SMALL_RECIPE, {"context": 128, "held_out": 0.1}),
        Experiment("bytes-doc", "bytes", "python-doc", _SMALL_DECODER, _SMALL_RECIPE, {"context": 128}),
        Experiment(
            "words-small",
            "words",
            "pydoc",
            _SMALL_DECODER | {"cutoffs": [1000, 4000]},
            _SMALL_RECIPE,
            {"context": 64, "evaluation_context": 64, "held_out": 0.1, "least": 2},
        ),
        Experiment(
            "digits",
            "digits",
            "digits",
            {
                "patch_size": 2,
                "hidden_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "intermediate_size": 256,
                "drop_path": 0.1,
                "output": "free",
            },
            Recipe(
                steps=300, batch=64, learning_rate=3e-3, warmup=30, lowest=0.02, weight_decay=0.05, averaging=0.99
            ),
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
