"""Trainer's arguments for a recipe, and what of them is not for a run to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch
from transformers import TrainingArguments

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.training.experiment import Recipe

_OPEN = {"per_device_eval_batch_size", "use_cpu", "disable_tqdm", "ddp_find_unused_parameters"}
"""What is set below and may yet be another."""
_DETERMINED = {
    "report_to", "optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "num_train_epochs",
    "data_seed", "resume_from_checkpoint",
}  # fmt: skip
"""What would not be heeded."""


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

    Raises:
        ArgumentValueError: An argument that there is not or that the experiment determines, a logger that there is
            not, "fp16" without an accelerator, or weights to be sharded where nothing shards them.
    """
    settings = _settings(recipe, folder, seed)
    _check_further(further, settings)
    _check_loggers(loggers)
    processors = further.get("use_cpu", settings["use_cpu"])
    if recipe.precision == "fp16" and processors:
        advice = "--set recipe.precision=bf16 (recipe={'precision': 'bf16'})"
        raise ArgumentValueError(expected("precision", "float32 or bf16 without an accelerator", "fp16", advice))
    try:
        made = TrainingArguments(**{**settings, "report_to": list(loggers), **further})
    except (TypeError, ValueError) as error:
        raise ArgumentValueError(
            expected("arguments", "what transformers.TrainingArguments takes", " ".join(str(error).split()))
        ) from error
    _check_sharded(made)
    # Several devices of one process would be nn.DataParallel's, which knows nothing of weights that are made.
    made._n_gpu = min(made.n_gpu, 1)
    return made


def _settings(recipe: Recipe, folder: Path, seed: int) -> dict[str, Any]:
    schedules = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
    floor = recipe.schedule == "cosine" and recipe.lowest > 0
    return {
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
        "disable_tqdm": True,
        "use_cpu": not torch.accelerator.is_available(),
        "ddp_find_unused_parameters": False,
    }


def _check_further(further: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    if not isinstance(further, Mapping):
        raise ArgumentTypeError(expected("arguments", "a dict", repr(further)))
    known = {each.name for each in fields(TrainingArguments) if each.init}
    for name in further:
        if name not in known:
            raise ArgumentValueError(expected("arguments", "names of transformers.TrainingArguments", repr(name)))
        if name in _DETERMINED | settings.keys() - _OPEN:
            wanted = "none that experiment, loggers and folder determine"
            raise ArgumentValueError(expected("arguments", wanted, repr(name)))


def _check_sharded(made: TrainingArguments) -> None:
    """Refuse to shard weights where accelerate would pass it over without a word."""
    from accelerate.utils import DistributedType, parse_flag_from_env

    kind = cast(Any, made.distributed_state).distributed_type
    if (made.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP")) and kind in (
        DistributedType.NO,
        DistributedType.MULTI_CPU,
    ):
        came = "one process" if kind == DistributedType.NO else "processors, over which accelerate shards nothing"
        raise ArgumentValueError(expected("fsdp", "several processes with an accelerator each", came, "leave it out"))


def _check_loggers(loggers: Sequence[str]) -> None:
    """Refuse what Trainer does not know, and what is not installed, before there is a folder."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in loggers:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ArgumentValueError(
                expected("loggers", "names among " + ", ".join(INTEGRATION_TO_CALLBACK), repr(name))
            )
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:
            raise ArgumentValueError(expected("loggers", "installed ones", f"{name} ({error})")) from error
