"""What importing and loading leave behind in the process: as little as possible."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch

from tokendynamics.pretrained import load
from tokendynamics.pretrained.other_libraries import silenced


def _modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.long
def test_importing_the_layer_imports_no_model_library() -> None:
    modules = _modules_after("import tokendynamics.pretrained")
    heavy = {"transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "accelerate"}
    assert not heavy & modules


@pytest.mark.slow
def test_a_refused_name_imports_no_model_library() -> None:
    code = "from tokendynamics.pretrained import load\ntry: load('nonsense')\nexcept ValueError: pass"
    assert "transformers" not in _modules_after(code)


def test_loading_prints_nothing_and_restores_the_settings(tiny: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    folder = tiny.folder("llama")
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled(), list(warnings.filters))
    capfd.readouterr()
    checkpoint = load(folder)
    checkpoint.states(torch.arange(6))
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), list(warnings.filters)) == before


def test_settings_come_back_after_an_error() -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    with pytest.raises(KeyError), silenced():  # noqa: PT012
        assert not logging.is_progress_bar_enabled()
        raise KeyError
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
