"""What happens to tokens when a network is made deeper, and which parts cause it: variants side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.deepening._decode import decode
from tokendynamics.diagnosis.deepening.repeated_passes import (
    BY_PROMPT,
    COLLAPSED,
    ESTIMATES,
    OVER_PROMPTS,
    pass_numbers,
    pass_options,
    passes,
)
from tokendynamics.diagnosis.deepening.result import DECODED, Deeper, conventions_of, sentences_of
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for, named_prompts
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_choice, as_count, as_path
from tokendynamics.numerics.decline import DeclineEstimate, decline_of
from tokendynamics.numerics.errors import shown, why
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.edits.variant import NAMED
from tokendynamics.pretrained.loading import Model
from tokendynamics.provenance.progress import Progress, reporting

VARIANTS = tuple(NAMED)

_OWN_TO_A_VARIANT = ("variant", "scale", "drawn_whole")
"""Attributes of `passes` that differ between variants; they become coordinates of the table."""


@typed_arguments
def deeper(
    ckpt: Model,
    texts: Any,
    n: int,
    *,
    variants: Sequence[str] = VARIANTS,
    weights: str = "fixed",
    feed_back: str = "after_norm",
    positions: str = "once",
    seed: int = 0,
    decoded: Sequence[int] = DECODED,
    truncate: bool = False,
    store: str | Path | None = None,
    progress: bool | Progress = False,
) -> Deeper:
    """Run a network and variants of it n times on their own output, side by side (`asymptotic` 7.5 and Table 3).

    Each variant is one run of `passes`. A variant that the network cannot have (such as one without norms, of a network
    that has none) is skipped and named with the reason.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: Prompts, see `tokendynamics.trace`; κ needs two.
        n: Number of passes.
        variants: Of "full", "no-ffn", "no-norm" and "attention-only"; they replace that of the checkpoint.
        weights: See `tokendynamics.passes`, also for the next three.
        feed_back: Likewise.
        positions: Likewise.
        seed: Likewise.
        decoded: Passes after which the language head decodes the first prompt, ignoring those beyond n. Only with the
            network's own weights ("fixed"). Empty for none.
        truncate: Whether a prompt longer than the context is truncated; otherwise it is refused.
        store: Folder for one file per variant; runs found there are resumed.
        progress: True for a progress bar, or a function; see `trace`.

    Raises:
        ArgumentTypeError, ArgumentValueError: A wrong argument, or no variant that the network can have.
        CheckpointError: A network that cannot run on its own output, or whose weights have no known distribution.
        MemoryLimitError: More passes than can be stored.

    >>> from tokendynamics.pretrained import load
    >>> table = deeper(load("random:gpt2-tiny"), "short", 2, weights="law", variants=("full", "attention-only"))
    >>> table["consensus"].sizes["variant"], table.undecoded
    (2, 'the language head was trained with other weights than those drawn')
    """
    prompts = named_prompts(texts, ckpt := checkpoint_for(ckpt, texts))
    names = checked_deeper(n, variants, weights, len(prompts))
    pass_options(weights, feed_back, positions, None, None, seed)
    shared: dict[str, Any] = {"feed_back": feed_back, "positions": positions, "seed": seed, "truncate": truncate}
    steps = sorted(step for step in pass_numbers(decoded, "decoded", 1) if step <= n)
    possible, refused = _possible(ckpt, names)
    with reporting(progress) as report:
        runs = _runs(ckpt, prompts, n, possible, shared | {"weights": weights}, store, report)
        table, undecoded = _side_by_side(runs), "" if steps else "it was not requested"
        if weights != "fixed":
            undecoded = "the language head was trained with other weights than those drawn"
        if not undecoded:
            asked = _Decoding(ckpt, next(iter(prompts.values())), steps, shared)
            table, undecoded = _with_texts(table, asked, report)
    return Deeper(table, sentences_of(table, refused, undecoded), conventions_of(table), refused, undecoded)


def checked_deeper(n: int, variants: Sequence[str], weights: str, prompts: int, argument: str = "n") -> tuple[str, ...]:
    """Check every choice before any work begins, and return the names of the variants.

    Args:
        n: See `deeper`.
        variants: See `deeper`.
        weights: See `deeper`.
        prompts: Number of prompts.
        argument: The name of `n` in errors.

    Raises:
        ArgumentTypeError, ArgumentValueError: A wrong argument.
        MemoryLimitError: More passes than can be stored.

    >>> checked_deeper(3, ["full", "no-norm"], "law", 1)
    ('full', 'no-norm')
    """
    count = as_count(n, argument)
    pass_options(weights, "after_norm", "once", None, None, 0)
    names = tuple(as_choice(variant, "variants", VARIANTS) for variant in variants)
    if not names or len(set(names)) < len(names):
        raise ArgumentValueError("variants", "different names, at least one", shown(list(names)))
    check_fits(8 * count * len(names) * (len(BY_PROMPT) * prompts + len(OVER_PROMPTS)), argument, "fewer passes")
    return names


def _possible(ckpt: Checkpoint, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the variants that the network can have, and why not the others; refuse if it can have none."""
    possible: list[str] = []
    refused: dict[str, str] = {}
    errors: list[ArgumentValueError | CheckpointError] = []
    for name in names:
        try:
            with ckpt.varied(name):
                possible.append(name)
        except (ArgumentValueError, CheckpointError) as error:  # a part, or norms, that the network does not have
            refused[name] = why(error, "variants", ckpt.name)
            errors.append(error)
    if not possible:
        raise errors[0]
    return possible, refused


def _runs(
    ckpt: Checkpoint,
    prompts: Mapping[str, Any],
    n: int,
    names: Sequence[str],
    options: dict[str, Any],
    store: str | Path | None,
    report: Progress,
) -> dict[str, xr.Dataset]:
    """Return the run of each variant, stored as one file per variant in the folder `store`."""
    folder = None if store is None else as_path(store, "store")
    if folder is not None:
        if folder.is_file():
            raise ArgumentValueError("store", "a folder", f"the file {folder}")
        folder.mkdir(parents=True, exist_ok=True)
    files = {name: None if folder is None else folder / f"{name}.npz" for name in names}
    return {
        name: passes(ckpt, prompts, n, variant=name, store=file, progress=_named(report, name), **options)
        for name, file in files.items()
    }


def _named(report: Progress, name: str) -> Progress:
    def named(done: float, total: float, what: str) -> None:
        report(done, total, f"{what}: {name}")

    return named


def _side_by_side(runs: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Return the runs along a dim of variants, with the estimates from the median over prompts."""
    per_variant = {key: [str(run.attrs.get(key, "")) for run in runs.values()] for key in _OWN_TO_A_VARIANT}
    shared = {key: value for key, value in next(iter(runs.values())).attrs.items() if key not in per_variant}
    table = xr.concat(
        [run.drop_attrs(deep=False) for run in runs.values()],
        dim=xr.Variable("variant", list(runs)), data_vars="all", coords="minimal", compat="override", join="outer",
    )  # fmt: skip
    median = table.consensus.median("prompt", skipna=False).transpose("variant", "pass")
    declines = [decline_of(row, COLLAPSED, shared["resolution"]) for row in median.values.tolist()]

    def rows(estimates: list[DeclineEstimate]) -> tuple[tuple[str, ...], np.ndarray]:
        values = np.array([[getattr(estimate, key) for key in ESTIMATES] for estimate in estimates])
        return ("variant", "estimate"), values

    table = table.assign(
        median_consensus=median.assign_attrs(description="E, median over prompts while all are finite"),
        median_half_life=rows([decline.half_life for decline in declines]),
        median_collapse_pass=rows([decline.reached for decline in declines]),
        fit_first=("variant", [decline.first for decline in declines]),
        fit_last=("variant", [decline.last for decline in declines]),
    )
    names = {"variant": "changed", "scale": "scale", "drawn_whole": "drawn_whole"}
    return table.assign_coords({names[key]: ("variant", words) for key, words in per_variant.items()}).assign_attrs(
        shared
    )


@dataclass(frozen=True)
class _Decoding:
    """Prompt, passes and options of decoding."""

    ckpt: Checkpoint
    text: Any
    steps: list[int]
    options: dict[str, Any]


def _with_texts(table: xr.Dataset, asked: _Decoding, report: Progress) -> tuple[xr.Dataset, str]:
    """Add the decoded first prompt of each variant while its states are finite; or return the reason against it."""
    if asked.ckpt.tokenizer is None:
        return table, "there is no tokenizer"
    try:
        rows = [_decoded(table, name, asked, _named(report, name)) for name in map(str, table.variant.values)]
    except (ArgumentTypeError, CheckpointError) as error:
        return table, why(error, asked.ckpt.name)
    both = ("variant", "decoded_pass")
    texts, shares = (np.array(column) for column in zip(*rows, strict=True))
    table = table.assign(decoded=(both, texts), distinct_1=(both, shares))
    return table.assign_coords(decoded_pass=asked.steps), ""


def _decoded(table: xr.Dataset, name: str, asked: _Decoding, report: Progress) -> tuple[list[str], list[float]]:
    """Return the decoded texts of one variant and the share of different tokens in each."""
    finite = np.isfinite(table.log_norm.sel(variant=name).isel(prompt=0).values)
    steps = [step for step in asked.steps if finite[: step + 1].all()]
    rest = len(asked.steps) - len(steps)
    if not steps:
        return [""] * rest, [np.nan] * rest
    texts = decode(asked.ckpt, asked.text, steps, variant=name, progress=report, **asked.options)
    return [*map(str, texts.decoded.values), *[""] * rest], [*map(float, texts.distinct_1.values), *[np.nan] * rest]
