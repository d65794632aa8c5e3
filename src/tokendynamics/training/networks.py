"""From an experiment to its task, and to the network that it trains."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_integer
from tokendynamics.numerics.resources import check_fits
from tokendynamics.training.experiment import Experiment
from tokendynamics.training.tasks import TASKS, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_WEIGHT = 16
"""Bytes of a weight in training on a processor: itself, its gradient and the two moments of Adam, in float32."""
_AVERAGE = 4
"""Further bytes of a weight of which a moving average is kept."""
_LOADED = 4
"""Bytes of a weight where an accelerator trains: the network is built in main memory."""
_ACTIVATION = 2
"""Bytes of a number that is kept for the backward pass, in the smallest format that there is."""
_LOGIT = 4
_TOKEN_ID = 8
_PIXEL = 4


def task_of(experiment: Experiment, draws: int) -> Task:
    """Return the task of an experiment, with as many items of training as a run takes.

    Raises:
        ArgumentValueError: An unknown task, data that cannot be used, an option that there is not, or more items than
            Python can number.
    """
    if draws > sys.maxsize:
        wanted = f"at most {sys.maxsize:,} items in all: steps × batch × accumulation × processes"
        raise ArgumentValueError("recipe", wanted, f"{draws:,}")
    if experiment.task not in TASKS:
        raise ArgumentValueError("task", "one of " + ", ".join(TASKS), repr(experiment.task))
    return TASKS[experiment.task].of(experiment.data, experiment.options, experiment.seed, draws)


def check_size(experiment: Experiment, task: Task, configuration: type[Any], network: type[Any]) -> None:
    """Refuse a network and a batch that cannot fit into the memory, with the size of what is largest.

    Weights are counted on networks of one and two layers without memory, so that any number of layers is judged in the
    same time. Activations are a lower bound: inputs of the two parts of each layer, their inner features, and logits.

    Args:
        experiment: What is to be trained.
        task: Its task.
        configuration: Class of the network's configuration.
        network: Class of the network.

    Raises:
        MemoryLimitError: Weights, a batch or the batches of an accumulation take more than is free.
    """
    recipe, config = experiment.recipe, configuration(**experiment.model, **task.fitted())
    weights = _weights(experiment.model, task.fitted(), configuration, network)
    on_processors = not torch.accelerator.is_available()
    bytes_a_weight = _WEIGHT + (_AVERAGE if recipe.averaging is not None else 0) if on_processors else _LOADED
    if task.network == "vision":
        tokens, item = (config.image_size // config.patch_size) ** 2 + 1, 3 * config.image_size**2 * _PIXEL
    else:
        window = len(task.training[0]["ids"])
        tokens, item = window - 1, window * _TOKEN_ID
    kept = config.num_hidden_layers * (2 * config.hidden_size + config.intermediate_size) * _ACTIVATION
    cutoffs = getattr(config, "cutoffs", None)
    logits = cutoffs[0] if cutoffs else getattr(config, "vocab_size", 0)  # those that are always made
    per_item = tokens * (kept + logits * _LOGIT) if on_processors else 0
    of_model, of_batch = bytes_a_weight * weights, recipe.batch * (item + per_item)
    waiting = (recipe.accumulation - 1) * recipe.batch * item
    advice = f"it has {weights:.3g} weights: fewer or narrower layers take less"
    check_fits(of_model, "model", advice)
    advice = f"{recipe.batch:.3g} items of {tokens:.3g} tokens each: a smaller batch or context takes less"
    check_fits(of_model + of_batch, "recipe.batch", advice)
    advice = f"all {recipe.accumulation:.3g} batches of a step are held at once: fewer take less"
    check_fits(of_model + of_batch + waiting, "recipe.accumulation", advice)


def _weights(model: Mapping[str, Any], fitted: Mapping[str, Any], configuration: type[Any], network: type[Any]) -> int:
    """Return the number of weights, at least; 2⁶³ where the size of one matrix is beyond what PyTorch can count."""
    counts = []
    for layers in (1, 2):
        config = configuration(**{**model, **fitted, "num_hidden_layers": layers})
        try:
            with torch.device("meta"):
                counts.append(sum(parameter.numel() for parameter in network(config).parameters()))
        except (RuntimeError, OverflowError, MemoryError):  # of sizes beyond 2⁶³ bytes
            return 2**63
    one, two = counts
    return one + (configuration(**model, **fitted).num_hidden_layers - 1) * (two - one)


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
            raise ArgumentValueError("model", f"no {name}, which the data determine", experiment.model[name])
    parameters = inspect.signature(configuration.__init__).parameters
    unknown = [name for name in experiment.model if name not in parameters]
    if unknown:
        raise ArgumentValueError("model", f"arguments of {configuration.__name__}", ", ".join(unknown))
    for name, value in experiment.model.items():
        default = parameters[name].default
        if isinstance(default, int) and not isinstance(default, bool):  # JSON reads 1e9 as a float
            as_integer(value, f"model.{name}")
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
    raise ArgumentTypeError("network", "'decoder' or 'vision'", repr(kind))
