"""Every public function outside models answers or refuses by name, whatever it is given."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from package import hostile_values as values
from package.public_calls import CIRCUITS, FLOWS, MODULES, OBSERVABLES, PLOTS, SPECTRA, SWEEPS, THEOREMS, Call, Kind
from package.public_model_calls import MODELS
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, MemoryLimitError, TokenDynamicsError

_CALLS = {**OBSERVABLES, **SPECTRA, **FLOWS, **CIRCUITS, **PLOTS, **SWEEPS, **MODULES, **THEOREMS}
_REFUSED: dict[Kind, dict[str, Any]] = {
    "array": values.ARRAYS,
    "array or none": values.ARRAYS,
    "number": values.NUMBERS,
    "integer": values.INTEGERS,
    "flag": values.FLAGS,
    "choice": values.CHOICES,
    "text": values.TEXTS,
    "ours": values.OTHER,
    "any": {},
}
"""What no argument of a kind may be."""

_ANYTHING: dict[Kind, dict[str, Any]] = {
    "array": values.SHAPES,
    "array or none": values.SHAPES,
    "number": values.RANGES,
    "integer": values.COUNTS,
    "flag": {},
    "choice": {"None": None},
    "text": {name: value for name, value in values.CHOICES.items() if name not in values.TEXTS},
    "ours": {},
    "any": {**values.OTHER, **values.CHOICES, **values.NUMBERS, **values.INTEGERS, **values.RANGES},
}
"""What an argument of a kind may be or not."""

_NOT_READ = {("summarize", "x", "no systems"), ("value_spectrum_of_factors", "left", "0-d tensor")} | {
    ("value_spectrum_of_factors", "right", "0-d tensor"),
    ("balance", "eigenvalues", "complex tensor"),
}
"""Internal forms that take checked tensors, and complex eigenvalues, which are right."""

_WRITING = ("save", "animate", "report", "search_counterexample")
"""Whose answer is a file."""

_FEW = frozenset(
    {
        *(
            "an object",
            "an unprintable object",
            "a raising object",
            "a dict",
            "a class",
            "bytes",
            "None",
            "a number",
            "a list",
            "array",
        ),
        *("an unhashable", "escapes", "NaN", "a huge integer", "meta", "0-d", "negative", "a tensor", "masked"),
        *("a fraction", "another word", "True", "a large integer", "a long text", "ragged", "objects"),
        *("sparse", "large", "a byte array"),
    }
)
"""Of the values for calls that run networks."""


_LONG = {"find_basins", "survey", "report", "animate", "classify", "heat_map", "stall", "phase_plane"}
"""Together a quarter of a minute."""


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _LONG)) for name in _CALLS])
def test_wrong_arguments_are_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entries = []
    for argument, (_, kind) in _CALLS[name].arguments.items():
        for what, value in {**_REFUSED[kind], **_ANYTHING[kind]}.items():
            if (name, argument, what) in _NOT_READ:
                continue
            text = _outcome(name, argument, value)
            if text != "refused" and not (text == "answered" and what not in _REFUSED[kind]):
                entries.append(f"{argument} is {what}: {text}")
            for written in tmp_path.iterdir():
                if text == "answered" and name in _WRITING:
                    written.unlink()
                else:
                    entries.append(f"{argument} is {what}: {text}, and wrote {written.name}")
    assert not entries, "\n".join(entries)


_LONG_ABOUT_MODELS = {
    *("study", "load", "load, live", "audit", "trace", "what_if", "diagnose", "compare", "decode", "deeper", "run"),
    *("token_paths", "token_clusters", "Diagnosis.save", "Comparison.save", "Trajectory.save"),
    *("write", "write, a comparison", "write, a trajectory", "judge", "explore", "head_effects", "joint_levers"),
    *("remedies", "shared_directions", "source_tokens", "nearest_statements", "page", "notebook_html"),
}
"""Together more than 20 seconds."""


@pytest.mark.usefixtures("unchecked", "undrawn")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _LONG_ABOUT_MODELS)) for name in MODELS]
)
def test_wrong_arguments_about_models_are_typed_errors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENDYNAMICS_CACHE", str(tmp_path / "cache"))
    call, computed = MODELS[name](), []
    for argument, (_, kind) in call.arguments.items():
        values_of_kind = {**_REFUSED[kind], **_ANYTHING[kind]}
        for what, value in values_of_kind.items():
            if what not in _FEW:
                continue
            text = _outcome_of(call, argument, value)
            if text != "refused" and not (text == "answered" and what not in _REFUSED[kind]):
                computed.append(f"{argument} is {what}: {text}")
            kept = {"cache"}
            if name == "study":  # its store is made before the scheduler, which never answers here, is asked
                kept |= {"study", value} if type(value) is str else {"study"}
            names = [path.name for path in tmp_path.iterdir() if path.name not in kept]
            if names and (text != "answered" or (not isinstance(value, str | Path) and argument in _PLACES)):
                computed.append(f"{argument} is {what}: {text}, and wrote {names}")
            for path in tmp_path.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not computed, "\n".join(computed)


_PLACES = ("folder", "path", "store")

_MISTAKEN: dict[str, tuple[str, Any]] = {
    "simulate": ("events", ""),
    "Free.sample": ("systems", (1,) * 1_000_000),
    "LayerNorm": ("eps", -1.0),
    "PairTask.embed": ("scratch", -1),
    "continue_descent": ("steps", -1),
    "classify": ("expansions", -1),
    "fractions": ("over", ("another",)),
    "Attention": ("qk", [1.0] * 1_000_000),
    "either_pair": ("x", np.zeros(1_000_000)),
    "SignedMatrix.start": ("noise", 1e308),
    "heat_map": ("scale", 1e308),
    "first_token_function": ("agreement", bytearray(b"12")),
    "load": ("inputs", True),
    "load, live": ("inputs", torch.eye(2).to_sparse()),
    "predict_equiangular": ("weights", "anything"),
    "predict_interaction_window": ("beta", "3.0"),
    "predict_long_context": ("scale", float("nan")),
    "predict_gaussian_moments": ("qk", np.full((2, 2), 1e308)),
    "Flow": ("space", values.Raising()),
    "trace": ("texts", torch.eye(2).to_sparse()),
    "audit": ("layers", {1: 2}),
    "decode": ("passes", [2**70]),
    "diagnose": ("weights", "another word"),
    "Checkpoint.save": ("folder", "."),
    "Trajectory.save": ("path", ""),
}
"""Values that some calls took for others, or without looking at them."""


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", _MISTAKEN)
def test_values_are_not_taken_for_others(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argument, value = _MISTAKEN[name]
    call = _CALLS[name] if name in _CALLS else MODELS[name]()
    with pytest.raises((ArgumentTypeError, ArgumentValueError, MemoryLimitError), match=f"^({argument}|prompt 1)"):
        call(**{argument: value})
    assert not list(tmp_path.iterdir())


def _outcome(name: str, argument: str, value: Any) -> str:
    return _outcome_of(_CALLS[name], argument, value)


def _outcome_of(call: Call, argument: str, value: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(**{argument: value})
        except (ArgumentTypeError, ArgumentValueError) as error:
            message = str(error)
            return "refused" if len(message) <= 500 and message.isprintable() else f"said {message[:100]!r}"
        except TokenDynamicsError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    return "answered"
