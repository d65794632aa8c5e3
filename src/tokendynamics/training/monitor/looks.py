"""One look of a monitor: the pass of its texts, the measures, and the text that a checkpoint keeps of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from tokendynamics.diagnosis.tracing.measure import attention_bytes, conventions_of_trace, state_bytes
from tokendynamics.diagnosis.tracing.prompt_shares import share_variables
from tokendynamics.diagnosis.tracing.prompt_trace import (
    SINK_RATIO,
    PromptTrace,
    Sites,
    find_sinks,
    refuse_zero_states,
    sites_of,
    tokens_to_remove,
    update_ratios,
)
from tokendynamics.diagnosis.tracing.prompts import in_words, noun_of
from tokendynamics.diagnosis.tracing.variables import SHARES, SITES
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.resources import check_fits
from tokendynamics.observables.directions import lengths
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.edits.states import PackStates, collect_states
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.not_finite import check_none_hidden
from tokendynamics.pretrained.packs import Pack
from tokendynamics.results.tables import axes_of
from tokendynamics.training.monitor._network import WithoutInferenceMode, undisturbed

Values: TypeAlias = Mapping[str, np.ndarray]
"""The measures of one look, by name, over layers 0 … L."""

WITH_NORM = "the residual state after each block, and the state after the final norm"
"""Where states are read in a network that ends with a norm."""

BEFORE_NORM = "the residual state after each block, before the final norm"
"""The same where earlier versions measured: the state after the norm is unknown."""

DECIDING = ("share_common", "consensus_relative", "line_excess")
"""The measures that decide a state; of each there is the interval over texts, too."""

FINAL_NORM = "final_norm_"
"""What the names of measures of the state after the final norm begin with."""

MEASURED = "measured"
"""The status of a look that found everything."""


@dataclass(frozen=True)
class Look:
    """One measurement.

    Attributes:
        step: Of the training.
        status: `MEASURED`, or why there are no numbers.
        values: The measures by name (see `measured`); empty where there are none.
    """

    step: int
    status: str
    values: Values = field(default_factory=dict)

    def packed(self) -> str:
        """Return the look as one text, from which `unpacked` makes the same to the last bit.

        A checkpoint of transformers would give each number of a list a line of its own.
        """
        values = {name: array.tolist() for name, array in self.values.items()}
        return json.dumps({"step": self.step, "status": self.status, "values": values}, separators=(",", ":"))

    @classmethod
    def unpacked(cls, text: str) -> Look:
        """Return what `packed` returned.

        >>> Look.unpacked(Look(3, "measured", {"line_excess": np.array([0.1, np.nan])}).packed()).values["line_excess"]
        array([0.1, nan])
        """
        packed = json.loads(text)
        values = {name: np.array(numbers, dtype=np.float64) for name, numbers in packed["values"].items()}
        return cls(int(packed["step"]), str(packed["status"]), values)


DIMS = axes_of(
    f"layer: {' '.join(f'share_{name}' for name in SHARES)}",
    "layer: consensus_within consensus_relative centred_cos2 line_excess",
    "layer bound: share_common_interval consensus_relative_interval line_excess_interval",
    "layer component: update_ratio",
    "layer: attention_sink_mass attention_sink_uniform",
    f": {' '.join(f'{FINAL_NORM}{name}' for name in DECIDING)}",
    f"bound: {' '.join(f'{FINAL_NORM}{name}_interval' for name in DECIDING)}",
)
"""What is measured, and its axes; layers are 0 … L."""

_AFTER_BLOCK, _AFTER_NORM = SITES.index("feed_forward"), SITES.index("final_norm")


def not_finite_at(passes: Sequence[PackStates]) -> int | None:
    """Return the first layer after which a state is no finite number, 0 for the embedding; None where all are.

    Args:
        passes: Of one look.
    """
    layers = [
        layer
        for states in passes
        for layer, (attention, after) in enumerate(zip(states.attention, states.feed_forward, strict=True))
        # An attention that was not found is NaN, and so is every one at layer 0.
        if bool(attention.isinf().any()) or not bool(after.isfinite().all())
    ]
    return min(layers, default=None)


def measured(passes: Sequence[PackStates]) -> dict[str, Float64[np.ndarray, ...]]:
    """Return the measures of the tokens that count, after each layer 0 … L, by the names of `DIMS`.

    Each is what `tokendynamics.trace` says at the site "feed_forward" (or "final_norm", after the last layer), massive
    tokens left out; of what it says of each prompt, the median over prompts (``update_ratio``) or their mean
    (``attention_sink_mass``, and beside it in ``attention_sink_uniform`` what that token would receive if all were
    attended alike). NaN where it is not defined.

    Args:
        passes: Of all prompts, each in one of them.

    Raises:
        ArgumentValueError: A token of length zero.
    """
    rows = [row for states in passes for row in _rows(states)]
    measures = {name: values for name, (dims, values) in share_variables(rows).items() if "site" in dims}
    at_sites = {name: values for name, values in measures.items() if name != "kappa_of_prompt"}
    shares = {f"share_{name}": at_sites["shares"][..., place] for place, name in enumerate(SHARES)}
    shares["share_common_interval"] = at_sites["shares_interval"][..., SHARES.index("common"), :]
    at_sites |= shares
    after = {name: values[:, _AFTER_BLOCK] for name, values in at_sites.items()}
    after |= {f"{FINAL_NORM}{name}": values[-1, _AFTER_NORM] for name, values in at_sites.items()}
    ratios = torch.from_numpy(np.stack([row.update_ratio for row in rows]))
    median = torch.nanquantile(ratios, 0.5, dim=0)  # over prompts, between the middle two of an even number
    values = after | _sinks(rows) | {"update_ratio": median.numpy()}
    return {name: values[name] for name in DIMS}


def _rows(states: PackStates) -> Iterator[PromptTrace]:
    """Yield what each prompt of a pass leaves, as far as shares, updates and sinks need it."""
    attention, after = (part.detach().cpu() for part in (states.attention, states.feed_forward))
    final, depth = states.final_norm, len(after)
    normed = [] if final is None else [final.detach().cpu()]
    layers, kinds = [*range(depth), *[depth - 1] * len(normed)], [_AFTER_BLOCK] * depth + [_AFTER_NORM] * len(normed)
    places = Sites(layers, kinds)
    for number, length in enumerate(states.lengths):
        x, y = after[:, number, :length], attention[1:, number, :length]
        parts = (x, *(part[None, number, :length] for part in normed))
        exact = torch.cat([part.double() for part in parts])
        sizes = lengths(exact)
        refuse_zero_states((sizes == 0)[:, None], places, states.places[number : number + 1])
        counted = ~tokens_to_remove(find_sinks(sizes[:depth], SINK_RATIO))
        all_counted = counted[places.layers]  # the final norm reads the tokens of the last layer
        count = all_counted.sum(dim=-1)
        sums = ((all_counted / sizes).unsqueeze(-2) @ exact).squeeze(-2)
        pairs = torch.where(count > 1, count * (count - 1), torch.nan)
        within = ((sums.square().sum(dim=-1) - count) / pairs)[:, None].expand(-1, 2)
        both = torch.cat([lengths(y.double()), sizes[:depth]])
        yield PromptTrace(
            observables={"mean_pair_cosine": places.grid(within)},
            per_layer={},
            component_change=np.empty(0),
            token_count=torch.stack([torch.full_like(count, length), count], dim=-1)[:depth].numpy(),
            tokens=[],
            unit_sums=places.grid(sums),
            update_ratio=update_ratios(y, x, both, counted, sites_of(depth, with_final_norm=False)),
            states=parts,
            sizes=sizes,
            cosines=None,
            counted=all_counted,
            places=places,
            received=None if states.received is None else states.received[:, :, number, :length],
        )


def _sinks(rows: Sequence[PromptTrace]) -> dict[str, np.ndarray]:
    """Return the weight that the most attended token of a prompt receives, and its share of uniform attention."""
    received_most = torch.full((len(rows), 2, len(rows[0].token_count)), torch.nan, dtype=torch.float64)
    for place, row in enumerate(rows):
        if row.received is not None:
            received, uniform = row.received.double()
            most = received.nan_to_num(nan=-torch.inf).argmax(dim=-1, keepdim=True)
            received_most[place, :, 1:] = torch.stack([received.gather(-1, most), uniform.gather(-1, most)]).squeeze(-1)
    mean = received_most.nanmean(dim=0)
    return {"attention_sink_mass": mean[0].numpy(), "attention_sink_uniform": mean[1].numpy()}


_KEPT = ("prompt_noun", "tokenization", "sinks", "intervals")


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
            raise ArgumentValueError("tokenizer", "a tokenizer that turns texts into token ids", "none", advice)
        self.network = network
        with undisturbed(network):
            self._ckpt = load(network, tokenizer, inputs=inputs)
            given, cut = [], 0
            for called, item in texts.items():
                try:
                    given.append(prepared(self._ckpt, item, argument=called).inputs)
                except ArgumentValueError:  # longer than what the network reads
                    given.append(prepared(self._ckpt, item, truncate=True, argument=called).inputs)
                    cut += 1
            _check_texts(self._ckpt, given, noun_of(texts))
            self._packs = self._ckpt.packs(given)
        self.texts = [[called, in_words(item)] for called, item in texts.items()]
        self.facts = _facts(self._ckpt, name, texts, cut)

    def look(self, step: int) -> Look:
        """Run the texts through the network as it is now, and measure.

        Args:
            step: Of the training.

        Raises:
            TokenDynamicsError: A token of length zero, or a mask that hides tokens elsewhere than behind a text.
        """
        with undisturbed(self.network):
            passes = [self._states(pack) for pack in self._packs]
        layer = not_finite_at(passes)
        if layer is not None:
            return Look(step, f"not finite at {f'layer {layer}' if layer else 'the embedding'}")
        if not all(states.final_norm is None or bool(states.final_norm.isfinite().all()) for states in passes):
            return Look(step, "not finite after the final norm")
        return Look(step, MEASURED, measured(passes))

    def _states(self, pack: Pack) -> PackStates:
        states = collect_states(self.network, self._ckpt.layout, pack, WithoutInferenceMode(self.network))
        check_none_hidden(states)
        return states


def _check_texts(ckpt: Checkpoint, given: Sequence[Mapping[str, Any]], noun: str) -> None:
    """Refuse texts that are one text to the network, and states that do not fit: those of all are there at once."""
    first, *others = given

    def same(one: Any, other: Any) -> bool:
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)

    if all(
        prompt.keys() == first.keys() and all(same(prompt[name], first[name]) for name in prompt) for prompt in others
    ):
        came = f"{len(given)} that begin alike, as far as the network reads them"
        raise ArgumentValueError("texts", f"at least two different {noun}s", came)
    lengths = [prompt["input_ids"].shape[-1] if "input_ids" in prompt else 0 for prompt in given]
    states = sum(state_bytes(ckpt, length) for length in lengths)
    check_fits(states + attention_bytes(ckpt, max(lengths)), "texts", f"use fewer or shorter {noun}s")


def _facts(ckpt: Checkpoint, name: str, texts: Mapping[str, Any], cut: int) -> dict[str, Any]:
    """Return what the numbers depend on, as attributes of a dataset."""
    conventions, facts = conventions_of_trace(ckpt, dict(texts), "detect", SINK_RATIO), ckpt.architecture
    context = (
        f"{cut} of {len(texts)} {'is' if cut == 1 else 'are'} longer than the {facts.context} tokens that the network "
        f"reads, and {'was' if cut == 1 else 'were'} cut"
    )
    dtype = str(ckpt.dtype).removeprefix("torch.")
    return {
        "model": name,
        "layers": facts.layers,
        "heads": facts.heads,
        "dim": facts.dim,
        "parameters": facts.parameters,
        **{kept: conventions[kept] for kept in _KEPT},
        "sites": WITH_NORM if facts.has_final_norm else "the residual state after each block",
        "precision": f"forward pass in {dtype}, without autocast and dropout; measures in float64",
        "lengths": context if cut else f"every {conventions['prompt_noun']} is whole",
    }
