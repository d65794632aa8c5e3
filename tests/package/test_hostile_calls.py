"""Every public function outside models answers or refuses by name, whatever it is given."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from package import hostile_values as values
from package.public_calls import CIRCUITS, FLOWS, MODULES, OBSERVABLES, PLOTS, SPECTRA, SWEEPS, Kind
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, TokenDynamicsError

_CALLS = {**OBSERVABLES, **SPECTRA, **FLOWS, **CIRCUITS, **PLOTS, **SWEEPS, **MODULES}
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
    "any": {**values.OTHER, **values.CHOICES, **values.NUMBERS},
}
"""What an argument of a kind may be or not."""

_NOT_READ = {("summarize", "x", "no systems"), ("value_spectrum_of_factors", "left", "0-d tensor")} | {
    ("value_spectrum_of_factors", "right", "0-d tensor"),
    ("balance", "eigenvalues", "complex tensor"),
}
"""Internal forms that take checked tensors, and complex eigenvalues, which are right."""

_WRITING = ("save", "animate", "report")
"""Whose answer is a file."""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", _CALLS)
def test_wrong_arguments_are_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for argument, (_, kind) in _CALLS[name].arguments.items():
        for what, value in {**_REFUSED[kind], **_ANYTHING[kind]}.items():
            if (name, argument, what) in _NOT_READ:
                continue
            said = _outcome(name, argument, value)
            if said != "refused" and not (said == "answered" and what not in _REFUSED[kind]):
                found.append(f"{argument} is {what}: {said}")
            for written in tmp_path.iterdir():
                if said == "answered" and name in _WRITING:
                    written.unlink()
                else:
                    found.append(f"{argument} is {what}: {said}, and wrote {written.name}")
    assert not found, "\n".join(found)


def _outcome(name: str, argument: str, value: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _CALLS[name](**{argument: value})
        except (ArgumentTypeError, ArgumentValueError) as error:
            message = str(error)
            return "refused" if len(message) <= 500 and message.isprintable() else f"said {message[:100]!r}"
        except TokenDynamicsError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    return "answered"
