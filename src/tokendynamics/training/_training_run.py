"""What a run does with Trainer, in order: fit, sample, measure, also through the layers, and keep."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from textwrap import indent
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.utils import logging

from tokendynamics.modules.network import Block
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.printable import printable
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import norms, pairwise_distances
from tokendynamics.provenance.manifest import plain, write_json
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.whole import whole_file
from tokendynamics.training._trainer import (
    KEPT,
    AveragedWeights,
    NotFiniteError,
    RunTrainer,
    load_whole_state,
    trainer_arguments,
    whole_network,
    whole_state,
)
from tokendynamics.training.experiment import Experiment, counted_otherwise
from tokendynamics.training.folder import (
    AVERAGED,
    CHECKPOINTS,
    EXPERIMENT,
    LOGS,
    MODEL,
    SAMPLES,
    checkpoints,
    clear_partial,
    into_room,
    last_checkpoint,
    put_folder,
    remove_older,
)
from tokendynamics.training.monitor._network import WithoutInferenceMode, loggers, undisturbed, unwrapped, why_not_alone
from tokendynamics.training.networks import network_of, task_of
from tokendynamics.training.record import Record
from tokendynamics.training.tasks import Task

_LOG = getLogger("tokendynamics")


class Samples(TrainerCallback):
    """Has a language model go on with a part of the validation split, again and again while `train` trains it.

    At each `every`-th step and at the last one the text is written to ``samples/step-000500.txt`` in the run's folder,
    and to TensorBoard where the run writes curves for it. The piece and the random numbers depend on the experiment's
    seed alone: samples differ by the weights, and a run that continues from a checkpoint writes the same ones again.

    The piece is as long as what the network sees in training. Each token after it is drawn from the network's own
    probabilities, none left out and none sharpened, which are given as many of the last tokens as it sees in training:
    where `LanguageModel.generate` refuses, since there are more tokens than positions, the first ones are dropped here.

    The training is not changed: random numbers, modes, gradients and weights are as they would have been. Where several
    processes train, the first one writes. Weights that are spread over several, or logits that are not finite, are a
    line in the log, and no sample.

    Args:
        every: Steps from one sample to the next.
        tokens: How many are drawn for each.

    Raises:
        ArgumentTypeError, ArgumentValueError: Numbers below 1; in `train` a task that is not of text; any Trainer that
            is not `train`'s.

    Source: `positional` D.3.3, whose numbers are the defaults; it does not print how tokens are drawn.
    """

    @typed_arguments
    def __init__(self, every: int = 500, tokens: int = 1024) -> None:
        self.every, self.tokens = as_count(every, "every"), as_count(tokens, "tokens")
        self._of: _OfRun | None = None
        self._warned = False

    def of_run(self, experiment: Experiment, task: Task, place: Path) -> None:
        """Take what to go on with from the data of a run.

        Args:
            experiment: What is run.
            task: Of the experiment.
            place: The run's folder.

        Raises:
            ArgumentValueError: A task that is not of text.
        """
        tokenizer = getattr(task, "tokenizer", None)
        if tokenizer is None:
            raise ArgumentValueError("samples", "a task of text: bytes or words", experiment.task)
        training, validation = task.training, task.validation
        seen = len(training[0]["ids"]) - 1  # the last token is only foretold
        chosen = int(np.random.default_rng(experiment.seed).integers(len(validation)))  # pyright: ignore[reportArgumentType]
        piece = torch.from_numpy(validation[chosen]["ids"][:seen].astype(np.int64))
        self._of = _OfRun(place / SAMPLES, tokenizer(), piece, seen, experiment.seed)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Refuse a Trainer that is not of a run."""
        if self._of is None:
            wanted = "Samples only among the callbacks of td.training.train, which has the text and the folder"
            raise ArgumentValueError("callbacks", wanted, "another Trainer's")

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write a sample every `every` steps, and at the last."""
        of, step = self._of, state.global_step
        if of is None or not state.is_world_process_zero or (step % self.every and step != state.max_steps):
            return
        if why := why_not_alone(given["model"]):
            self._warn_once(f"no samples: {why}")
            return
        drawn = of.drawn(unwrapped(given["model"]), self.tokens)
        if drawn is None:
            self._warn_once(f"step {step}: no sample: the logits are not finite")
            return
        text = of.text(step, drawn)
        with whole_file(of.folder / f"step-{step:06}.txt") as made:
            made.write_text(text, encoding="utf-8")
        for logger in loggers():
            writer = getattr(logger, "tb_writer", None)
            if writer is not None:  # it shows Markdown, where what is indented stays as it is
                writer.add_text("samples", indent(text, "    ", lambda _: True), step)

    def _warn_once(self, line: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("%s; training continues", line)


@dataclass(frozen=True)
class _OfRun:
    """What all samples of a run have in common.

    Attributes:
        folder: Where they go.
        tokenizer: Of the task.
        piece: Token ids of the text that is gone on with, (token,).
        seen: Tokens that a network is given at most.
        seed: Of what is drawn.
    """

    folder: Path
    tokenizer: Any
    piece: Tensor
    seen: int
    seed: int

    def drawn(self, network: nn.Module, count: int) -> Tensor | None:
        """Return the token ids after the piece, (token,); None where a logit is not finite."""
        generator = torch.Generator().manual_seed(self.seed)
        device = next(network.parameters()).device
        ids = self.piece
        with undisturbed(network):
            alone = WithoutInferenceMode(network)
            for _ in range(count):
                read = ids[-self.seen :].unsqueeze(0).to(device)
                logits = alone(input_ids=read, logits_to_keep=1).logits[0, -1].cpu().double()
                if not bool(torch.isfinite(logits).all()):
                    return None
                ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=generator)])
        return ids[len(self.piece) :]

    def text(self, step: int, drawn: Tensor) -> str:
        """Return the sample as text that acts on no terminal."""
        given, new = (printable(self.tokenizer.decode(ids), keep="\n\t") for ids in (self.piece, drawn))
        head = f"Step {step}: {len(self.piece)} tokens of the validation split, then {len(drawn)} of the network."
        return f"{head}\n\n{given}\n\n--- continuation ---\n\n{new}\n"


SEQUENCES, TOKENS = 8, 128
"""How much of a batch is looked at, at most."""


@torch.no_grad()
def through_layers(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, dict[str, list[float | None]]]:
    """Return mean token norm and mean distance of two tokens of a sequence, after 0, 1, … layers, in float64.

    Args:
        model: A network of `tokendynamics.modules` with whole weights; it is not changed.
        batch: What the network is given, of which the first sequences and tokens are looked at.

    Returns:
        ``"full"``: of the network as it is, before its last norm. ``"bare"``: of the same weights without norms,
        feed-forward parts and what is dropped, ``x ← x + attention(x)``, from the same embeddings. Each has ``"norm"``
        and ``"distance"``, a number for every depth from the embedding on; None where states are not finite, and from
        the first layer on whose logits are not: what PyTorch's kernels make of these depends on the processor.

    Source: `positional` Figures 6 and 7.
    """
    twin = copy.deepcopy(model).cpu().double().eval()  # not every accelerator has float64
    vars(twin).pop("forward", None)  # mixed precision, which accelerate puts there, is not for these
    blocks = [module for module in twin.modules() if isinstance(module, Block)]
    shown = {name: _beginning(name, value) for name, value in batch.items() if name != "labels"}
    seen: list[Tensor] = []
    sound: list[bool] = []  # whether the logits of each attention are finite, in the order in which they run

    def look(attention: Any, given: tuple[Tensor, ...]) -> None:
        sound.append(bool(attention.scores(given[0]).isfinite().all()))

    with ExitStack() as hooks:
        hooks.callback(blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0])).remove)
        for block in blocks:
            hooks.callback(block.register_forward_hook(lambda *given: seen.append(given[-1])).remove)
            hooks.callback(block.attention.register_forward_pre_hook(look).remove)
        twin(**shown)
        bare = [seen[0]]
        for block in blocks:
            bare.append(bare[-1] + block.attention(bare[-1]))
    return {"full": _through(seen, sound[: len(blocks)]), "bare": _through(bare, sound[len(blocks) :])}


def _beginning(name: str, value: Tensor) -> Tensor:
    value = value.cpu()
    if name == "input_ids":
        return value[:SEQUENCES, :TOKENS]
    return value[:SEQUENCES].double() if value.is_floating_point() else value[:SEQUENCES]


def _through(states: list[Tensor], sound: list[bool]) -> dict[str, list[float | None]]:
    finite = [bool(torch.isfinite(state).all()) and all(sound[:layer]) for layer, state in enumerate(states)]
    return plain(
        {
            name: [measure(state) if sound else math.nan for state, sound in zip(states, finite, strict=True)]
            for name, measure in (("norm", lambda states: float(norms(states).mean())), ("distance", _mean_distance))
        }
    )


def _mean_distance(states: Tensor) -> float:
    tokens = states.shape[-2]
    pairs: Any = pairwise_distances(states)
    return float(pairs.sum() / (len(states) * tokens * (tokens - 1))) if tokens > 1 else 0.0


class Reported(TrainerCallback):
    """Tells how many steps are done.

    Args:
        report: See `Progress`.
        what: The piece of work, in words.
    """

    def __init__(self, report: Progress, what: str) -> None:
        self._report, self._what = report, what

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Tell where the run begins or resumes."""
        self._tell(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Tell the step."""
        self._tell(state)

    def _tell(self, state: Any) -> None:
        if state.is_world_process_zero:
            self._report(state.global_step, state.max_steps, self._what)


class TensorBoardCurves(TensorBoardCallback):
    """Writes every logged number for TensorBoard, to the last evaluation.

    Of a run that continues from a checkpoint, TensorBoard leaves out what had been written after that one.

    Args:
        folder: Where its files go.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin a file."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self.tb_writer = SummaryWriter(str(self._folder), purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave the file open for the evaluations that follow."""

    def close(self) -> None:
        """Bring everything to the disk; the file is complete."""
        if self.tb_writer is not None:
            self.tb_writer.close()
            self.tb_writer = None


Measures = dict[str, dict[str, float | None]]

_LOGGED = ("step", "loss", "learning_rate", "grad_norm")
_EVALUATED = "eval_"
_OF_THE_MACHINE = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class TrainingRun:
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
        for number, callback in enumerate(callbacks):
            if not isinstance(callback, TrainerCallback):
                raise ArgumentTypeError(f"callbacks[{number}]", "a callback of Hugging Face's Trainer", shown(callback))
        recipe = experiment.recipe
        others = [name for name in loggers if name != "tensorboard"]
        settings = trainer_arguments(recipe, place / CHECKPOINTS, experiment.seed, others, arguments)
        self.experiment, self.place, self.processes = experiment, place, settings.world_size
        self.task = task_of(experiment, recipe.steps * recipe.batch * recipe.accumulation * self.processes)
        for callback in callbacks:
            if isinstance(callback, Samples):
                callback.of_run(experiment, self.task, place)
        model = network_of(experiment, self.task)
        self.notes = counted_otherwise(experiment, self.processes)
        self.averaged = None if recipe.averaging is None else AveragedWeights(recipe.averaging)
        listeners: list[TrainerCallback] = [Reported(report, f"Training {experiment.name}")]
        self.curves: TensorBoardCurves | None = None
        if settings.process_index == 0:  # from here on the folder is this run's
            with whole_file(place / EXPERIMENT) as made:
                write_json(made, experiment.as_json())
            if "tensorboard" in loggers:
                self.curves = TensorBoardCurves(place / LOGS)
                listeners.append(self.curves)
        self.trainer = RunTrainer(model, self.task, recipe, settings, self.averaged, [*listeners, *callbacks])

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return self.trainer.state.global_step

    @property
    def _first(self) -> bool:
        """Whether this process writes."""
        return bool(self.trainer.args.should_save)

    def fit(self) -> str | None:
        """Train from the last checkpoint on; say where the loss was not finite any more, if it was not.

        Raises:
            CheckpointError: The last checkpoint is damaged.
        """
        folder = self.place / CHECKPOINTS
        if self._first:
            clear_partial(folder)
            remove_older(folder, KEPT)
        self.trainer.accelerator.wait_for_everyone()
        former = last_checkpoint(folder, self.processes)
        try:
            with _without_bars():
                self.trainer.train(resume_from_checkpoint=None if former is None else str(former))
        except NotFiniteError as error:
            kept = checkpoints(folder)
            good = f"the last checkpoint is from before that: {kept[-1].name}" if kept else "there is no checkpoint"
            return f"{error}; {good}"
        return None

    def course(self) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
        """Return what was logged of the training, and of the evaluations on the validation split."""
        logged = self.trainer.state.log_history
        history = [{name: entry[name] for name in _LOGGED if name in entry} for entry in logged if "loss" in entry]
        evaluated = [entry for entry in logged if f"{_EVALUATED}loss" in entry]
        validation = [{"step": entry["step"], **_evaluation(entry, _EVALUATED)} for entry in evaluated]
        return tuple(plain(history)), tuple(validation)

    def measured(self) -> tuple[Measures, dict[str, dict[str, list[float | None]]]]:
        """Return the measures on both splits, and norms and distances through the layers."""
        measures = self._measures("")
        if self.averaged is not None and self.averaged.network is not None:
            with self._with_averaged_weights():
                measures |= self._measures(", averaged")
        test = self.task.test
        items = [test[number] for number in range(min(SEQUENCES, len(test)))]  # pyright: ignore[reportArgumentType]
        return measures, through_layers(whole_network(self.trainer.model), self.task.evaluation_batch(items))

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

    def close(self) -> None:
        """Bring the curves to the disk."""
        if self.curves is not None:
            self.curves.close()

    def _write(self, name: str) -> None:
        network = cast(Any, whole_network(self.trainer.model))
        if not self._first:
            return
        made = self.place / f".{name}.partial"
        shutil.rmtree(made, ignore_errors=True)  # of a run that was killed here
        try:
            with _without_bars(), into_room(self.place):
                network.save_pretrained(made)
                self.task.save_inputs(made)
        except OSError:  # its remains stand where there is no room
            shutil.rmtree(made, ignore_errors=True)
            raise
        put_folder(made, self.place / name)

    def _measures(self, kind: str) -> Measures:
        splits = {"validation": self.task.validation, "test": self.task.test}
        measures = {}
        for name, split in splits.items():
            prefix = name + kind.replace(", ", "_")
            metrics = self.trainer.evaluate(eval_dataset=split, metric_key_prefix=prefix)
            measures[name + kind] = _evaluation(metrics, f"{prefix}_")
        return measures

    @contextmanager
    def _with_averaged_weights(self) -> Iterator[None]:
        model, averaged = self.trainer.model, self.averaged
        former = {name: value.clone() for name, value in whole_state(model).items()}
        try:
            if averaged is not None and averaged.network is not None:
                load_whole_state(model, averaged.network.state_dict())
            yield
        finally:
            load_whole_state(model, former)


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


def _evaluation(logged: Mapping[str, float], prefix: str) -> dict[str, float | None]:
    """Return an evaluation's loss and measures without what depends on the machine; None where not finite."""
    named = {name.removeprefix(prefix): value for name, value in logged.items() if name.startswith(prefix)}
    return plain({name: value for name, value in named.items() if name not in _OF_THE_MACHINE})
