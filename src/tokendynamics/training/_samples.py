"""Samples of text during training: the network continues with a text that it is not trained on."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.printable import printable
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.whole import whole_file
from tokendynamics.training.experiment import Experiment
from tokendynamics.training.folder import SAMPLES
from tokendynamics.training.monitor._network import WithoutInferenceMode, loggers, undisturbed, unwrapped, why_not_alone
from tokendynamics.training.tasks import Task

_LOG = logging.getLogger("tokendynamics")


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
        self._told = False

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
            raise ArgumentValueError(expected("samples", "a task of text: bytes or words", experiment.task))
        training, validation = task.training, task.validation
        seen = len(training[0]["ids"]) - 1  # the last token is only foretold
        chosen = int(np.random.default_rng(experiment.seed).integers(len(validation)))  # pyright: ignore[reportArgumentType]
        piece = torch.from_numpy(validation[chosen]["ids"][:seen].astype(np.int64))
        self._of = _OfRun(place / SAMPLES, tokenizer(), piece, seen, experiment.seed)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Refuse a Trainer that is not of a run."""
        if self._of is None:
            wanted = "Samples only among the callbacks of td.training.train, which has the text and the folder"
            raise ArgumentValueError(expected("callbacks", wanted, "another Trainer's"))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write a sample every `every` steps, and at the last."""
        of, step = self._of, state.global_step
        if of is None or not state.is_world_process_zero or (step % self.every and step != state.max_steps):
            return
        if why := why_not_alone(given["model"]):
            self._tell_once(f"no samples: {why}")
            return
        drawn = of.drawn(unwrapped(given["model"]), self.tokens)
        if drawn is None:
            self._tell_once(f"step {step}: no sample: the logits are not finite")
            return
        text = of.text(step, drawn)
        with whole_file(of.folder / f"step-{step:06}.txt") as made:
            made.write_text(text, encoding="utf-8")
        for logger in loggers():
            writer = getattr(logger, "tb_writer", None)
            if writer is not None:  # it shows Markdown, where what is indented stays as it is
                writer.add_text("samples", indent(text, "    ", lambda _: True), step)

    def _tell_once(self, line: str) -> None:
        if not self._told:
            self._told = True
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
