"""Repeated passes: a network made deeper by running its blocks on their own output (`asymptotic` 7.5)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing.prompts import checkpoint_for, in_words, named_prompts, noun_of
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import (
    as_choice,
    as_count,
    as_integer,
    as_number,
    as_path,
    as_positive,
    whole_numbers,
)
from tokendynamics.numerics.decline import DeclineEstimate, decline_of
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import consensus, mean_pair_cosine
from tokendynamics.observables.directions import unit_rows
from tokendynamics.observables.share_decomposition import (
    centred_cosines,
    gram_of_means,
    mean_of_others,
    resolution_of,
    shares_of_sums,
)
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.repeated_stack import PassOptions, RepeatedStack
from tokendynamics.pretrained.edits.variant import Variant, VariantLike
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_no_padding
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.array_files import read_npz
from tokendynamics.provenance.progress import Progress, reporting, tracked_if_many
from tokendynamics.provenance.whole import whole_file

BY_PROMPT = ("consensus", "consensus_signed", "mean_pair_cosine", "log_norm")

_MOST_PASSES = 10**6
"""More would take days and tell nothing that fewer do not."""

OVER_PROMPTS = ("share_common", "share_prompt", "share_own", "consensus_within", "centred_cos2")


_ARRAYS = {"identity", "by_prompt", "over_prompts", "states", "log_scale"}


def measures_of_prompt(states: Float[Tensor, "token dim"], log_scale: float, reference: int) -> dict[str, float]:
    """Return the measures of one prompt's tokens; NaN where they have no directions.

    Args:
        states: Of the tokens that count.
        log_scale: Logarithm of what the states were divided by.
        reference: The token that E is measured against.

    >>> measures = measures_of_prompt(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0.0, 0)
    >>> measures["consensus"], measures["mean_pair_cosine"], measures["log_norm"]
    (0.5, 0.0, 0.0)
    """
    wide = states.double()
    norms = torch.linalg.vector_norm(wide, dim=-1)
    if not bool(torch.isfinite(norms).all()) or not bool((norms > 0).all()):
        return dict.fromkeys(BY_PROMPT, float("nan"))
    return {
        "consensus": float(consensus(wide, reference)),
        "consensus_signed": float(consensus(wide, reference, signed=True)),
        "mean_pair_cosine": float(mean_pair_cosine(wide)) if len(wide) > 1 else float("nan"),
        "log_norm": float(norms.median().log()) + log_scale,
    }


def measures_over_prompts(prompts: Sequence[Float[Tensor, "_ dim"]], dtype: torch.dtype) -> dict[str, float]:
    """Return the shares, κ and centred cos² of several prompts; NaN of one, and where tokens have no directions.

    Args:
        prompts: States of the tokens that count.
        dtype: Of the network, whose rounding is the resolution.
    """
    norms = [torch.linalg.vector_norm(states.double(), dim=-1) for states in prompts]
    if len(prompts) < 2 or not all(
        bool((torch.isfinite(prompt_norms) & (prompt_norms > 0)).all()) for prompt_norms in norms
    ):
        return dict.fromkeys(OVER_PROMPTS, float("nan"))
    directions = [unit_rows(states.double()) for states in prompts]
    means = torch.stack([rows.mean(dim=0) for rows in directions])
    # 1 − Σ|u − ū|²/(n − 1), which does not cancel where all are nearly one; undefined for one token
    spreads = [(rows - rows.mean(dim=0)).square().sum() / (len(rows) - 1 or torch.nan) for rows in directions]
    within = 1 - torch.stack(spreads)
    resolution = resolution_of(dtype)
    shares = shares_of_sums(within, gram_of_means(means), resolution)
    squares = [
        centred_cosines(rows, center, resolution)[1]
        for rows, center in zip(directions, mean_of_others(means), strict=True)
    ]
    values = (shares.common, shares.prompt, shares.own, shares.kappa, torch.stack(squares).nanmean())
    return dict(zip(OVER_PROMPTS, map(float, values), strict=True))


@dataclass(frozen=True)
class PassRun:
    """What a run has found.

    Attributes:
        identity: Everything that its numbers depend on, as text.
        rows: For each pass, from the embedding on, the measures of each prompt.
        over: For each pass the measures over all prompts.
        states: After the last of them.
        log_scale: Logarithm of what these are divided by.
    """

    identity: str
    rows: list[list[dict[str, float]]]
    over: list[dict[str, float]]
    states: Float[Tensor, "prompt token dim"]
    log_scale: Float64[Tensor, " prompt"]


def write_run(path: Path, run: PassRun) -> None:
    """Write a run; the file is whole or the former one.

    Raises:
        StorageError: The disk is full.
    """
    states = run.states.detach().cpu()
    arrays = {
        "identity": np.frombuffer(run.identity.encode(), dtype=np.uint8),
        "by_prompt": np.array([[[row[name] for name in BY_PROMPT] for row in rows] for rows in run.rows]),
        "over_prompts": np.array([[measures[name] for name in OVER_PROMPTS] for measures in run.over]),
        # NumPy has no bfloat16, whose numbers are all numbers of float32.
        "states": (states.float() if states.dtype == torch.bfloat16 else states).numpy(),
        "log_scale": run.log_scale.numpy(),
    }
    with whole_file(path) as made, made.open("wb") as stream:
        np.savez(stream, **arrays)


def read_run(path: Path, identity: str) -> PassRun:
    """Read a run to resume.

    Raises:
        ArgumentValueError: No such file, damaged, or a run of other arguments.
    """
    arrays = read_npz(path, "store")
    if set(arrays) != _ARRAYS or arrays["identity"].dtype != np.uint8:
        raise ArgumentValueError("store", "a file that passes wrote", f"{path}, which holds something else")
    if arrays["identity"].tobytes() != identity.encode():
        advice = "choose another file, or remove it"
        raise ArgumentValueError("store", "a run of the same arguments", f"another one in {path}", advice)
    by_prompt, over, states = arrays["by_prompt"], arrays["over_prompts"], arrays["states"]
    fits = by_prompt.ndim == 3 and over.ndim == 2 and states.ndim == 3 and len(by_prompt) == len(over) > 0
    fits = fits and arrays["log_scale"].shape == states.shape[:1]
    if not fits or by_prompt.shape[1:] != (len(states), len(BY_PROMPT)) or over.shape[1] != len(OVER_PROMPTS):
        raise ArgumentValueError("store", "a file that passes wrote", f"{path}, whose arrays do not fit")
    rows = [[_named(row, BY_PROMPT) for row in of_pass] for of_pass in by_prompt]
    shared = [_named(row, OVER_PROMPTS) for row in over]
    return PassRun(identity, rows, shared, torch.from_numpy(states), torch.from_numpy(arrays["log_scale"]).double())


def _named(values: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


COLLAPSED = 1e-3
"""E below which tokens have collapsed: all within 2.6 degrees of the reference token."""

THERE_ARE_NONE = "nowhere: there are none"
"""Where the positions of a network without positions act."""

ESTIMATES = ("value", "low", "high")

STATUSES = ("all passes done", "E below the bound", "not finite")

_SAVED_EVERY = 20.0
"""Seconds between two saves of a run that can be resumed."""


@typed_arguments
def passes(
    ckpt: Model,
    text: Any,
    n: int,
    *,
    weights: str = "fixed",
    feed_back: str = "after_norm",
    positions: str = "once",
    variant: VariantLike = None,
    seed: int = 0,
    std: float | None = None,
    pad_to: int | None = None,
    reference: int = 0,
    until: float | None = None,
    truncate: bool = False,
    store: str | Path | None = None,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Run tokens n times through the blocks of a network, and measure them after each pass (`asymptotic` 7.5).

    The paper does not specify where the output re-enters and how positions act; the result records each choice.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        text: One prompt, several, or several by name, as `trace` takes them; κ and the shares need two.
        n: Number of passes.
        weights: "fixed"; "resample": drawn anew for each pass as transformers initialises them; "law": the outputs of
            such weights, drawn from their distribution, which is many times faster.
        feed_back: The next pass reads the last state "after_norm" or "before_norm", the final one.
        positions: The table of positions is added "once", before "each" pass, or "never". Rotations and biases of the
            logits act in every pass, or never.
        variant: "no-ffn", "no-norm", "attention-only" or a mapping; None for the checkpoint's own; see `under`.
        seed: Random seed of drawn weights.
        std: Standard deviation of every drawn matrix, with mean zero; None as transformers initialises each.
        pad_to: Tokens of every prompt, zero embeddings behind its own, which count from the first pass on.
        reference: The token that E is measured against; −1 is the last.
        until: E below which a prompt is done; the run ends when all are.
        truncate: Whether a prompt longer than the context is cut; otherwise it is refused.
        store: A file (.npz), written every 20 seconds and at the end; a run found there is resumed.
        progress: True for a progress bar, or a function; see `trace`.

    Returns:
        Dataset, dims ``prompt`` and ``pass`` (0 the embedding): ``consensus`` (E, `asymptotic` (25)), its signed
        twin, ``mean_pair_cosine``, ``log_norm``; over prompts the shares, κ and ``centred_cos2``; ``status``;
        ``half_life`` of E, ``own_half_life``, ``collapse_pass``, ``collapse_depth`` with their 90 % intervals.

    Raises:
        ArgumentTypeError, ArgumentValueError: A wrong argument, or a file of another run.
        CheckpointError: A network that cannot run on its own output, or whose weights have no known distribution.
        MemoryLimitError: More passes than can be stored.

    >>> from tokendynamics.pretrained import load
    >>> table = passes(load("random:gpt2-tiny"), "a short text", 2, weights="law")
    >>> table.sizes["pass"], str(table.status.values[0])
    (3, 'all passes done')
    """
    prompts = named_prompts(text, ckpt := checkpoint_for(ckpt, text))
    how = pass_options(weights, feed_back, positions, ckpt.variant if variant is None else variant, pad_to, seed, std)
    asked = _Asked(as_count(n, "n"), 0.0 if until is None else _bound(until), reference, store)
    return _run(ckpt, prompts, _packs(ckpt, prompts, asked.count, how.pad_to, truncate, progress), how, asked, progress)


@dataclass(frozen=True)
class _Asked:
    """Number of passes, bound, reference token and file."""

    count: int
    bound: float
    reference: int
    store: str | Path | None


def pass_options(
    weights: str,
    feed_back: str,
    positions: str,
    variant: VariantLike,
    pad_to: int | None,
    seed: int,
    std: float | None = None,
) -> PassOptions:
    """Check every choice and return how the blocks are repeated.

    Raises:
        ArgumentTypeError, ArgumentValueError: A choice that does not exist.
    """
    if std is not None and weights == "fixed":
        raise ArgumentValueError("std", "None where nothing is drawn (weights='fixed')", std)
    return PassOptions(
        weights=as_choice(weights, "weights", ("fixed", "resample", "law")),  # pyright: ignore
        feed_back=as_choice(feed_back, "feed_back", ("after_norm", "before_norm")),  # pyright: ignore
        positions=as_choice(positions, "positions", ("once", "each", "never")),  # pyright: ignore
        variant=Variant.of(variant),
        pad_to=None if pad_to is None else as_count(pad_to, "pad_to"),
        seed=as_integer(seed, "seed", 0),
        std=None if std is None else as_positive(std, "std"),
    )


def pass_numbers(values: Sequence[int], argument: str, least: int, *, empty: bool = True) -> list[int]:
    """Return different numbers of passes.

    Args:
        values: From `least` on.
        argument: Their name in errors.
        least: The smallest that there may be.
        empty: Whether there may be none.

    Raises:
        ArgumentTypeError, ArgumentValueError: No whole numbers, equal ones, or one below `least` or above a million.

    >>> pass_numbers([5, 1], "passes", 0)
    [5, 1]
    """
    numbers = whole_numbers(values, argument)
    smallest, largest = min(numbers, default=least - (not empty)), max(numbers, default=least)
    if len(set(numbers)) < len(numbers) or smallest < least or largest > _MOST_PASSES:
        limit = f", at most {_MOST_PASSES}" if largest > _MOST_PASSES else ""
        raise ArgumentValueError(argument, f"different numbers of passes from {least} on{limit}", shown(numbers))
    return numbers


def _packs(
    ckpt: Checkpoint,
    prompts: Mapping[str, Any],
    count: int,
    pad_to: int | None,
    truncate: bool,
    progress: bool | Progress,
) -> list[Pack]:
    check_fits(8 * count * (len(BY_PROMPT) * len(prompts) + len(OVER_PROMPTS)), "n", "fewer passes")
    with reporting(progress) as report:
        named = tracked_if_many(prompts.items(), report, "reading the prompts")
        given = [prepared(ckpt, item, truncate=truncate, argument=name) for name, item in named]
    inputs = [prompt.inputs for prompt in given]
    check_no_padding(ckpt, inputs)
    return ckpt.fewest_packs(inputs, pad_to)


def _run(
    ckpt: Checkpoint,
    prompts: Mapping[str, Any],
    packs: Sequence[Pack],
    how: PassOptions,
    asked: _Asked,
    progress: bool | Progress,
) -> xr.Dataset:
    attrs = _conventions(ckpt, how, asked.reference)
    target = None if asked.store is None else as_path(str(asked.store), "store")
    texts = {name: in_words(item) for name, item in prompts.items()}
    with reporting(progress) as report, RepeatedStack(ckpt, packs, how) as stack:
        if not -(tokens := min(stack.own_lengths)) <= asked.reference < tokens:
            wanted = f"a token of every prompt, from {-tokens} to {tokens - 1}"
            raise ArgumentValueError("reference", wanted, asked.reference)
        identity = json.dumps(attrs | {"texts": texts, "fingerprint": stack.fingerprint()})
        run = _started(stack, target, identity, asked.reference)
        # Until all passes or prompts are done, or the run is interrupted; completed passes are written in any case.
        written = monotonic()
        try:
            # A prompt has ended if it is below the bound or has no directions left.
            while len(run.over) <= asked.count and not all(
                math.isnan(row["log_norm"]) or row["consensus"] < asked.bound for row in run.rows[-1]
            ):
                report(len(run.over) - 1, asked.count, "passing")
                stack.advance()
                rows, over = _measured(stack, asked.reference)
                # At once: a run that is stopped in between must not have measures of states that it does not have.
                run = PassRun(run.identity, [*run.rows, rows], [*run.over, over], stack.states, stack.log_scale)
                if target is not None and monotonic() - written > _SAVED_EVERY:
                    write_run(target, run)
                    written = monotonic()
            report(asked.count, asked.count, "passing")
        finally:
            if target is not None:
                write_run(target, run)
        attrs |= {"scale": f"as they are: {stack.not_scaled}" if stack.not_scaled else "divided out, in log_norm"}
        attrs |= {"drawn_whole": ", ".join(stack.drawn_whole) or "none"} if how.weights == "law" else {}
    attrs["prompt_noun"] = noun_of(prompts)
    last = asked.count + 1  # a file may hold more
    return _as_dataset(replace(run, rows=run.rows[:last], over=run.over[:last]), prompts, attrs, asked)


def _declines(variables: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the half-lives of E and of the own share, and the depth at which E is below the bound."""
    floor = attrs["resolution"]
    of_prompts = [decline_of(values, COLLAPSED, floor) for values in variables["consensus"][1].tolist()]
    own_decline = decline_of(variables["share_own"][1].tolist(), COLLAPSED, floor)
    layers = attrs["layers"]

    def row(estimate: DeclineEstimate, factor: float = 1.0) -> list[float]:
        return [factor * getattr(estimate, name) for name in ESTIMATES]

    return {
        "half_life": (("prompt", "estimate"), np.array([row(decline.half_life) for decline in of_prompts])),
        "collapse_pass": (("prompt", "estimate"), np.array([row(decline.reached) for decline in of_prompts])),
        "collapse_depth": (("prompt", "estimate"), np.array([row(decline.reached, layers) for decline in of_prompts])),
        "own_half_life": (("estimate",), np.array(row(own_decline.half_life))),
    }


def _bound(until: float) -> float:
    value = as_number(until, "until")
    if not 0 < value < 1:
        raise ArgumentValueError("until", "a value of E between 0 and 1", value)
    return value


def _started(stack: RepeatedStack, target: Path | None, identity: str, reference: int) -> PassRun:
    if target is not None and target.exists():
        run = read_run(target, identity)
        stack.restore(run.states, run.log_scale, len(run.over) - 1)
        return run
    rows, over = _measured(stack, reference)
    return PassRun(identity, [rows], [over], stack.states, stack.log_scale)


def _measured(stack: RepeatedStack, reference: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    states = stack.prompts()
    scales = stack.log_scale.tolist()
    rows = [measures_of_prompt(prompt, scale, reference) for prompt, scale in zip(states, scales, strict=True)]
    return rows, measures_over_prompts(states, stack.dtype)


def _conventions(ckpt: Checkpoint, how: PassOptions, reference: int) -> dict[str, Any]:
    known = {"learned": "in the embedding", "absolute": "in the embedding", "none": THERE_ARE_NONE}
    acts = known.get(ckpt.layout.positions, "in the attention of every pass")
    std = "as transformers initialises" if how.std is None else f"{how.std:g} for every matrix of the blocks, mean 0"
    return {
        "model": ckpt.name,
        "weights": how.weights,
        "feed_back": how.feed_back if ckpt.layout.final_norm is not None else "there is no final norm",
        "positions": how.positions,
        "positions_act": "nowhere" if how.positions == "never" and acts != THERE_ARE_NONE else acts,
        "variant": how.variant.words,
        "padding": "none" if how.pad_to is None else f"zero embeddings behind the prompt, {how.pad_to} tokens in all",
        "reference_token": reference,
        "seed": how.seed if how.weights != "fixed" else "nothing is drawn",
        "std": std if how.weights != "fixed" else "nothing is drawn",
        "consensus": "E = 1 − mean |cos| over all tokens with the reference among them (asymptotic (25), from i = 1)",
        "tokens": "all count, massive ones too",
        "layers": ckpt.architecture.layers,
        "resolution": 100 * resolution_of(ckpt.dtype),
        "half_life": "in passes, 90 % interval; behind the first halving, above the resolution",
        "collapse_pass": f"where E is below {COLLAPSED:g}: seen, or extrapolated from the last pass; depth: in layers",
        "precision": f"passes in {str(ckpt.dtype).removeprefix('torch.')}, measures in float64",
    }


_WORDS: Mapping[str, str] = {
    "consensus": "E = 1 − mean |cos| with the reference token (asymptotic (25)); 0 is consensus",
    "consensus_signed": "1 - mean cos with the reference token; 0 to 2",
    "mean_pair_cosine": "mean cosine over pairs of different tokens",
    "log_norm": "logarithm of the median norm",
    "share_common": "part of a token's direction that all prompts share",
    "share_prompt": "part that its own prompt shares beyond that",
    "share_own": "the rest",
    "consensus_within": "consensus: prompt share / (1 - common share); NaN where all directions are one",
    "centred_cos2": "mean cos^2 over pairs of tokens of a prompt, the mean direction of the other prompts taken off",
}


def _as_dataset(run: PassRun, prompts: Mapping[str, Any], attrs: Mapping[str, Any], asked: _Asked) -> xr.Dataset:
    variables: dict[str, Any] = {}
    for name in BY_PROMPT:
        values = np.array([[row[name] for row in rows] for rows in run.rows]).T
        variables[name] = (("prompt", "pass"), values, {"description": _WORDS[name]})
    for name in OVER_PROMPTS:
        values = np.array([measures[name] for measures in run.over])
        variables[name] = (("pass",), values, {"description": _WORDS[name]})
    done, low, lost = STATUSES
    ends = [
        lost if math.isnan(row["log_norm"]) else low if row["consensus"] < asked.bound else done for row in run.rows[-1]
    ]
    variables |= _declines(variables, attrs)
    variables["status"] = (("prompt",), np.array(ends))
    coords = {
        "prompt": list(prompts),
        "text": ("prompt", [in_words(item) for item in prompts.values()]),
        "pass": np.arange(len(run.over)),
        "estimate": list(ESTIMATES),
    }
    return xr.Dataset(variables, coords=coords, attrs={**attrs, "asked_for": asked.count})
