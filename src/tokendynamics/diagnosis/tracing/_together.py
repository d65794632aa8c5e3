"""Several networks on the same prompts, pass by pass: one set of tokens that count, and how far their states part."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.network import sizes_differ
from tokendynamics.diagnosis.tracing.measure import conventions_of_trace, inputs_of, passes_in_words, trace_dataset
from tokendynamics.diagnosis.tracing.prompt_shares import Estimates
from tokendynamics.diagnosis.tracing.prompt_trace import PromptTrace, find_sinks, measure_pack, tokens_left_out
from tokendynamics.diagnosis.tracing.prompts import NamedPrompts, token_conditions
from tokendynamics.diagnosis.tracing.variables import COMPONENTS
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.resources import check_fits
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.repeated_stack import states_on_inputs_of
from tokendynamics.pretrained.edits.states import PackStates, SiteStates
from tokendynamics.pretrained.forward_arguments import Prepared
from tokendynamics.pretrained.length_dependence import length_class
from tokendynamics.pretrained.network import evaluating
from tokendynamics.pretrained.not_finite import check_states
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import Progress

GAPS = ("input_difference", "update_difference", "update_size", "size_ratio", "state_difference")
"""Of each part, over the tokens of a prompt: ‖x_b − x_a‖/‖x_a‖ of the states that it reads, ‖Δ_b − Δ_a‖/‖Δ_a‖ of what
it adds, ‖Δ_a‖/‖x_a‖, ‖Δ_b‖/‖Δ_a‖, and ‖y_b − y_a‖/‖y_a‖ of the states after it. The embedding stands as what the
feed-forward part of layer 0 adds to nothing, and the final norm, which adds nothing, by the states that it gives."""

OWN_DIFFERENCE = "own_difference"
"""The further gap from `own_differences`: of what the part makes of the first network's states."""


@dataclass
class Together:
    """What the networks leave.

    Attributes:
        traces: Of each, as `tokendynamics.trace` returns it.
        estimates: Of each: its numbers over all prompts, and without each prompt.
        gaps: Of each but the first, against the first: `GAPS` over (prompt, layer, component), to the depth that both
            have, and ``own_difference``, see `own_differences`, NaN where the blocks of one do not run on the states of
            the other; None where `unpaired` says why.
        unpaired: Likewise: why the states have no pairs; empty where they do.
        tokens_shared: Whether every prompt is the same tokens in all.
        counts_shared: Whether all that read the same tokens have as many states for them.
        given: The prompts as each network reads them.
        losses: Of each: the loss of every prompt; None where it gave no logits, and where no losses were asked for.
    """

    traces: list[xr.Dataset] = field(default_factory=list)
    estimates: list[Estimates] = field(default_factory=list)
    gaps: list[xr.Dataset | None] = field(default_factory=list)
    unpaired: list[str] = field(default_factory=list)
    tokens_shared: bool = True
    counts_shared: bool = True
    given: list[list[Prepared]] = field(default_factory=list)
    losses: list[Float64[Tensor, " prompt"] | None] = field(default_factory=list)


LossesOf: TypeAlias = Callable[
    [Float[Tensor, "prompt token vocabulary"] | None, Pack, Sequence[int]], Float64[Tensor, " prompt"] | None
]
"""The losses of the prompts of a pass from its logits and their lengths; None where it gave no logits."""


def run_together(
    ckpts: Sequence[Checkpoint],
    several: Sequence[NamedPrompts],
    sinks: str | Sequence[int],
    ratio: float,
    truncate: bool,
    report: Progress,
    losses_of: LossesOf | None = None,
) -> Together:
    """Run the prompts through all networks, each pass through one after the other.

    A token that one of them leaves out is left out in all; where tokens differ, each has its own.

    Args:
        ckpts: The first is the one that the others are compared with.
        several: The prompts for each network, which differ only in their tokens.
        sinks: See `tokendynamics.trace`, also for the next two.
        ratio: Likewise.
        truncate: Likewise.
        report: Called after each prompt.
        losses_of: Called with every pass, whose logits are then known; None for no losses.

    Raises:
        ArgumentTypeError, ArgumentValueError: See `tokendynamics.trace`.
        MemoryLimitError: The states of all prompts in all networks are larger than the memory.
    """
    prompts, given = several[0], [inputs_of(*pair, truncate, report) for pair in zip(ckpts, several, strict=True)]
    _check_given(ckpts, prompts, given)
    together = Together(tokens_shared=_same_tokens(given), given=given)
    widths = [sizes_differ(other, ckpts[0], "widths") for other in ckpts[1:]]
    together.unpaired = widths if together.tokens_shared else [_why_apart(given[0], rest) for rest in given[1:]]
    rows: list[dict[int, PromptTrace]] = [{} for _ in ckpts]
    losses: list[dict[int, Tensor]] = [{} for _ in ckpts]
    gaps: list[dict[int, np.ndarray]] = [{} for _ in ckpts[1:]]
    report(0, len(prompts), _WORK)
    for group, pack in _passes(ckpts, given, together.tokens_shared, logits=losses_of is not None):
        for model, states in group.items():
            check_states(ckpts[model], states)
            values = None if losses_of is None else losses_of(states.logits, pack, states.lengths)
            if values is not None:
                losses[model] |= dict(zip(states.places, values, strict=True))
        _part_unequal(together, group)
        removed = _left_out_together(list(group.values()), sinks, ratio)
        for number, (model, states) in enumerate(group.items()):
            rows[model] |= _measured(states, given[model], (sinks, ratio), removed[number])
        for other, states in group.items():
            if other > 0 and not together.unpaired[other - 1]:
                lent = states_on_inputs_of(ckpts[0], ckpts[other], pack)
                for number, place in enumerate(states.places):
                    both = group[0].of(number), states.of(number)
                    gaps[other - 1][place] = _all_gaps(both, lent, number, ~removed[other][number])
        report(min(len(traces) for traces in rows), len(prompts), _WORK)
    _add_traces(together, ckpts, several, rows, (sinks, ratio))
    unknown, places = torch.tensor(torch.nan, dtype=torch.float64), range(len(prompts))
    together.losses = [torch.stack([of.get(place, unknown) for place in places]) if of else None for of in losses]
    together.gaps = [
        None if why or not gap else _as_gaps(gap, [*prompts]) for gap, why in zip(gaps, together.unpaired, strict=True)
    ]
    return together


def _measured(
    states: PackStates,
    given: Sequence[Prepared],
    counting: tuple[str | Sequence[int], float],
    removed: Sequence[Bool[Tensor, "_ _"]],
) -> dict[int, PromptTrace]:
    """Return the trace of every prompt of a pass by its place."""
    lengths = zip(states.places, states.lengths, strict=True)
    tokens = [given[place].labels(length) for place, length in lengths]
    return dict(zip(states.places, measure_pack(states, tokens, *counting, {}, removed), strict=True))


def _add_traces(
    together: Together,
    ckpts: Sequence[Checkpoint],
    several: Sequence[NamedPrompts],
    rows: Sequence[dict[int, PromptTrace]],
    counting: tuple[str | Sequence[int], float],
) -> None:
    """Add the trace of every network, and its numbers over all prompts and without each."""
    for ckpt, traces, inputs, named in zip(ckpts, rows, together.given, several, strict=True):
        estimates: Estimates = {}
        attrs = conventions_of_trace(ckpt, named, *counting) | {"passes": passes_in_words(ckpt, True)}
        attrs |= token_conditions(ckpt.tokenizer, inputs)
        together.traces.append(trace_dataset([traces[place] for place in range(len(traces))], named, attrs, estimates))
        together.estimates.append(estimates)


_WORK = "following the tokens"


def _all_gaps(
    both: tuple[SiteStates, SiteStates],
    lent: tuple[Tensor, Tensor] | None,
    number: int,
    counted: Bool[Tensor, "layer token"],
) -> np.ndarray:
    """Return `GAPS` and the differences on the same inputs of one prompt, its number in a pass, (layer, part, gap)."""
    gaps = gaps_between(*both, counted)
    on_same_inputs = np.full(gaps.shape[:2], np.nan)
    if lent is not None:
        length = both[0].feed_forward.shape[1]
        attention, feed_forward = (states[:, number, :length] for states in lent)
        on_same_inputs = own_differences(both[0], attention, feed_forward, counted)
    return np.concatenate([gaps, on_same_inputs[..., None]], axis=-1)


def _check_given(ckpts: Sequence[Checkpoint], prompts: NamedPrompts, given: Sequence[Sequence[Prepared]]) -> None:
    """Refuse windows that hold different parts of the texts, and states that do not fit.

    Those of all prompts stay until the directions that prompts share are known.
    """
    window = None if prompts.options is None else prompts.options.window
    if window is not None and not _same_tokens(given):
        advice = "pass whole texts: windows of their tokens hold different parts of a text"
        raise ArgumentValueError("window", "None for models of different tokenizers", window, advice)
    needed = 0
    for ckpt, inputs in zip(ckpts, given, strict=True):
        facts = ckpt.architecture
        tokens = sum(len(prompt.tokens or ()) for prompt in inputs)
        needed += (2 * facts.layers + 1) * tokens * facts.dim * ckpt.dtype.itemsize
    check_fits(needed, "models", "use fewer or shorter prompts, or fewer models")


def _why_apart(first: Sequence[Prepared], other: Sequence[Prepared]) -> str:
    """Say why two networks are not given the same inputs: they read other tokens, or under other names."""
    for one, two in zip(first, other, strict=False):
        if one.inputs.keys() != two.inputs.keys():
            named = " and ".join(", ".join(prompt.inputs) for prompt in (one, two))
            return f"their arguments have different names ({named})"
    return "their tokens differ"


def _same_tokens(given: Sequence[Sequence[Prepared]]) -> bool:
    """Tell whether every network is given the same inputs, number by number."""
    return all(len(rest) == len(given[0]) for rest in given) and all(
        _same_inputs(one.inputs, other.inputs) for rest in given[1:] for one, other in zip(given[0], rest, strict=True)
    )


def _same_inputs(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two inputs are equal; that of an only argument counts whatever the network calls it."""
    if one.keys() != other.keys():
        several = [*one.values(), *other.values()]
        return (
            len(one) == len(other) == 1
            and all(isinstance(value, Tensor) for value in several)
            and torch.equal(*several)
        )
    return all(torch.equal(value, other[name]) for name, value in one.items())


def _passes(
    ckpts: Sequence[Checkpoint], given: Sequence[Sequence[Prepared]], together: bool, logits: bool
) -> Iterator[tuple[dict[int, PackStates], Pack]]:
    """Yield the states of each pass by the number of the network, and its inputs; of one where tokens differ."""
    inputs = [[prompt.inputs for prompt in network_prompts] for network_prompts in given]
    if not together:
        for number, ckpt in enumerate(ckpts):
            several = ckpt.states_in_packs(inputs[number], logits=logits)
            for states, pack in zip(several, ckpt.packs(inputs[number]), strict=True):
                yield {number: states}, pack
        return
    # Company changes states by rounding: prompts share passes in all networks alike, or in none.
    deciding: set[Hashable] = set()
    for ckpt, network_inputs in zip(ckpts, inputs, strict=True):
        tokens = [arguments["input_ids"].shape[-1] if "input_ids" in arguments else 0 for arguments in network_inputs]
        classes = tuple(length_class(ckpt.config, count) for count in tokens)
        deciding.add((ckpt.packing, ckpt.device.type, ckpt.streamed, classes))
    packed = len(deciding) == 1
    with ExitStack() as stack:
        for ckpt in ckpts:
            if not ckpt.streamed:
                stack.enter_context(evaluating(ckpt.model))
        several = [
            ckpt.states_in_packs(network_inputs, packed=packed, logits=logits)
            for ckpt, network_inputs in zip(ckpts, inputs, strict=True)
        ]
        for *group, pack in zip(*several, ckpts[0].packs(inputs[0], packed=packed), strict=True):
            yield dict(enumerate(group)), pack


def _part_unequal(together: Together, group: Mapping[int, PackStates]) -> None:
    """Say that states have no pairs where a network adds other tokens to an input (class, registers) than the first."""
    for other, states in group.items():
        if 0 in group and states.lengths != group[0].lengths:
            counts = f"{group[0].lengths[0]} and {states.lengths[0]}"
            together.unpaired[other - 1] = f"they have different numbers of tokens for the same input ({counts})"
            together.counts_shared = False


def _left_out_together(
    group: Sequence[PackStates], sinks: str | Sequence[int], ratio: float
) -> list[list[Bool[Tensor, "_ _"]]]:
    """Return the tokens of each prompt that are left out, for each network: what any of them leaves out, all do.

    Networks of different depth leave a token out where one does at the nearest relative depth. Those that have other
    numbers of tokens for the same input have none in common.
    """
    chosen = []
    for states in group:
        sizes = torch.linalg.vector_norm(states.feed_forward, dim=-1, dtype=torch.float64).cpu()
        prompt_norms = [sizes[:, number, :length] for number, length in enumerate(states.lengths)]
        chosen.append([tokens_left_out(find_sinks(token_norms, ratio), sinks) for token_norms in prompt_norms])
    depths = [len(states.feed_forward) - 1 for states in group]
    lengths = [states.lengths for states in group]

    def together(model: int, prompt: int) -> Bool[Tensor, "_ _"]:
        alike = [other for other, counts in enumerate(lengths) if counts == lengths[model]]
        chosen_there = [chosen[other][prompt][nearest_layers(depths[model], depths[other])] for other in alike]
        return torch.stack(chosen_there).any(0)

    return [[together(model, prompt) for prompt in range(len(lengths[model]))] for model in range(len(group))]


def nearest_layers(depth: int, other: int) -> list[int]:
    """Return, for layer 0 … `depth`, the layer at the nearest relative depth of a network of `other` layers.

    >>> nearest_layers(2, 4), nearest_layers(4, 2), nearest_layers(3, 3)
    ([0, 2, 4], [0, 1, 1, 2, 2], [0, 1, 2, 3])
    """
    return [int(layer * other / depth + 0.5) for layer in range(depth + 1)]


def gaps_between(a: SiteStates, b: SiteStates, counted: Bool[Tensor, "layer token"]) -> np.ndarray:
    """Measure how far two networks' states of one prompt differ, before and in what each part adds.

    Args:
        a: Of the first network.
        b: Of the other one, of the same width.
        counted: The tokens that count at each layer of the other one.

    Returns:
        Shape (layer, component, gap), the gaps in the order of `GAPS`, to the depth that both have; NaN for what is
        no part. Where the state after attention is not known, the feed-forward part stands for the whole block.
    """
    depth = min(len(a.feed_forward), len(b.feed_forward))
    gaps = np.full((depth, len(COMPONENTS), len(GAPS)), np.nan)
    (xa, ya), (xb, yb) = ((states.feed_forward[:depth].cpu(), states.attention[:depth].cpu()) for states in (a, b))
    gaps[0, 1] = _gap((torch.zeros_like(xa[0]), torch.zeros_like(xb[0])), (xa[0], xb[0]), counted[0])
    for layer in range(1, depth):
        before, middle, after = (xa[layer - 1], xb[layer - 1]), (ya[layer], yb[layer]), (xa[layer], xb[layer])
        if not any(bool(state.isnan().any()) for state in middle):
            gaps[layer, 0] = _gap(before, middle, counted[layer])
            before = middle
        gaps[layer, 1] = _gap(before, after, counted[layer])
    last = (a.final_norm, b.final_norm)
    if len(a.feed_forward) == len(b.feed_forward) and last[0] is not None and last[1] is not None:
        normed = last[0].cpu(), last[1].cpu()
        gaps[-1, 2] = _gap((torch.zeros_like(xa[-1]), torch.zeros_like(xb[-1])), normed, counted[-1])
        gaps[-1, 2, 0] = _gap((xa[-1], xb[-1]), normed, counted[-1])[0]
    return gaps


def _gap(
    before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], counted: Bool[Tensor, " token"]
) -> tuple[float, ...]:
    """Return the gaps of one part, given the states of both networks before it and after it."""
    (xa, xb), (ya, yb) = ([states[counted].double() for states in pair] for pair in (before, after))
    if not len(xa):
        return (np.nan,) * len(GAPS)
    da, db = ya - xa, yb - xb
    sizes = [float(torch.linalg.vector_norm(vector)) for vector in (xb - xa, xa, db - da, da, db, yb - ya, ya)]
    came, state, gap, update, other, left, after_it = sizes
    # A difference from an update of zero is compared with the rounding of the stream, so that it is finite.
    least = max(update, state * torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny)
    relative = came / state if state else 0.0
    times = np.inf if other and not update else other / least
    return relative, gap / least, update / state if state else np.inf, times, left / after_it


def _as_gaps(by_prompt: Mapping[int, np.ndarray], prompts: list[str]) -> xr.Dataset:
    values = np.stack([by_prompt[place] for place in range(len(prompts))])
    dims = ("prompt", "layer", "component")
    coords = {"prompt": prompts, "layer": np.arange(values.shape[1]), "component": list(COMPONENTS)}
    names = (*GAPS, OWN_DIFFERENCE)
    return xr.Dataset({name: (dims, values[..., place]) for place, name in enumerate(names)}, coords=coords)


def own_differences(
    first: SiteStates,
    attention: Float[Tensor, "layer token dim"],
    feed_forward: Float[Tensor, "layer token dim"],
    counted: Bool[Tensor, "depth token"],
) -> np.ndarray:
    """Measure what each part of another network makes of the first one's states, against what the first one's makes.

    Args:
        first: States of the first network.
        attention: After the attention of each block of the other one, given the first one's input of that block; index
            0 for block 1. NaN where that state is not known.
        feed_forward: After the block, likewise.
        counted: The tokens that count at layers 0 … L.

    Returns:
        Shape (layer, component), layers 0 … L: ‖Δ_b − Δ_a‖/‖Δ_a‖, NaN where there is no such part. The feed-forward
        part of a block whose attention differs reads another state for that alone.
    """
    differences = np.full((len(first.feed_forward), len(COMPONENTS)), np.nan)
    for layer in range(1, len(differences)):
        use = counted[layer]
        if not bool(use.any()):
            continue
        before, middle, after = (
            states[use].double().cpu()
            for states in (first.feed_forward[layer - 1], first.attention[layer], first.feed_forward[layer])
        )
        own_middle, own_after = (states[layer - 1][use].double().cpu() for states in (attention, feed_forward))
        if bool(middle.isnan().any()) or bool(own_middle.isnan().any()):
            differences[layer, 1] = _relative(own_after - after, after - before, before)
            continue
        differences[layer, 0] = _relative(own_middle - middle, middle - before, before)
        differences[layer, 1] = _relative((own_after - own_middle) - (after - middle), after - middle, middle)
    return differences


def _relative(gap: Tensor, update: Tensor, state: Tensor) -> float:
    """Return ‖gap‖/‖update‖; what adds nothing is compared with the rounding of what it is added to."""
    size, scale, reach = (float(torch.linalg.vector_norm(vector)) for vector in (gap, update, state))
    return size / max(scale, reach * torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny)
