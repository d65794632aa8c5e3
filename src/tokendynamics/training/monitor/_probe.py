"""What looks at a network: its layout and the texts, found once, and one pass of the texts at every look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.diagnosis.tracing.measure import attention_bytes, conventions_of_trace, state_bytes
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import in_words
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.discovery.interface import showing
from tokendynamics.pretrained.edits.states import PackStates, StateWatch
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.network import without_cache
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.packs import Pack
from tokendynamics.training.monitor._measures import measured, not_finite_at
from tokendynamics.training.monitor._network import WithoutInferenceMode, undisturbed
from tokendynamics.training.monitor.looks import MEASURED, Look

_KEPT = ("tokenization", "sinks", "intervals")


class Probe:
    """A network with the texts that run through it.

    Its weights may change between two looks, its modules not.

    Args:
        network: From `base_of`.
        name: What to call it.
        texts: By name.
        tokenizer: Turns them into token ids; None for texts that are ids already.
        inputs: See `tokendynamics.load`.

    Raises:
        TokenDynamicsError: The network, or a text, cannot be read, or all states are more than the memory.
    """

    def __init__(self, network: nn.Module, name: str, texts: Mapping[str, Any], tokenizer: Any, inputs: Any) -> None:
        if tokenizer is None and any(isinstance(item, str) for item in texts.values()):
            advice = "pass tokenizer=, or token ids as texts"
            raise ArgumentValueError(expected("tokenizer", "one that turns texts into token ids", "none", advice))
        self.network = network
        with undisturbed(network):
            self._ckpt = load(network, tokenizer, inputs=inputs)
            given = [_within_context(self._ckpt, item, called) for called, item in texts.items()]
            _check(self._ckpt, [arguments for arguments, _ in given])
            self._packs = self._ckpt.packs([arguments for arguments, _ in given])
        self.texts = [[called, in_words(item)] for called, item in texts.items()]
        self.facts = _facts(self._ckpt, name, texts, sum(cut for _, cut in given))

    def look(self, step: int) -> Look:
        """Run the texts through the network as it is now, and measure.

        Args:
            step: Of the training.

        Raises:
            TokenDynamicsError: A token of length zero.
        """
        with undisturbed(self.network):
            passes = [self._states(pack) for pack in self._packs]
        layer = not_finite_at(passes)
        if layer is not None:
            return Look(step, f"not finite at {f'layer {layer}' if layer else 'the embedding'}")
        return Look(step, MEASURED, measured(passes))

    def _states(self, pack: Pack) -> PackStates:
        layout = self._ckpt.layout
        with StateWatch(self.network, layout) as watch, silenced(), without_cache(self.network), showing(self.network):
            return watch.run(WithoutInferenceMode(self.network), pack)


def _within_context(ckpt: Checkpoint, item: Any, argument: str) -> tuple[dict[str, Any], bool]:
    """Return a text as arguments of the forward pass, and whether it was cut to what the network reads."""
    try:
        arguments, cut = prepared(ckpt, item, argument=argument).inputs, False
    except ArgumentValueError:
        arguments, cut = prepared(ckpt, item, truncate=True, argument=argument).inputs, True
    return arguments, cut


def _check(ckpt: Checkpoint, given: Sequence[Mapping[str, Any]]) -> None:
    """Refuse texts that are one text to the network, and states that do not fit: those of all are there at once."""
    first, *others = given
    if all(each.keys() == first.keys() and all(_equal(each[name], first[name]) for name in each) for each in others):
        came = f"{len(given)} that begin alike, as far as the network reads them"
        raise ArgumentValueError(expected("texts", "at least two different texts", came))
    lengths = [each["input_ids"].shape[-1] if "input_ids" in each else 0 for each in given]
    states = sum(state_bytes(ckpt, length) for length in lengths)
    check_fits(states + attention_bytes(ckpt, max(lengths)), "texts", "use fewer or shorter texts")


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def _facts(ckpt: Checkpoint, name: str, texts: Mapping[str, Any], cut: int) -> dict[str, Any]:
    """Return what the numbers depend on, as attributes of a dataset."""
    conventions, facts = conventions_of_trace(ckpt, dict(texts), "detect", SINK_RATIO), ckpt.architecture
    context = f"{cut} of {len(texts)} are longer than the {facts.context} tokens that the network reads, and were cut"
    dtype = str(ckpt.dtype).removeprefix("torch.")
    return {
        "model": name,
        "layers": facts.layers,
        "heads": facts.heads,
        "dim": facts.dim,
        "parameters": facts.parameters,
        **{kept: conventions[kept] for kept in _KEPT},
        "sites": "the residual state after each block, before a final norm",
        "precision": f"forward pass in {dtype}, without autocast and dropout; measures in float64",
        "lengths": context if cut else "every text is whole",
    }
