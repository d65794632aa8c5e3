"""What training asks of a task: data in an order that a seed gives, what the network must fit, and its measures.

A task is made by a class method ``of(data, options, seed, draws)``: the experiment's data and options, its seed, and
how many items a run takes in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.utils.data import Dataset

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count, as_number, as_text

Item = Mapping[str, Any]


@runtime_checkable
class Task(Protocol):
    """Training, validation and test data of one kind of network.

    Attributes:
        network: ``"decoder"`` (`tokendynamics.modules.language_model`) or ``"vision"`` (likewise).
        training: Items of the training split in the order in which a run takes them: as many as `draws`, and item i
            depends on the seed and on i alone, so that a run that was stopped continues with the same data.
        validation: Items of the split that recipes are chosen on.
        test: Items of the split that nothing is chosen on.
        measure: The name in `measures` that a study compares.

    >>> from tokendynamics.training import TASKS
    >>> all(hasattr(task, "of") for task in TASKS.values())
    True
    """

    network: str
    training: Dataset[Item]
    validation: Dataset[Item]
    test: Dataset[Item]
    measure: str

    def fitted(self) -> dict[str, Any]:
        """Return the arguments of the network's configuration that the data determine, such as ``vocab_size``."""
        ...

    def training_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return keyword arguments of the network for one batch of training, with its augmentation."""
        ...

    def evaluation_batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return keyword arguments of the network for one batch of an evaluation."""
        ...

    @property
    def scores(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """What gives numbers (item, number) of a batch's logits and labels; None: the loss says it all."""
        ...

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return the split's measures by name, of the mean loss in nats and of the scores of all its items."""
        ...

    def save_inputs(self, folder: Path) -> None:
        """Write beside the weights what turns inputs into what the network takes: a tokenizer, or a processor."""
        ...


def checked_options(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the defaults of those that are not given.

    Counts are counts from 1, other numbers numbers and texts texts, as their defaults are; what is None by default the
    task checks itself.

    Raises:
        ArgumentValueError: An option that there is not.
        ArgumentTypeError: A value of another kind.

    >>> checked_options({"context": 32}, {"context": 128, "held_out": 0.05})
    {'context': 32, 'held_out': 0.05}
    """
    for name in options:
        if name not in defaults:
            raise ArgumentValueError("options", "entries among " + ", ".join(defaults), repr(name))
    checks = {int: as_count, float: as_number, str: as_text, type(None): lambda value, name: value}
    return {name: checks[type(default)](options.get(name, default), name) for name, default in defaults.items()}
