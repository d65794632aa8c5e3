"""What Python's functions can be asked, the command can be asked, but for what is named here with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import tokendynamics as td
from tokendynamics.cli._compare import compare_command, parse_dtypes
from tokendynamics.cli._diagnose import diagnose_command
from tokendynamics.cli._options import Loading

ABSENT: dict[str, dict[str, str]] = {
    "diagnose": {
        "texts": "--prompt, --text-file, --prompts and --images",
        "loss": "a function of Python",
        "command": "the command line itself",
        "progress": "a bar where standard error is a terminal",
    },
    "load": {
        "spec": "MODEL",
        "tokenizer": "an object of Python; a folder has its own",
        "inputs": "a function, for networks in memory",
        "progress": "a bar where standard error is a terminal",
    },
    "compare": {
        "texts": "--prompt, --text-file and --prompts",
        "command": "the command line itself",
        "progress": "a bar where standard error is a terminal",
    },
}
LOADING = [field.name for field in fields(Loading)]
OF_THE_COMMAND = {
    "prompts", "text_files", "prompt_files", "images", "out", "data_format", "overwrite", "as_json", "model",
    "fail_on", "max_similarity", "quiet", "markdown",
}  # fmt: skip
"""Parameters of the command that are no argument of either function: where prompts come from and results go,
what is printed, and which limits make the exit code."""

OPTIONS = {option.name: option for option in diagnose_command.params}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize("function", [td.diagnose, td.load])
def test_every_argument_is_an_option_or_absent_for_a_reason(function: Callable[..., Any]) -> None:
    absent = ABSENT[function.__name__]
    assert absent.keys() <= parameters(function).keys()
    assert not absent.keys() & OPTIONS.keys()
    forgotten = parameters(function).keys() - absent.keys() - OPTIONS.keys()
    assert not forgotten, f"give the command an option for {sorted(forgotten)}, or say in ABSENT why not"


def test_every_option_is_an_argument() -> None:
    known = parameters(td.diagnose).keys() | parameters(td.load).keys() | OF_THE_COMMAND
    assert OPTIONS.keys() <= known
    assert set(LOADING) == (parameters(td.load).keys() - ABSENT["load"].keys())


@pytest.mark.parametrize("function", [td.diagnose, td.load])
def test_what_is_left_out_means_the_same_in_both(function: Callable[..., Any]) -> None:
    defaults = diagnose_command.make_context("diagnose", ["model"]).params
    for name, parameter in parameters(function).items():
        if name in OPTIONS and parameter.default is not inspect.Parameter.empty:
            assert defaults[name] == parameter.default, name


def test_every_option_says_what_it_is_for() -> None:
    for option in OPTIONS.values():
        if option.param_type_name == "option":
            assert len(getattr(option, "help", None) or "") > 15, option.name


OF_COMPARE = {option.name: option for option in compare_command.params}
FOR_ALL_MODELS = set(LOADING) - {"dtype"}
"""How each model is read; formats are named for each, as --dtypes."""


def test_compare_can_be_asked_what_python_can_and_reads_models_as_diagnose_does() -> None:
    asked = parameters(td.compare).keys() - ABSENT["compare"].keys()
    assert asked <= OF_COMPARE.keys()
    of_one_model = {"model", "images"}
    assert OF_COMPARE.keys() - asked == FOR_ALL_MODELS - {"device", "allow_pickle"} | OF_THE_COMMAND - of_one_model
    for name in FOR_ALL_MODELS - {"adapter"}:
        assert OF_COMPARE[name].opts == OPTIONS[name].opts
        assert getattr(OF_COMPARE[name], "help", "") == getattr(OPTIONS[name], "help", None)


def test_what_is_left_out_means_the_same_in_a_comparison() -> None:
    defaults = compare_command.make_context("compare", ["model", "other"]).params
    for name, parameter in parameters(td.compare).items():
        if name in OF_COMPARE and name not in ("models", "names", "dtypes"):
            assert defaults[name] == parameter.default, name
    assert (defaults["names"], parse_dtypes(defaults["dtypes"])) == ((), ["float32"])
