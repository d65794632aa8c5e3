"""From an experiment to the network that it trains."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tokendynamics.numerics._arguments import as_integer
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.training._experiment import Experiment
from tokendynamics.training._size import check_size
from tokendynamics.training.tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def network_of(experiment: Experiment, task: Task) -> PreTrainedModel:
    """Return the network with the weights that the experiment's seed gives; PyTorch's own generator stays as it is.

    Raises:
        ArgumentTypeError: A size that is no whole number.
        ArgumentValueError: An argument that the configuration does not have, or one that the data determine.
        MemoryLimitError: The network, or a batch, takes more memory than is free.
    """
    configuration, network = _classes(task.network)
    fitted = task.fitted()
    for name in experiment.model:
        if name in fitted:
            raise ArgumentValueError(expected("model", f"no {name}, which the data determine", experiment.model[name]))
    unknown = [name for name in experiment.model if not _known(configuration, name)]
    if unknown:
        raise ArgumentValueError(expected("model", f"arguments of {configuration.__name__}", ", ".join(unknown)))
    _check_whole(configuration, experiment.model)
    built = configuration(**experiment.model, **fitted)
    check_size(experiment, task, configuration, network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        return network(built)


def _classes(kind: str) -> tuple[Any, Any]:
    if kind == "decoder":
        from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig

        return LanguageModelConfig, LanguageModel
    if kind == "vision":
        from tokendynamics.modules.vision import VisionConfig, VisionModel

        return VisionConfig, VisionModel
    raise ArgumentTypeError(expected("network", "'decoder' or 'vision'", repr(kind)))


def _check_whole(configuration: Any, given: Mapping[str, Any]) -> None:
    """Refuse a size that is no whole number, such as the 1e9 that JSON reads as a float."""
    parameters = inspect.signature(configuration.__init__).parameters
    for name, value in given.items():
        default = parameters[name].default
        if isinstance(default, int) and not isinstance(default, bool):
            as_integer(value, f"model.{name}")


def _known(configuration: Any, name: str) -> bool:
    return name in inspect.signature(configuration.__init__).parameters
