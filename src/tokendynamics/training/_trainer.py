"""Hugging Face's Trainer: arguments, data and measures, groups of parameters, whole weights and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from tokendynamics.modules import ConstrainedAttention, LearnedPositions, NegativeDiagonal, SignedMatrix
from tokendynamics.modules.matrices import FreeMatrix
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, TokenDynamicsError
from tokendynamics.training.experiment import Recipe
from tokendynamics.training.folder import clear_partial, into_room, partial_place, put_checkpoint

if TYPE_CHECKING:
    from transformers.trainer_utils import EvalLoopOutput

    from tokendynamics.training.tasks import Task


def whole_network(model: Any) -> nn.Module:
    """Return the network without what distributes it.

    Where its weights are sharded (FSDP) it is a new one, into which they are gathered: then every process must call
    this, and what is done to the network is not done to the model.
    """
    network = _unwrapped(model)
    if not is_sharded(network):
        return network
    with torch.random.fork_rng(devices=[]):
        whole = cast(nn.Module, type(network)(cast(Any, network).config))  # of the class from which FSDP's is derived
    whole.load_state_dict(whole_state(network))
    return whole.to(next(network.parameters()).device).train(network.training)


def whole_state(model: Any) -> dict[str, Tensor]:
    """Return the weights by name; where they are sharded every process must call this."""
    network = _unwrapped(model)
    if not is_sharded(network):
        return network.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    _resharded(network)
    weights = get_model_state_dict(network, options=StateDictOptions(full_state_dict=True))
    return cast("dict[str, Tensor]", weights)


def load_whole_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """Set the weights to those that `whole_state` returned; where they are sharded every process must call this."""
    network = _unwrapped(model)
    if not is_sharded(network):
        network.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    _resharded(network)
    set_model_state_dict(network, dict(state), options=StateDictOptions(full_state_dict=True))


def is_sharded(model: nn.Module) -> bool:
    """Whether a process has only its part of the weights."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def _resharded(network: nn.Module) -> None:
    """Give up the weights that a forward pass has gathered for a backward pass which did not follow."""
    for module in network.modules():
        getattr(module, "reshard", lambda: None)()


def _unwrapped(model: Any) -> nn.Module:
    from accelerate.utils import extract_model_from_parallel

    return cast(nn.Module, extract_model_from_parallel(model))


_FILE = "averaged.safetensors"


class AveragedWeights(TrainerCallback):
    """``θ̄ ← decay θ̄ + (1 − decay) θ`` after every step of the optimiser, from the weights after the first on.

    Where the weights are sharded every process has the whole average.

    Args:
        decay: Between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._averaged: AveragedModel | None = None

    @property
    def network(self) -> Any:
        """The network with the averaged weights; None before the first step."""
        return None if self._averaged is None else self._averaged.module

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take the weights of this step in."""
        model = whole_network(given["model"])
        if self._averaged is None:
            self._averaged = _average_of(model, self.decay)
        self._averaged.update_parameters(model)

    def save(self, folder: Path) -> None:
        """Write the average and the number of steps in it into a checkpoint."""
        from safetensors.torch import save_file

        if self._averaged is not None:
            # A copy each: tensors of one memory (tied embeddings) are refused.
            state = {name: value.detach().clone().contiguous() for name, value in self._averaged.state_dict().items()}
            save_file(state, folder / _FILE)

    def load(self, folder: Path, model: nn.Module) -> None:
        """Go on with the average that a checkpoint has."""
        from safetensors.torch import load_file

        if (folder / _FILE).is_file():
            self._averaged = _average_of(whole_network(model), self.decay)
            self._averaged.load_state_dict(load_file(folder / _FILE))


def _average_of(model: nn.Module, decay: float) -> AveragedModel:
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    with torch.no_grad():
        for parameter in averaged.parameters():
            parameter.requires_grad_(False)
    return averaged.eval()


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
    if not isinstance(further, Mapping):
        raise ArgumentTypeError("arguments", "a dict", repr(further))
    known = {field.name for field in fields(TrainingArguments) if field.init}
    for name in further:
        if name not in known:
            raise ArgumentValueError("arguments", "names of transformers.TrainingArguments", repr(name))
        if name in _DETERMINED | settings.keys() - _OPEN:
            raise ArgumentValueError("arguments", "none that experiment, loggers and folder determine", repr(name))
    # What Trainer does not know, and what is not installed, is refused before there is a folder.
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for logger in loggers:
        if logger not in INTEGRATION_TO_CALLBACK:
            raise ArgumentValueError("loggers", "names among " + ", ".join(INTEGRATION_TO_CALLBACK), repr(logger))
        try:
            INTEGRATION_TO_CALLBACK[logger]()
        except (ImportError, RuntimeError) as error:
            raise ArgumentValueError("loggers", "installed ones", f"{logger} ({error})") from error
    processors = further.get("use_cpu", settings["use_cpu"])
    if recipe.precision == "fp16" and processors:
        advice = "--set recipe.precision=bf16 (recipe={'precision': 'bf16'})"
        raise ArgumentValueError("precision", "float32 or bf16 without an accelerator", "fp16", advice)
    try:
        made = TrainingArguments(**{**settings, "report_to": list(loggers), **further})
    except (TypeError, ValueError) as error:
        raise ArgumentValueError(
            "arguments", "what transformers.TrainingArguments takes", " ".join(str(error).split())
        ) from error
    # Accelerate would pass over sharded weights without a word here.
    from accelerate.utils import DistributedType, parse_flag_from_env

    kind = cast(Any, made.distributed_state).distributed_type
    if (made.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP")) and kind in (
        DistributedType.NO,
        DistributedType.MULTI_CPU,
    ):
        came = "one process" if kind == DistributedType.NO else "processors, over which accelerate shards nothing"
        raise ArgumentValueError("fsdp", "several processes with an accelerator each", came, "leave it out")
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
    names = dict.fromkeys(name for kinds in _KINDS.values() for name in kinds.values())
    rates = {"decaying": 1.0, "other": 1.0, **{name: getattr(recipe.multipliers, name) for name in names}}
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in rates}
    for name, parameter in _named_by_group(model):
        groups[name].append(parameter)
    return [
        {
            "params": parameters,
            "lr": recipe.learning_rate * rates[name],
            "weight_decay": recipe.weight_decay if name == "decaying" else 0.0,
            "name": name,
        }
        for name, parameters in groups.items()
        if parameters
    ]


def _named_by_group(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter that is trained once, with the name of its group."""
    seen: set[int] = set()
    for module in model.modules():
        kinds = next((kinds for kind, kinds in _KINDS.items() if isinstance(module, kind)), {})
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
    if not layers or not all(bool(torch.isfinite(weight).all()) for layer in layers for weight in layer.weights()[:3]):
        return {}
    numbers = [layer.conditioning() for layer in layers]
    return {name: (min if name == _LOWEST else max)(of_layer[name] for of_layer in numbers) for name in numbers[0]}


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
            groups = parameter_groups(cast(nn.Module, self.model if model is None else model), self._recipe)
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
            counted = max(state.remainder - self.args.process_index * self.args.eval_batch_size, 0)
            labels = inputs["labels"].clone()
            labels[counted:] = _IGNORED
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
        output = super().evaluation_loop(
            dataloader, description, self.args.prediction_loss_only, ignore_keys, metric_key_prefix
        )
        metrics: dict[str, float] = output.metrics if output.metrics is not None else {}
        loss = metrics.get(f"{metric_key_prefix}_loss", math.nan)
        scores = None if output.predictions is None else torch.as_tensor(output.predictions)
        measured = self._task.measures(loss, scores)
        if metric_key_prefix == "eval":  # while the run continues
            measured |= worst_conditioning(whole_network(self.model))
        metrics.update({f"{metric_key_prefix}_{name}": value for name, value in measured.items()})
        return output

    @property
    def _folder(self) -> Path:
        return Path(cast(str, self.args.output_dir))

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._writing is None else str(self._writing)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint under another name, and give it its own when all of it is on the disk."""
        folder, step = self._folder, self.state.global_step
        self._check_finite(step)
        writing = self._writing = partial_place(folder, step)
        try:
            with into_room(folder):
                if self.args.should_save:
                    clear_partial(folder)
                self.accelerator.wait_for_everyone()
                writing.mkdir(parents=True, exist_ok=True)
                super()._save_checkpoint(model, trial)
                if self._averaged is not None and self.args.should_save:
                    self._averaged.save(writing / f"checkpoint-{step}")
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    made = writing / f"checkpoint-{step}"
                    put_checkpoint(made, folder, keep=KEPT, processes=self.args.world_size)
                self.accelerator.wait_for_everyone()
        except OSError:  # its remains stand where there is no room
            clear_partial(folder)
            raise
        finally:
            self._writing = None

    def _check_finite(self, step: int) -> None:
        """Refuse to keep weights that are not finite, in every process where they are so in one."""
        named = cast(nn.Module, self.accelerator.unwrap_model(self.model)).named_parameters()
        parts = ((name, getattr(part, "to_local", lambda part=part: part)()) for name, part in named)
        not_finite = [name for name, part in parts if not bool(torch.isfinite(part).all())]
        count = torch.tensor([len(not_finite)], device=self.args.device)
        if int(cast(Tensor, self.accelerator.gather(count)).sum()):
            name = not_finite[0] if not_finite else "of another process"
            raise NotFiniteError(f"the weight {name} is not finite after step {step}")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self._averaged is not None:
            trained = cast(nn.Module, self.model if model is None else model)
            self._averaged.load(Path(resume_from_checkpoint), trained)
