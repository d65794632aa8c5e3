"""Parameters in groups: a regime's own parameters have their own rates and no decay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from tokendynamics.modules import FreeMatrix, LearnedPositions, NegativeDiagonal, SignedMatrix
from tokendynamics.training._experiment import Recipe

_KINDS: dict[type[nn.Module], dict[str, str]] = {
    SignedMatrix: {"lower": "lower", "skew": "skew", "diagonal": "pivots"},
    FreeMatrix: {"weight": "skew"},  # entries of a matrix, as T's are
    NegativeDiagonal: {"rho": "remedy", "log_diagonal": "remedy"},
}


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the groups for an optimiser: their parameters, `lr`, `weight_decay` and a `name`.

    Matrices and embeddings of tokens decay where the recipe says so; vectors (biases, gains of norms), tables of
    positions and parameters with a multiplier do not. A frozen parameter is in no group.
    """
    rates = {"decaying": 1.0, "other": 1.0, **{name: getattr(recipe.multipliers, name) for name in _names()}}
    found: dict[str, list[nn.Parameter]] = {name: [] for name in rates}
    for kind, parameter in _kinds(model):
        found[kind].append(parameter)
    return [
        {
            "params": parameters,
            "lr": recipe.learning_rate * rates[name],
            "weight_decay": recipe.weight_decay if name == "decaying" else 0.0,
            "name": name,
        }
        for name, parameters in found.items()
        if parameters
    ]


def _names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for kinds in _KINDS.values() for kind in kinds.values()))


def _kinds(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    seen: set[int] = set()
    for module in model.modules():
        kinds = next((kinds for each, kinds in _KINDS.items() if isinstance(module, each)), {})
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                table = isinstance(module, LearnedPositions)
                plain = "decaying" if parameter.ndim >= 2 and not table else "other"
                yield kinds.get(name, plain), parameter
