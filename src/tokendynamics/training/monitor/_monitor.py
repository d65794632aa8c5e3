"""Watches where a network's tokens go while it is trained, in any loop, and leaves the training as it is."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from torch import Tensor, nn
from transformers import TrainerCallback

from tokendynamics.diagnosis.tracing.prompts import named_prompts
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError, TokenDynamicsError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import shown, why
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained.encoding import as_tokenizer
from tokendynamics.pretrained.network import half_of
from tokendynamics.pretrained.other_libraries import in_short
from tokendynamics.provenance.manifest import plain
from tokendynamics.results.result import Readable
from tokendynamics.training.monitor._network import base_of, loggers, measures_here, unwrapped, why_not_alone
from tokendynamics.training.monitor.changes import has_intervals
from tokendynamics.training.monitor.looks import DECIDING, FINAL_NORM, MEASURED, Look, Probe, Values
from tokendynamics.training.monitor.series import Series

_LOG = logging.getLogger("tokendynamics")

Send: TypeAlias = Callable[[dict[str, float]], None]


Write: TypeAlias = Callable[[str, float, int], object]
"""Takes name, value and step."""

_SENT = (
    "share_common", "share_prompt", "share_own", "consensus_within", "consensus_relative", "centred_cos2",
    "attention_sink_mass",
)  # fmt: skip
_PARTS = ("attention", "feed_forward")


class Monitor(Readable, TrainerCallback):
    """Measures the tokens of a few texts after every layer, again and again while a network is trained.

    In a Trainer of Hugging Face it is a callback, and its numbers go to the loggers that the Trainer has; in a custom
    loop `step` is called after each step of the optimiser, and `writer` takes the numbers. A layer that changes
    its state (`mathematics` 10) beyond its intervals, or one of whose measures moves by 0.4 or more, is a line in the
    log ``tokendynamics``; so is the state after the final norm. What was measured stands in every checkpoint of a
    Trainer, and a run that is resumed continues with it.

    The training is not changed: random numbers, modes, gradients and weights are as they would have been. Nor is it
    stopped: a network that cannot be read, a pass that fails, states that are not finite are one line in the log, and
    stand in `status`. Where several processes train, the first one measures; weights that are spread over several
    are not measured.

    Args:
        texts: At least two different ones, as `tokendynamics.trace` takes them: texts, or token ids. κ depends on
            them; intervals, states and changes need three.
        every: Steps from one look to the next. The first look is at the first step; in a Trainer before it, and a last
            one at the end.
        tokenizer: Turns texts into token ids; None for that of the Trainer.
        writer: Takes the numbers, beside the loggers of a Trainer: a SummaryWriter, or a function of name, value, step.
        inputs: For a network that does not come from transformers, an example or a function; see `tokendynamics.load`.
        half: Which half of a network of two is measured, "encoder" or "decoder", "text" or "vision".

    Raises:
        ArgumentTypeError, ArgumentValueError: Fewer than two texts, or an argument of another kind.

    >>> from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
    >>> model = LanguageModel(LanguageModelConfig(hidden_size=16, num_hidden_layers=2, intermediate_size=32))
    >>> monitor = Monitor([list(b"some bytes to look at"), list(b"and some others of them")], every=2)
    >>> for _ in range(4):
    ...     monitor.step(model)
    >>> monitor.status, monitor.dataset.step.values.tolist(), monitor.dataset.consensus_relative.dims
    ('measured', [1, 2, 4], ('step', 'layer'))
    """

    @typed_arguments
    def __init__(
        self,
        texts: Any,
        every: int = 500,
        *,
        tokenizer: Any = None,
        writer: Any = None,
        inputs: Any = None,
        half: str | None = None,
    ) -> None:
        as_tokenizer(tokenizer)  # refuses anything else
        values = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
        if not (inputs is None or callable(inputs) or any(isinstance(value, Tensor) for value in values)):
            wanted = "an example (a tensor, or a tuple or a mapping with tensors), a function or None"
            raise ArgumentTypeError("inputs", wanted, shown(inputs))
        # Texts by name, of which not all are one.
        named = named_prompts(texts)
        different = {_written(item) for item in named.values()}
        if len(different) < 2:
            came = "one" if len(named) == 1 else f"{len(named)} copies of one"
            advice = "common directions need a comparison of different texts"
            raise ArgumentValueError("texts", "at least two different texts", came, advice)
        self._prompts, self.every = named, as_count(every, "every")
        self._tokenizer, self._write, self._inputs = tokenizer, as_write(writer), inputs
        self._half = half
        self.series, self._calls = Series(), 0
        self._probe: Probe | None = None
        self._unreadable: nn.Module | None = None
        self._seconds, self._elapsed, self._first_ended = 0.0, 0.0, None
        self._failed: set[str] = set()

    @typed_arguments
    def step(self, model: nn.Module) -> None:
        """Count a step of a training loop, and measure at the first and at each `every`-th; afterwards.

        Args:
            model: As the loop has it.

        Raises:
            ArgumentTypeError: No network.
        """
        self._calls += 1
        if (self._calls == 1 or self._calls % self.every == 0) and self._calls >= self._next:
            self._look(model, self._calls, self._tokenizer)

    @typed_arguments
    def measure(self, model: nn.Module, step: int) -> None:
        """Measure now.

        Args:
            model: As the training loop has it.
            step: Its number, larger than that of the last look.

        Raises:
            ArgumentTypeError, ArgumentValueError: No network, or a step that is not later.
        """
        self._look(model, as_count(step, "step", at_least=self._next), self._tokenizer)

    @property
    def headline(self) -> str:
        """The network, how often it was measured, and its state at the last measurement."""
        return self.series.headline

    @property
    def findings(self) -> list[str]:
        """The state at the last measurement, what changed, and measurements without numbers."""
        return self.series.findings

    @property
    def status(self) -> str:
        """How the last look went: "measured", or why there are no numbers."""
        return self.series.status

    @property
    def changes(self) -> tuple[str, ...]:
        """The lines on layers that changed their state, so far."""
        return tuple(change.text for change in self.series.changes)

    @property
    def cost(self) -> float:
        """Share of the time since the first look that went into later ones; NaN before there are any."""
        return self._seconds / self._elapsed if self._elapsed else float("nan")

    @property
    def dataset(self) -> xr.Dataset:
        """Everything over ``step``, ``layer`` (0 … L) and further axes, by the names of `tokendynamics.trace`.

        Names that begin with ``final_norm_`` are of the state after the final norm, where the network has one.
        """
        return self.series.dataset

    @typed_arguments
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the dataset and the sentences into a folder; see `Series.save`.

        Args:
            folder: Made if it does not exist.
            overwrite: Replace files in the way that no monitor wrote.
        """
        self.series.save(folder, overwrite=overwrite)
        return Path(folder)

    @staticmethod
    @typed_arguments
    def open(folder: str | Path) -> Series:
        """Return what `save` wrote, with its dataset, changes, status and report; see `Series.open`.

        Args:
            folder: Where it was saved.
        """
        return Series.open(folder)

    @typed_arguments
    def report(self, path: str | Path, *, max_bytes: int | None = None) -> Path:
        """Write a page on what training did to the tokens; see `Series.report`.

        Args:
            path: The file to write; its folder is made if need be.
            max_bytes: Refuse to write a page larger than this; None for no limit.
        """
        return self.series.report(path, max_bytes=max_bytes)

    def state_dict(self) -> dict[str, Any]:
        """Return everything measured, and how many steps were counted, as plain values for a checkpoint."""
        return {"calls": self._calls, **plain(self.series.plain())}

    def load_state_dict(self, state: Any) -> None:
        """Go on where `state_dict` was asked for.

        Args:
            state: From `state_dict`.

        Raises:
            ArgumentValueError: Something else.
        """
        series = Series.of_plain(state)
        self._calls = as_count(state.get("calls"), "state['calls']", at_least=0)
        self.series = series

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure before the first step; go on with what a checkpoint has where a run is resumed."""
        if not state.is_world_process_zero:
            return
        kept = state.stateful_callbacks.get(self._key) if state.global_step else None
        self.series = Series()
        if kept is not None:
            self._guarded("the numbers in the checkpoint", lambda: setattr(self, "series", Series.of_plain(kept)))
        state.stateful_callbacks[self._key] = self.series.plain()
        if state.global_step == 0:
            self._watch(args, state, control, given)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure every `every` steps."""
        if state.global_step % self.every == 0:
            self._watch(args, state, control, given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure what came out, unless that is of another step."""
        if state.global_step >= self._next and not args.load_best_model_at_end:
            self._watch(args, state, control, given)

    def _watch(self, args: Any, state: Any, control: Any, given: Mapping[str, Any]) -> None:
        if not state.is_world_process_zero:
            return
        processor = given.get("processing_class")
        tokenizer = getattr(processor, "tokenizer", processor) if self._tokenizer is None else self._tokenizer

        def send(numbers: dict[str, float]) -> None:
            for logger in loggers():
                hand_over = partial(logger.on_log, args, state, control, logs=dict(numbers), **given)
                self._guarded(type(logger).__name__, hand_over)

        self._look(given["model"], state.global_step, tokenizer, send)

    @property
    def _next(self) -> int:
        """The first step that a look may be at."""
        return self.series.looks[-1].step + 1 if self.series.looks else 0

    @property
    def _key(self) -> str:
        """Name of this monitor's part of a checkpoint: numbers of other texts are not gone on with."""
        return f"tokendynamics.Monitor {hashlib.sha256(_written(self._prompts).encode()).hexdigest()[:12]}"

    def _look(self, model: nn.Module, step: int, tokenizer: Any, send: Send = lambda numbers: None) -> None:
        """Measure and take it in, unless another process does, or this model cannot be read."""
        if model is self._unreadable or not measures_here():
            return
        try:
            probe = self._probe_of(model, tokenizer)
        except Exception as error:  # whatever a user's model raises, its training continues
            self._unreadable = model
            self._take(Look(step, _not_measured(error)))
            return
        started = perf_counter()
        try:
            look = probe.look(step)
        except Exception as error:
            look = Look(step, _not_measured(error))
        self._take(look)
        if look.values:
            self._hand_over(dict(scalars(look.values)), step, send)
        self._count_time(started)

    def _probe_of(self, model: nn.Module, tokenizer: Any) -> Probe:
        whole = unwrapped(model)
        network = base_of(whole) if self._half is None else half_of(whole, self._half, type(whole).__name__)[1]
        if self._probe is not None and self._probe.network is network:
            return self._probe
        name = type(whole).__name__
        if spread := why_not_alone(model):
            raise CheckpointError(name, "a network that one process has whole", spread)
        probe = Probe(network, name, self._prompts, tokenizer, self._inputs)
        depth, former = probe.facts["layers"], self.series.facts.get("layers")
        if former not in (None, depth):
            raise ArgumentValueError("model", f"{former} layers, as before", depth)
        self.series.facts |= {**probe.facts, "every": self.every}
        self.series.texts[:] = probe.texts
        self._probe = probe
        return probe

    def _take(self, look: Look) -> None:
        """Take a look in, with its lines for the log."""
        former, first = self.series.status, not any(earlier.values for earlier in self.series.looks)
        if first and look.values and not has_intervals(look.values):
            _LOG.warning(
                "step %d: states and their changes need three different %ss: only numbers follow",
                look.step,
                self.series.noun,
            )
        for change in self.series.add(look):
            _LOG.warning("%s", change.text)
        if look.status not in (MEASURED, former):
            _LOG.warning("step %d: %s; training continues", look.step, look.status)

    def _hand_over(self, numbers: dict[str, float], step: int, send: Send) -> None:
        if (write := self._write) is not None:
            for name, value in numbers.items():
                self._guarded("the writer", partial(write, name, value, step))
        send(numbers)

    def _count_time(self, started: float) -> None:
        now = perf_counter()
        if self._first_ended is None:
            self._first_ended = now
            return
        self._seconds, self._elapsed = self._seconds + now - started, now - self._first_ended

    def _guarded(self, what: str, work: Callable[[], object]) -> None:
        """Do what may fail without harm; say once that it did."""
        try:
            work()
        except Exception as error:
            if what not in self._failed:
                self._failed.add(what)
                _LOG.warning("%s failed: %s; training continues", what, in_short(error))


def _not_measured(error: Exception) -> str:
    """Return the status of a look that an error ended: of an error of this library what it needs, as a clause."""
    reason = why(error, *_SUBJECTS) if isinstance(error, TokenDynamicsError) else in_short(error)
    return f"not measured: {' '.join(reason.split())}"


_SUBJECTS = ("spec", "model", "ids", "texts", "tokenizer")
"""Arguments of a monitor, or of `tokendynamics.load`, that a reason need not name."""


def _plain(value: Any) -> Any:
    with suppress(Exception):  # of a tensor without numbers, or of a class of somebody else
        return value.tolist() if hasattr(value, "tolist") else repr(value)
    return shown(value)


def _written(texts: Any) -> str:
    """Return texts, in any form, as one text that tells them from others."""
    return json.dumps(texts, default=_plain)


def scalars(values: Values) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a look by the names that loggers show, such as ``tokens/consensus_within/layer_03``.

    What is not defined is left out.

    Args:
        values: Of one look.
    """
    lines = {name: values[name] for name in _SENT}
    lines |= {f"update_ratio_{part}": values["update_ratio"][:, place] for place, part in enumerate(_PARTS)}
    for name, line in lines.items():
        digits = max(2, len(str(len(line) - 1)))
        for layer, value in enumerate(line.tolist()):
            if np.isfinite(value):
                yield f"tokens/{name}/layer_{layer:0{digits}}", value
    for name in DECIDING:
        value = float(values.get(f"{FINAL_NORM}{name}", np.nan))
        if np.isfinite(value):
            yield f"tokens/{name}/final_norm", value


def as_write(writer: Any) -> Write | None:
    """Return what takes name, value and step.

    Args:
        writer: A function of these three, a ``SummaryWriter`` of TensorBoard or what has its ``add_scalar``; or None.

    Raises:
        ArgumentTypeError: Anything else.
    """
    if writer is None:
        return None
    write = getattr(writer, "add_scalar", writer)
    if not callable(write):
        raise ArgumentTypeError("writer", "a SummaryWriter, or a function of name, value and step", shown(writer))
    return write
