"""Hugging Face's Trainer with a task's data and measures, groups of parameters, and checkpoints that are whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from tokendynamics.modules import ConstrainedAttention, FreeMatrix, LearnedPositions, NegativeDiagonal, SignedMatrix
from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.training._averaging import AveragedWeights
from tokendynamics.training._checkpoints import clear_partial, into_room, partial_place, put_checkpoint
from tokendynamics.training._whole_network import whole_network
from tokendynamics.training.experiment import Recipe

if TYPE_CHECKING:
    from transformers.trainer_utils import EvalLoopOutput

    from tokendynamics.training.tasks import Task


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


_LOWEST = "value_real_lowest"


def worst_conditioning(model: nn.Module) -> dict[str, float]:
    """Return the worst over the layers: largest condition numbers of Q, A and V, and the range of Re λ(V).

    Returns:
        By the names of `ConstrainedAttention.conditioning`; empty for a network without such layers, or with weights
        that are not finite.

    >>> sorted(worst_conditioning(ConstrainedAttention(4, 2, "contracting")))[-1]
    'value_real_lowest'
    """
    layers = [module for module in model.modules() if isinstance(module, ConstrainedAttention)]
    if not layers or not all(bool(torch.isfinite(weight).all()) for each in layers for weight in each.weights()[:3]):
        return {}
    numbers = [layer.conditioning() for layer in layers]
    return {name: (min if name == _LOWEST else max)(each[name] for each in numbers) for name in numbers[0]}


KEPT = 2
"""Checkpoints that stay: the last one, and the one before."""
_IGNORED = -100
"""The label of what is in no loss."""


class NotFiniteError(TokenDynamicsError, ArithmeticError):
    """A loss or a weight is no finite number any more."""


class RunTrainer(Trainer):
    """The loop of one run; all that a run depends on comes from its experiment.

    Args:
        model: The network.
        task: What it is trained on.
        recipe: How.
        arguments: See `trainer_arguments`.
        averaged: The moving average of the weights, where the recipe has one.
        callbacks: Further ones.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        arguments: TrainingArguments,
        averaged: AveragedWeights | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self._task, self._recipe, self._averaged = task, recipe, averaged
        self._writing: Path | None = None
        super().__init__(
            model=model,
            args=arguments,
            data_collator=task.training_batch,
            train_dataset=task.training,
            eval_dataset=task.validation,
            callbacks=[*([averaged] if averaged else []), *callbacks],
            preprocess_logits_for_metrics=task.scores,
        )
        self.args.prediction_loss_only = task.scores is None
        self.remove_callback(PrinterCallback)  # standard output is the caller's

    def create_accelerator_and_postprocess(self) -> None:
        """Have gradients added and losses given in float32 also where sharded weights are rounded."""
        super().create_accelerator_and_postprocess()
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        policy: Any = getattr(plugin, "mixed_precision_policy", None)
        if plugin is not None and hasattr(policy, "output_dtype"):
            kept = {"reduce_dtype": torch.float32, "output_dtype": torch.float32}
            plugin.mixed_precision_policy = replace(policy, **kept)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give every group of parameters its own learning rate and decay."""
        if self.optimizer is None:
            kind = torch.optim.AdamW if self._recipe.optimizer == "adamw" else torch.optim.Adam
            groups = parameter_groups(cast(nn.Module, model or self.model), self._recipe)
            self.optimizer = kind(groups, lr=self._recipe.learning_rate, betas=self._recipe.betas)
        return self.optimizer

    def training_step(self, *arguments: Any, **given: Any) -> Tensor:
        """Stop every process at a loss of one that is not finite, before it is in any weight that is kept."""
        loss = super().training_step(*arguments, **given)
        every = cast(Tensor, self.accelerator.gather(loss.reshape(1)))
        finite = torch.isfinite(every)
        if not bool(finite.all()):
            raise NotFiniteError(f"the loss is {float(every[~finite][0])} in step {self.state.global_step + 1}")
        return loss

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **given: Any) -> Any:
        """Leave out of the loss what only fills the last batches of several processes: items of the beginning.

        The loss is the mean over the items of this process alone: means, not sums, are gathered.
        """
        state = self.accelerator.gradient_state
        if self.args.world_size > 1 and state.end_of_dataloader and state.remainder > 0:
            own = max(state.remainder - self.args.process_index * self.args.eval_batch_size, 0)
            labels = inputs["labels"].clone()
            labels[own:] = _IGNORED
            inputs = {**inputs, "labels": labels}
        accepts, self.model_accepts_loss_kwargs = self.model_accepts_loss_kwargs, False
        try:
            return super().prediction_step(model, inputs, *arguments, **given)
        finally:
            self.model_accepts_loss_kwargs = accepts

    def _get_dataloader(self, dataset: Any, description: str, *arguments: Any, **given: Any) -> Any:
        training = description == "Training"
        self.data_collator = self._task.training_batch if training else self._task.evaluation_batch
        return super()._get_dataloader(dataset, description, *arguments, **given)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Add the task's measures, and how well the layers are conditioned."""
        found = super().evaluation_loop(
            dataloader, description, self.args.prediction_loss_only, ignore_keys, metric_key_prefix
        )
        metrics: dict[str, float] = found.metrics if found.metrics is not None else {}
        loss = metrics.get(f"{metric_key_prefix}_loss", math.nan)
        scores = None if found.predictions is None else torch.as_tensor(found.predictions)
        measured = self._task.measures(loss, scores)
        if metric_key_prefix == "eval":  # while the run continues
            measured |= worst_conditioning(whole_network(self.model))
        metrics.update({f"{metric_key_prefix}_{name}": value for name, value in measured.items()})
        return found

    @property
    def _folder(self) -> Path:
        return Path(cast(str, self.args.output_dir))

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._writing is None else str(self._writing)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint under another name, and give it its own when all of it is on the disk."""
        folder, step = self._folder, self.state.global_step
        self._check_finite(step)
        self._writing = partial_place(folder, step)
        try:
            with into_room(folder):
                self._prepare_place()
                super()._save_checkpoint(model, trial)
                if self._averaged is not None and self.args.should_save:
                    self._averaged.save(self._writing / f"checkpoint-{step}")
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    made = self._writing / f"checkpoint-{step}"
                    put_checkpoint(made, folder, keep=KEPT, processes=self.args.world_size)
                self.accelerator.wait_for_everyone()
        except OSError:  # its remains stand where there is no room
            clear_partial(folder)
            raise
        finally:
            self._writing = None

    def _prepare_place(self) -> None:
        if self.args.should_save:
            clear_partial(self._folder)
        self.accelerator.wait_for_everyone()
        if self._writing is not None:
            self._writing.mkdir(parents=True, exist_ok=True)

    def _check_finite(self, step: int) -> None:
        """Refuse to keep weights that are not finite, in every process where they are so in one."""
        parts = ((name, getattr(part, "to_local", lambda part=part: part)()) for name, part in self._named())
        found = [name for name, part in parts if not bool(torch.isfinite(part).all())]
        count = torch.tensor([len(found)], device=self.args.device)
        if int(cast(Tensor, self.accelerator.gather(count)).sum()):
            name = found[0] if found else "of another process"
            raise NotFiniteError(f"the weight {name} is not finite after step {step}")

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(cast(nn.Module, self.accelerator.unwrap_model(self.model)).named_parameters())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self._averaged is not None:
            self._averaged.load(Path(resume_from_checkpoint), model or cast(nn.Module, self.model))
