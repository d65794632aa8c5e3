"""Hugging Face's Trainer with a task's data and measures, groups of parameters, and checkpoints that are whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tokendynamics.numerics._errors import TokenDynamicsError
from tokendynamics.provenance._whole import full_disk_as_storage_error
from tokendynamics.training._averaging import AveragedWeights, unwrapped
from tokendynamics.training._checkpoints import clear_partial, partial_place, put_checkpoint
from tokendynamics.training._conditioning import worst_conditioning
from tokendynamics.training._experiment import Recipe
from tokendynamics.training._groups import parameter_groups

if TYPE_CHECKING:
    from transformers.trainer_utils import EvalLoopOutput

    from tokendynamics.training.tasks import Task

KEPT = 2
"""Checkpoints that stay: the last one, and the one before."""


class NotFiniteError(TokenDynamicsError, ArithmeticError):
    """A loss or a weight is no finite number any more.

    Attributes:
        step: The step in which that was seen, from 1.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class RunTrainer(Trainer):
    """The loop of one run; all that a run hangs on comes from its experiment.

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
        # The loss is the mean over a batch: Trainer divides it by the batches of an accumulation.
        self.model_accepts_loss_kwargs = False

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give every group of parameters its own learning rate and decay."""
        if self.optimizer is None:
            kind = torch.optim.AdamW if self._recipe.optimizer == "adamw" else torch.optim.Adam
            groups = parameter_groups(cast(nn.Module, model or self.model), self._recipe)
            self.optimizer = kind(groups, lr=self._recipe.learning_rate, betas=self._recipe.betas)
        return self.optimizer

    def training_step(self, *arguments: Any, **given: Any) -> Tensor:
        """Stop at a loss that is not finite, before it is in any weight that is kept."""
        loss = super().training_step(*arguments, **given)
        if not bool(torch.isfinite(loss)):
            raise NotFiniteError(
                f"the loss is {float(loss)} in step {self.state.global_step + 1}", self.state.global_step + 1
            )
        return loss

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
        found = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        metrics: dict[str, float] = found.metrics if found.metrics is not None else {}
        loss = metrics.get(f"{metric_key_prefix}_loss", math.nan)
        scores = None if found.predictions is None else torch.as_tensor(found.predictions)
        measured = self._task.measures(loss, scores)
        if metric_key_prefix == "eval":  # while the run goes on
            measured |= worst_conditioning(unwrapped(self.model))
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
            with full_disk_as_storage_error(folder):
                self._prepare_place()
                super()._save_checkpoint(model, trial)
                if self._averaged is not None and self.args.should_save:
                    self._averaged.save(self._writing / f"checkpoint-{step}")
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    put_checkpoint(self._writing / f"checkpoint-{step}", folder, KEPT)
                self.accelerator.wait_for_everyone()
        finally:
            self._writing = None

    def _prepare_place(self) -> None:
        if self.args.should_save:
            clear_partial(self._folder)
        self.accelerator.wait_for_everyone()
        if self._writing is not None:
            self._writing.mkdir(parents=True, exist_ok=True)

    def _check_finite(self, step: int) -> None:
        for name, parameter in unwrapped(self.model).named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise NotFiniteError(f"the weight {name} is not finite after step {step}", step)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self._averaged is not None:
            self._averaged.load(Path(resume_from_checkpoint), unwrapped(self.model))


def trainer_arguments(
    recipe: Recipe, folder: Path, seed: int, loggers: Sequence[str], further: Mapping[str, Any]
) -> TrainingArguments:
    """Return Trainer's arguments for a recipe.

    Args:
        recipe: What is trained how.
        folder: Of the checkpoints.
        seed: Of dropout; weights and data have seeds of their own.
        loggers: Names that Trainer knows, such as "wandb".
        further: Further arguments of `TrainingArguments`.
    """
    schedules = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
    floor = recipe.schedule == "cosine" and recipe.lowest > 0
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": recipe.steps,
        "per_device_train_batch_size": recipe.batch,
        "per_device_eval_batch_size": recipe.batch,
        "gradient_accumulation_steps": recipe.accumulation,
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": "cosine_with_min_lr" if floor else schedules[recipe.schedule],
        "lr_scheduler_kwargs": {"min_lr_rate": recipe.lowest} if floor else None,
        "warmup_steps": recipe.warmup,
        "max_grad_norm": recipe.clip or 0.0,
        "bf16": recipe.precision == "bf16",
        "fp16": recipe.precision == "fp16",
        "eval_strategy": "steps",
        "eval_steps": recipe.evaluate_every,
        "save_strategy": "steps",
        "save_steps": recipe.save_every,
        "logging_steps": recipe.log_every,
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",
        "seed": seed,
        "report_to": list(loggers),
        "disable_tqdm": True,
        "use_cpu": not torch.accelerator.is_available(),
        "ddp_find_unused_parameters": False,
    }
    return TrainingArguments(**{**settings, **further})
