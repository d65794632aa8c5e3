"""What a run does with Trainer, in order: fit, measure, and keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging

from tokendynamics.provenance._manifest import write_json
from tokendynamics.provenance._progress import Progress
from tokendynamics.provenance._whole import whole_file
from tokendynamics.training._averaging import AveragedWeights
from tokendynamics.training._callbacks import Curves, Reported
from tokendynamics.training._causes import likely_causes
from tokendynamics.training._checkpoints import checkpoints, clear_partial
from tokendynamics.training._experiment import Experiment
from tokendynamics.training._folder import AVERAGED, CHECKPOINTS, EXPERIMENT, LOGS, MODEL, put_folder
from tokendynamics.training._layers import SEQUENCES, through_layers
from tokendynamics.training._networks import network_of
from tokendynamics.training._record import Record
from tokendynamics.training._trainer import NotFiniteError, RunTrainer, trainer_arguments
from tokendynamics.training.tasks import task_of

_LOGGED = ("step", "loss", "learning_rate", "grad_norm")
_EVALUATED = "eval_"
_OF_THE_MACHINE = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class Run:
    """A network, its task and its Trainer.

    Args:
        experiment: What is run.
        place: The run's folder.
        loggers: See `train`.
        callbacks: See `train`.
        report: Told the steps.
        arguments: See `train`.
    """

    def __init__(
        self,
        experiment: Experiment,
        place: Path,
        loggers: Sequence[str],
        callbacks: Sequence[TrainerCallback],
        report: Progress,
        arguments: Mapping[str, Any],
    ) -> None:
        recipe = experiment.recipe
        others = [name for name in loggers if name != "tensorboard"]
        settings = trainer_arguments(recipe, place / CHECKPOINTS, experiment.seed, others, arguments)
        draws = recipe.steps * recipe.batch * recipe.accumulation * settings.world_size
        self.experiment, self.place = experiment, place
        self.task = task_of(experiment, draws)
        model = network_of(experiment, self.task)
        self.averaged = None if recipe.averaging is None else AveragedWeights(recipe.averaging)
        told: list[TrainerCallback] = [Reported(report, f"Training {experiment.name}")]
        if settings.process_index == 0:  # from here on the folder is this run's
            with whole_file(place / EXPERIMENT) as made:
                write_json(made, experiment.as_json())
            told += [Curves(place / LOGS)] if "tensorboard" in loggers else []
        self.trainer = RunTrainer(model, self.task, recipe, settings, self.averaged, [*told, *callbacks])
        self.trainer.remove_callback(PrinterCallback)

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return self.trainer.state.global_step

    @property
    def _first(self) -> bool:
        """Whether this process writes."""
        return bool(self.trainer.args.should_save)

    def fit(self) -> list[str]:
        """Train from the last checkpoint on; return likely causes where the loss was not finite any more."""
        folder = self.place / CHECKPOINTS
        if self._first:
            clear_partial(folder)
        self.trainer.accelerator.wait_for_everyone()
        former = checkpoints(folder)
        try:
            with _without_bars():
                self.trainer.train(resume_from_checkpoint=str(former[-1]) if former else None)
        except NotFiniteError as error:
            kept = checkpoints(folder)
            good = f"the last checkpoint is from before: {kept[-1].name}" if kept else "no checkpoint had been written"
            return [f"{error}; {good}", *likely_causes(self.experiment, *self.course())]
        return []

    def course(self) -> tuple[tuple[dict[str, float], ...], tuple[dict[str, float], ...]]:
        """Return what was logged of the training, and of the evaluations on the validation split."""
        logged = self.trainer.state.log_history
        history = [{name: each[name] for name in _LOGGED if name in each} for each in logged if "loss" in each]
        evaluated = [each for each in logged if f"{_EVALUATED}loss" in each]
        validation = [{"step": each["step"], **_evaluation(each, _EVALUATED)} for each in evaluated]
        return tuple(history), tuple(validation)

    def measured(self) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, list[float]]]]:
        """Return the measures on both splits, and norms and distances through the layers."""
        measures = self._measures("")
        if self.averaged is not None and self.averaged.network is not None:
            with self._with_averaged_weights():
                measures |= self._measures(", averaged")
        test = self.task.test
        items = [test[number] for number in range(min(SEQUENCES, len(test)))]  # pyright: ignore[reportArgumentType]
        batch = {name: value.to(self.trainer.args.device) for name, value in self.task.evaluation_batch(items).items()}
        return measures, through_layers(self._network(), batch)

    def keep(self, record: Record) -> None:
        """Write the network, with what turns inputs into what it takes, and then the record."""
        if record.finished:
            self._write(MODEL)
            if self.averaged is not None:
                with self._with_averaged_weights():
                    self._write(AVERAGED)
        if self._first:
            record.save(self.place)
        self.trainer.accelerator.wait_for_everyone()

    def _write(self, name: str) -> None:
        made = self.place / f".{name}.partial"
        with _without_bars():
            self.trainer.save_model(str(made))
        if self._first:
            (made / "training_args.bin").unlink(missing_ok=True)  # pickled, and of no use beside a record
            self.task.save_inputs(made)
            put_folder(made, self.place / name)

    def _network(self) -> torch.nn.Module:
        from tokendynamics.training._averaging import unwrapped

        return unwrapped(self.trainer.model)

    def _measures(self, kind: str) -> dict[str, dict[str, float]]:
        splits = {"validation": self.task.validation, "test": self.task.test}
        found = {}
        for name, split in splits.items():
            metrics = self.trainer.evaluate(eval_dataset=split, metric_key_prefix=name)
            found[name + kind] = _evaluation(metrics, f"{name}_")
        return found

    @contextmanager
    def _with_averaged_weights(self) -> Iterator[None]:
        network, averaged = self._network(), self.averaged
        former = {name: value.clone() for name, value in network.state_dict().items()}
        try:
            if averaged is not None and averaged.network is not None:
                network.load_state_dict(averaged.network.state_dict())
            yield
        finally:
            network.load_state_dict(former)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for each file that it writes."""
    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def _evaluation(logged: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return the loss and measures of an evaluation without what hangs on the machine."""
    named = {name.removeprefix(prefix): value for name, value in logged.items() if name.startswith(prefix)}
    return {name: value for name, value in named.items() if name not in _OF_THE_MACHINE}
