"""Every function that reads a network takes a name, a path, a network or a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import tokendynamics as td
from pretrained.test_texts_with_options import tokenizer_of
from tokendynamics.numerics.errors import ArgumentTypeError

PROMPTS = [torch.arange(3 + place, 13 + 2 * place) for place in range(5)]
ALONE: dict[str, Any] = {"levers": False, "heads": False, "directions": False, "baseline": None}
READS: dict[str, Callable[[Any], Any]] = {
    "audit": lambda model: td.audit(model).W_inertia.values,
    "trace": lambda model: td.trace(model, PROMPTS).consensus_within.values,
    "levers": lambda model: td.levers(model, PROMPTS, candidates=1).table.consensus_sensitivity.values,
    "head_effects": lambda model: td.head_effects(model, PROMPTS, candidates=1).consensus_sensitivity.values,
    "joint_levers": lambda model: (
        td.joint_levers(model, PROMPTS, candidates=1, most=1, budget=9.0).table.kappa_change.values
    ),
    "remedies": lambda model: td.remedies(model, PROMPTS).consensus_change.values,
    "shared_directions": lambda model: td.shared_directions(model, PROMPTS).written.values,
    "source_tokens": lambda model: td.source_tokens(model, PROMPTS).contribution.values,
    "what_if": lambda model: td.what_if(model, PROMPTS, {"layer 1 attention": 0.5}).loss.values,
    "passes": lambda model: td.passes(model, PROMPTS[0], 1).consensus.values,
    "deeper": lambda model: td.deeper(model, PROMPTS, 1, variants=("full",)).table.consensus.values,
    "decode": lambda model: td.decode(model, PROMPTS[0], (1,)).token_id.values,
    "logit_lens": lambda model: td.logit_lens(model, PROMPTS[0]).token_id.values,
    "attention_seen": lambda model: td.attention_seen(model, PROMPTS[0]).entropy.values,
    "token_paths": lambda model: td.token_paths(model, PROMPTS[0]).norm.values,
    "token_clusters": lambda model: td.token_clusters(model, PROMPTS[0])["count"].values,
    "nearest_statements": lambda model: np.array(
        [len(one.violated) for one in td.nearest_statements(model, PROMPTS[0], 1)], dtype=float
    ),
    "flow_of": lambda model: td.flow_of(model).velocity(torch.eye(3, 16, dtype=torch.float64)).numpy(),
    "apply_remedy": lambda model: td.apply_remedy(model, start=-0.5)(input_ids=PROMPTS[0][None])[0].detach().numpy(),
    "diagnose": lambda model: td.diagnose(model, PROMPTS, **ALONE).trace.consensus_within.values,
    "compare": lambda model: td.compare(model, model, texts=PROMPTS, weights=False).table.consensus_within.values,
}


WITHOUT_TEXTS = ("audit", "flow_of", "apply_remedy")


class Written(td.Texts):
    """Texts with options, of which the first is a prompt by itself."""

    def __getitem__(self, place: int) -> td.Texts:
        return td.Texts(self.texts[place], special_tokens=self.special_tokens)


@pytest.mark.long
@pytest.mark.few(9)
@pytest.mark.parametrize("name", [name for name in READS if name not in WITHOUT_TEXTS])
def test_texts_with_options_are_taken_wherever_texts_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of()
    checkpoint = td.load(network(), tokenizer)
    texts = ["w1 w2 w3 w9", "w4 w5 w6 w6 w2", "w7 w8 w1", "w2 w30 w3 w1 w1 w4", "w20 w21 w22"]
    monkeypatch.setitem(READS[name].__globals__, "PROMPTS", Written(texts, special_tokens=False))
    given = READS[name](checkpoint)
    ids = [torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    monkeypatch.setitem(READS[name].__globals__, "PROMPTS", ids)
    wanted = READS[name](checkpoint)
    torch.testing.assert_close(torch.from_numpy(given), torch.from_numpy(wanted), equal_nan=True)


def network() -> nn.Module:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **sizes, num_attention_heads=2, num_key_value_heads=2)
    return AutoModelForCausalLM.from_config(config).float().eval()


FORMS: dict[str, Callable[[Path], Any]] = {
    "name": str,
    "path": lambda folder: folder,
    "network": lambda folder: network(),
    "checkpoint": lambda folder: td.load(network()),
}


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READS)
def test_a_name_a_path_a_network_and_a_checkpoint_give_the_same(name: str, form: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    network().save_pretrained(folder)  # pyright: ignore[reportCallIssue]
    wanted = READS[name](td.load(folder))
    given = READS[name](FORMS[form](folder))
    torch.testing.assert_close(torch.from_numpy(given), torch.from_numpy(wanted), equal_nan=True)


@pytest.mark.parametrize("name", [name for name in READS if name != "compare"])
def test_anything_else_is_refused_by_name(name: str) -> None:
    for wrong in (3.5, None, [1]):
        with pytest.raises(ArgumentTypeError, match=r"^(ckpt|models?|checkpoint).*: expected a"):
            READS[name](wrong)


def test_every_public_function_of_a_checkpoint_is_tried_here() -> None:
    readers = {"ckpt", "checkpoint", "model", "models"}
    public = {name for name in td.__all__ if inspect.isfunction(getattr(td, name))}
    reading = {name for name in public if readers & set(inspect.signature(getattr(td, name)).parameters)}
    assert reading == set(READS)


@pytest.mark.long
def test_a_checkpoint_that_gets_a_remedy_stays_as_it_is() -> None:
    checkpoint = td.load(network())
    before = td.trace(checkpoint, PROMPTS).consensus_within.values
    remedied = td.apply_remedy(checkpoint, start=-0.5)
    assert all(parameter.requires_grad for parameter in remedied.parameters())
    np.testing.assert_array_equal(td.trace(checkpoint, PROMPTS).consensus_within.values, before)
