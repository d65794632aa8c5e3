"""Finds what reads the outputs of an attention's heads side by side, and what gates or normalizes them before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from tokendynamics.pretrained._raw_projections import RawProjection
from tokendynamics.pretrained.discovery._calls import ModuleCall
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError, Storage, matched_columns, stored_how
from tokendynamics.pretrained.discovery._maps import HEAD_FACTORS, HeadFactor, Norm
from tokendynamics.pretrained.discovery._recomputed import TRUSTED, relative_error
from tokendynamics.pretrained.discovery.attention_call import AttentionCall, as_features


class OutputProjection(NamedTuple):
    """What reads the heads' outputs side by side, how it is stored, and what acts on them before."""

    call: ModuleCall
    storage: Storage
    gate: ModuleCall | None
    norm: tuple[ModuleCall, Norm] | None
    factor: HeadFactor | None = None


def output_projection(
    attention: AttentionCall, time: int, block: ModuleCall, calls: Sequence[ModuleCall]
) -> OutputProjection | None:
    """Return what reads the heads' outputs side by side, or what a gate or a norm makes of them; None for nothing.

    Args:
        attention: What ran.
        time: When.
        block: The call of its block.
        calls: Of the whole pass.
    """
    wanted = attention.output.flatten(2)
    batch, tokens = wanted.shape[:2]
    for call in sorted(calls, key=lambda candidate: -candidate.end):
        x = as_features(call.x, batch, tokens) if time < call.start and call.end <= block.end else None
        if x is None or call.x is None or x.shape != wanted.shape or call.x.shape[-1] != wanted.shape[-1]:
            continue  # also what maps the outputs of each head by itself
        # From the last on: what gives a gate may read the heads' outputs as well.
        plain = relative_error(x, wanted) < TRUSTED
        before = [other for other in calls if block.start < other.start and other.end < call.start]
        norm = None if plain else _norm_between(x, wanted, [other for other in before if time < other.start])
        gate = None if plain or norm is not None else _gate(x, wanted, before)
        scaled = None if plain or norm is not None or gate is not None else _factors_between(x, wanted)
        if plain or norm is not None or gate is not None or scaled is not None:
            storage = stored_how(call)
            if storage is not None:
                beside = [other for other in calls if gate is None or other.name != gate.name]
                _check_reads_alone(call, wanted, time, block, beside)
                if isinstance(call.module, RawProjection):
                    _check_runs_once(call, block, calls)
                factor = None if scaled is None else _factor_of(scaled, attention, block, call.name_in(block.name))
                return OutputProjection(call, storage, gate, norm, factor)
    return _heads_themselves(wanted, time, block, calls)


def _heads_themselves(
    wanted: Tensor, time: int, block: ModuleCall, calls: Sequence[ModuleCall]
) -> OutputProjection | None:
    """Return the last module that gives the heads' outputs side by side, of the width of a state, with nothing behind.

    Without any projection, they are what an attention gives.
    """
    for call in sorted(calls, key=lambda candidate: -candidate.end):
        inside = call.is_inside(block) and call.end > time and wanted.shape[-1] == block.y.shape[-1]
        y = as_features(call.y, *wanted.shape[:2]) if inside else None
        if y is not None and relative_error(y, wanted) < TRUSTED:
            return OutputProjection(call, "heads", None, None)
    return None


def _check_reads_alone(
    projection: ModuleCall, outputs: Tensor, time: int, block: ModuleCall, calls: Sequence[ModuleCall]
) -> None:
    """Refuse heads whose outputs two maps read, one beside the other."""
    for call in calls:
        apart = time < call.start and (call.end < projection.start or projection.end < call.start)
        if not apart or call.end > block.end or call.name == projection.name:
            continue
        x = as_features(call.x, *outputs.shape[:2])
        reads = x is not None and x.shape == outputs.shape and relative_error(x, outputs) < TRUSTED
        if reads and not torch.equal(call.y.flatten(), outputs.flatten()) and stored_how(call) is not None:
            names = " and ".join(one.name_in(block.name) for one in (call, projection))
            raise LayoutNotFoundError(f"two modules read the heads' outputs side by side ({names})")


def _check_runs_once(projection: ModuleCall, block: ModuleCall, calls: Sequence[ModuleCall]) -> None:
    """Refuse a parameter that projects something else besides the heads' outputs in the same way: gates act on both."""
    ran = sum(call.module is projection.module and call.is_inside(block) for call in calls)
    if ran > 1:
        name = projection.name_in(block.name)
        raise LayoutNotFoundError(f"its parameter {name} projects {ran} tensors, one of which is the heads' outputs")


def _norm_between(x: Tensor, outputs: Tensor, calls: Sequence[ModuleCall]) -> tuple[ModuleCall, Norm] | None:
    """Return the norm that makes x of the heads' outputs; None without one."""
    for call in calls:
        given, made = (as_features(states, *outputs.shape[:2]) for states in (call.x, call.y))
        if given is None or made is None:
            continue
        if relative_error(given, outputs) < TRUSTED and relative_error(made, x) < TRUSTED:
            norm = call.norm
            if norm is not None:
                return call, norm
    return None


def _factors_between(x: Tensor, outputs: Tensor) -> Tensor | None:
    """Return the factor, the same for all tokens, by which each feature of the heads' outputs becomes one of x."""
    sizes, spread = outputs.square().sum(dim=(0, 1)), outputs.var(dim=(0, 1))
    if not bool((spread > TRUSTED * sizes).all()):  # of what is alike for every token all that is so is a multiple
        return None
    factors = (x * outputs).sum(dim=(0, 1)) / sizes
    return factors if relative_error(outputs * factors, x) < TRUSTED else None


def _factor_of(factors: Tensor, attention: AttentionCall, block: ModuleCall, reader: str) -> HeadFactor:
    """Return the parameter of an attention that gives factors of its heads or of their features, such as a learned one.

    Raises:
        LayoutNotFoundError: No parameter gives them.
    """
    heads = attention.query.shape[1]
    around = next((f"{name}." for name, module in block.module.named_modules() if module is attention.module), "")
    names = [name for name, _ in block.module.named_parameters() if name.startswith(around.removeprefix("."))]
    for name, function, axes in product(names, HEAD_FACTORS, ("head", "feature", "both")):
        factor = HeadFactor(name, function, axes)
        given = factor.of(block.module.get_parameter(name).detach(), heads, factors.numel() // heads)
        if given is not None and relative_error(given.to(factors), factors) < TRUSTED:
            return factor
    words = f"its heads' outputs are multiplied by factors before {reader} reads them, and no parameter gives these"
    raise LayoutNotFoundError(words)


def _gate(x: Tensor, outputs: Tensor, calls: Sequence[ModuleCall]) -> ModuleCall | None:
    """Return the module whose outputs, through a sigmoid, multiply the heads' outputs to give x; None for no gate."""
    batch, tokens = outputs.shape[:2]
    gates = x / outputs
    if not bool(((gates > 0) & (gates < 1)).all()):
        return None
    candidates = [
        (call, features.sigmoid())
        for call in calls
        if stored_how(call) is not None and (features := as_features(call.y, batch, tokens)) is not None
    ]
    if not candidates:
        return None
    owner, row, _, _ = matched_columns(gates, candidates, tolerance=TRUSTED)
    gates = torch.stack([candidates[place][1][..., column] for place, column in zip(owner, row, strict=True)], dim=-1)
    agrees = len(owner.unique()) == 1 and relative_error(outputs * gates, x) < TRUSTED
    return candidates[int(owner[0])][0] if agrees else None
