"""What one run of training is: a task, a network, a recipe and a seed; and experiments by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_count, as_integer, check_open
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments, typed_fields
from tokendynamics.provenance.manifest import plain

Schedule = Literal["constant", "linear", "cosine"]
Optimizer = Literal["adam", "adamw"]
Precision = Literal["float32", "bf16", "fp16"]


@typed_fields
@dataclass(frozen=True)
class Multipliers:
    """Learning rates of the parameters of a regime, as multiples of the recipe's.

    Attributes:
        lower: Of L in ``L diag(s·softplus(d)) L^T + T − T^T``.
        skew: Of T.
        pivots: Of d.
        remedy: Of ρ and a in the remedies λI and λA, λ = −exp ρ.

    >>> Multipliers(skew=1.0)
    Multipliers(lower=10.0, skew=1.0, pivots=7.0, remedy=10.0)
    """

    lower: float = 10.0
    skew: float = 2.5
    pivots: float = 7.0
    remedy: float = 10.0

    def __post_init__(self) -> None:
        for attribute in fields(self):
            if not 0 <= (value := getattr(self, attribute.name)) < math.inf:
                raise ArgumentValueError(f"multipliers.{attribute.name}", "a number from 0", value)


@typed_fields
@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        steps: Steps of the optimiser.
        batch: Sequences or images of one forward pass on one device.
        learning_rate: The highest.
        accumulation: Forward passes of one step.
        schedule: What follows the warm-up: "constant", "linear" (to zero) or "cosine".
        warmup: Steps in which the learning rate rises to the highest.
        lowest: Learning rate at the end of "cosine", as a share of the highest.
        optimizer: "adam" or "adamw" (weight decay apart from the gradient).
        weight_decay: Of matrices; never of biases, norms, embeddings of positions and a regime's own parameters.
        betas: Of both.
        clip: Largest norm of the gradient; None for any.
        precision: "float32", or mixed with "bf16" or "fp16".
        averaging: Decay of the exponential moving average of the weights; None for none.
        evaluate_every: Steps between two evaluations on the validation split.
        save_every: Steps between two checkpoints.
        log_every: Steps that a logged loss is the mean of.
        multipliers: See `Multipliers`.

    >>> recipe = Recipe(steps=100, batch=8, learning_rate=1e-3)
    >>> recipe.schedule, recipe.precision
    ('cosine', 'float32')
    """

    steps: int
    batch: int
    learning_rate: float
    accumulation: int = 1
    schedule: Schedule = "cosine"
    warmup: int = 0
    lowest: float = 0.0
    optimizer: Optimizer = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = 1.0
    precision: Precision = "float32"
    averaging: float | None = None
    evaluate_every: int = 100
    save_every: int = 100
    log_every: int = 10
    multipliers: Multipliers = field(default_factory=Multipliers)

    def __post_init__(self) -> None:
        counts = ("steps", "batch", "accumulation", "evaluate_every", "save_every", "log_every")
        for name in counts:
            as_count(getattr(self, name), name)
        as_count(self.warmup, "warmup", at_least=0)
        choices = {"schedule": Schedule, "optimizer": Optimizer, "precision": Precision}
        for name, known in choices.items():
            if (value := getattr(self, name)) not in get_args(known):
                raise ArgumentValueError(name, "one of " + ", ".join(get_args(known)), repr(value))
        if self.save_every % self.log_every:
            wanted = f"a multiple of log_every = {self.log_every}, so that no logged mean is broken off by a stop"
            raise ArgumentValueError("save_every", wanted, self.save_every)
        self._check_numbers()

    def _check_numbers(self) -> None:
        within = {
            "learning_rate": (0 < self.learning_rate < math.inf, "a positive number"),
            "lowest": (0 <= self.lowest <= 1, "a share of the highest learning rate, 0 to 1"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "a number from 0"),
            "betas": (all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1"),
            "clip": (self.clip is None or 0 < self.clip < math.inf, "a positive number, or None"),
            "averaging": (self.averaging is None or 0 < self.averaging < 1, "a number between 0 and 1, or None"),
        }
        for name, (right, wanted) in within.items():
            if not right:
                raise ArgumentValueError(name, wanted, getattr(self, name))


@typed_fields
@dataclass(frozen=True)
class Experiment:
    """A task, a network, a recipe and a seed: two runs of one experiment give the same numbers on one machine.

    Runs with one seed see the same data in the same order, and start with the same weights but for those of their
    attention, whatever their regime: their differences are paired.

    Attributes:
        name: Of the preset that it comes from.
        task: A name in `tokendynamics.training.TASKS`.
        data: A built-in data set of the task, or a path.
        model: Arguments of the network's configuration that the data do not determine, such as ``hidden_size`` and
            ``regime``; see `tokendynamics.modules.language_model.LanguageModelConfig`.
        recipe: How it is trained.
        options: What else the task takes, such as ``context``.
        seed: Of weights, data and dropout, from 0 to 2³² − 1.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from tokendynamics.training import preset, train
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "text.txt").write_text("once upon a time there was a token " * 50)
    >>> model = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    >>> recipe = {"steps": 2, "batch": 2, "warmup": 1}
    >>> options = {"data": str(folder / "text.txt"), "options": {"context": 16}}
    >>> experiment = preset("bytes-small").changed(model=model, recipe=recipe, **options)
    >>> record = train(experiment, folder / "run", loggers=())
    >>> record.status, record.steps
    ('finished', 2)
    """

    name: str
    task: str
    data: str
    model: Mapping[str, Any]
    recipe: Recipe
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        as_integer(self.seed, "seed", at_least=0, at_most=2**32 - 1)
        for name in ("model", "options"):
            _as_entries(getattr(self, name), name)

    @typed_arguments
    def changed(
        self,
        *,
        regime: str | None = None,
        remedy: str | None = None,
        data: str | None = None,
        seed: int | None = None,
        model: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Return the experiment with some of it replaced; None leaves a part as it is.

        Args:
            regime: Of the network's attention.
            remedy: "none", "identity" or "diagonal".
            data: A built-in data set, or a path.
            seed: Of weights, data and dropout.
            model: Entries of `model`.
            options: Entries of `options`.
            recipe: Fields of the recipe; ``multipliers`` may be a mapping.

        Raises:
            ArgumentTypeError: Entries that are no mapping.
            ArgumentValueError: A field that a recipe does not have, or a value that it cannot have.
        """
        model, options, recipe = (
            {} if given is None else _as_entries(given, name)
            for given, name in ((model, "model"), (options, "options"), (recipe, "recipe"))
        )
        further = {name: value for name, value in (("regime", regime), ("remedy", remedy)) if value is not None}
        return replace(
            self,
            data=self.data if data is None else data,
            seed=self.seed if seed is None else seed,
            model={**self.model, **model, **further},
            options={**self.options, **options},
            recipe=_recipe({**_entries(self.recipe), **recipe}),
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the experiment again."""
        return {
            "name": self.name,
            "task": self.task,
            "data": self.data,
            "model": plain(dict(self.model)),
            "options": plain(dict(self.options)),
            "recipe": _entries(self.recipe),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, values: Any) -> Experiment:
        """Return what `as_json` returned.

        Raises:
            ArgumentTypeError: A value of another kind.
            ArgumentValueError: An entry is missing or unknown, or a value is impossible.
        """
        entries = _as_entries(values, "experiment")
        _check_names("experiment", entries, cls)
        return cls(**{**entries, "recipe": _recipe(entries["recipe"])})


def differences(former: Experiment, now: Experiment) -> list[str]:
    """Return what differs, an entry each, such as ``"recipe.steps: 100 then, 200 now"``.

    >>> one = Experiment("a", "bytes", "pydoc", {}, Recipe(steps=100, batch=4, learning_rate=0.1))
    >>> differences(one, one.changed(recipe={"steps": 200}))
    ['recipe.steps: 100 then, 200 now']
    """
    then, now_flat = (dict(_flat(experiment.as_json())) for experiment in (former, now))
    names = [*then, *(name for name in now_flat if name not in then)]
    return [
        f"{name}: {then.get(name, 'nothing')} then, {now_flat.get(name, 'nothing')} now"
        for name in names
        if then.get(name) != now_flat.get(name)
    ]


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    entries: list[tuple[str, Any]] = []
    for name, value in values.items():
        entries += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(f"{before}{name}", value)]
    return entries


def _entries(recipe: Recipe) -> dict[str, Any]:
    return {**asdict(recipe), "betas": list(recipe.betas)}


def _recipe(values: Any) -> Recipe:
    entries = _as_entries(values, "recipe")
    _check_names("recipe", entries, Recipe)
    given = entries.get("multipliers")
    if isinstance(given, Mapping):
        _check_names("multipliers", given, Multipliers)
        entries["multipliers"] = Multipliers(**given)
    return Recipe(**entries)


def _as_entries(values: Any, argument: str) -> dict[str, Any]:
    check_open(values, argument)
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ArgumentTypeError(argument, "a dict with texts as keys", shown(values))
    return dict(values)


def _check_names(argument: str, values: Mapping[str, Any], record: type[Any]) -> None:
    known = {attribute.name: attribute for attribute in fields(record)}
    for name in values:
        if name not in known:
            raise ArgumentValueError(argument, "entries among " + ", ".join(known), repr(name))
    for name, attribute in known.items():
        if name not in values and attribute.default is MISSING and attribute.default_factory is MISSING:
            raise ArgumentValueError(argument, f"the entry {name}, too", "none of that name")


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
        raise ArgumentValueError("preset", "one of " + ", ".join(PRESETS), repr(name))
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
