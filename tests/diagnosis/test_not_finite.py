"""States outside the range of their number format are refused with the layer named; a site not read is undefined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import tokendynamics as td
from tokendynamics.numerics.errors import CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.not_finite import check_finite_state, check_states

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PROMPTS = [torch.arange(3 + place, 14 + 2 * place) for place in range(6)]


def network(kind: str = "llama", **further: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | further))).float().eval()


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose second layer adds about 1e6, which float16 does not hold and bfloat16 does."""
    model, folder = network(), tmp_path_factory.mktemp("overflowing")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(3e9)
    model.save_pretrained(folder)
    return folder


READERS: dict[str, Callable[[Checkpoint], object]] = {
    "trace": lambda ckpt: td.trace(ckpt, PROMPTS),
    "diagnose": lambda ckpt: td.diagnose(ckpt, PROMPTS, levers=False),
    "levers": lambda ckpt: td.levers(ckpt, PROMPTS),
    "logit_lens": lambda ckpt: td.logit_lens(ckpt, PROMPTS[0]),
    "decode": lambda ckpt: td.decode(ckpt, PROMPTS[0], (1,)),
    "generate": lambda ckpt: td.decode(ckpt, PROMPTS[0], (1,), how="generate", new_tokens=2),
    "attention_seen": lambda ckpt: td.attention_seen(ckpt, PROMPTS[0]),
    "what_if": lambda ckpt: td.what_if(ckpt, PROMPTS, {"layer 1 attention": 0.5}),
    "compare": lambda ckpt: td.compare(ckpt, ckpt.under({"layer 1 attention": 0.5}), texts=PROMPTS),
    "token_paths": lambda ckpt: td.diagnosis.token_paths(ckpt, PROMPTS[0]),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", READERS)
def test_an_overflow_is_refused_with_layer_format_and_remedy(overflowing: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"layer 2: expected finite .* in float16, whose largest number is 65504"):
        READERS[name](td.load(overflowing, dtype="float16"))
    with pytest.raises(CheckpointError, match=r'dtype="bfloat16" or dtype="float32"'):
        READERS[name](td.load(overflowing, dtype="float16"))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", READERS)
def test_a_format_that_holds_the_numbers_is_read(overflowing: Path, name: str) -> None:
    READERS[name](td.load(overflowing, dtype="bfloat16"))


def test_states_are_finite_one_by_one_and_not_in_sum() -> None:
    model = td.load(network())
    for finite in (torch.full((2, 3), 6e4).half(), torch.tensor([3e38, 3e38]), torch.zeros(0, 4)):
        check_finite_state(model, finite, "layer 1", "states")
    for wrong in (torch.tensor([torch.inf, -torch.inf, 0.0]), torch.tensor([1.0, torch.nan])):
        with pytest.raises(CheckpointError, match="layer 1: expected finite states"):
            check_finite_state(model, wrong, "layer 1", "states")


def test_a_site_is_unread_where_all_of_it_is_nan() -> None:
    model = td.load(network())
    (states,) = model.states_in_packs([PROMPTS[0]])
    states.attention[2] = torch.nan
    check_states(model, states)
    states.attention[2] = states.attention[1]
    states.attention[2, 0, 0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="layer 2: expected finite states after its attention, got nan"):
        check_states(model, states)


@pytest.mark.long
def test_logits_that_overflow_name_no_token(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model.lm_head.weight.mul_(3e6).clamp_(-6e4, 6e4)
        model.model.norm.weight.mul_(10.0)
    model.save_pretrained(tmp_path)
    for read in (td.logit_lens, lambda ckpt, ids: td.decode(ckpt, ids, (1,)), lambda ckpt, _: td.levers(ckpt, PROMPTS)):
        with pytest.raises(CheckpointError, match=r"language head.*: expected finite logits, got .* in float16"):
            read(td.load(tmp_path, dtype="float16"), PROMPTS[0])
        read(td.load(tmp_path), PROMPTS[0])


def test_a_token_that_the_head_excludes_leaves_numbers_finite() -> None:
    class Excluding(torch.nn.Module):
        def __init__(self, head: torch.nn.Module) -> None:
            super().__init__()
            self.head = head

        def forward(self, x: Tensor) -> Tensor:
            logits = self.head(x)
            logits[..., 7] = -torch.inf
            return logits

    model = network()
    model.lm_head = Excluding(model.lm_head)
    lens = td.logit_lens(td.load(model), PROMPTS[0])
    assert bool(np.isfinite(lens.divergence).all())
    assert bool(np.isfinite(lens.prediction_entropy).all())
    assert not bool((lens.token_id == 7).any())


def test_a_setting_that_describes_no_network_is_named() -> None:
    model = network()
    checkpoint = td.load(model)
    model.config.rms_norm_eps = float("nan")
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = float("nan")
    with pytest.raises(CheckpointError, match=r"layer 1: expected finite .* nan in float32.*rms_norm_eps = nan"):
        td.trace(checkpoint, PROMPTS)


UNREAD: dict[str, dict[str, Any]] = {
    "granitemoeshared": {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16},
    "falcon_h1": {
        "mamba_d_ssm": 16,
        "mamba_n_heads": 2,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 4,
        "head_dim": 8,
    },
}


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", UNREAD)
def test_a_site_that_is_not_read_is_undefined_and_the_others_are_right(kind: str) -> None:
    checkpoint = td.load(network(kind, **UNREAD[kind]))
    traced = td.trace(checkpoint, PROMPTS)
    states = checkpoint.states(PROMPTS[0])
    unread = states.attention[1:].isnan().flatten(1).all(dim=1)
    for layer in range(1, 4):
        for site, values in (("attention", states.attention[layer]), ("feed_forward", states.feed_forward[layer])):
            measured = traced.effective_rank_unit_rows.sel(site=site, sinks="kept", layer=layer)[0]
            if site == "attention" and unread[layer - 1]:
                assert np.isnan(measured)
                assert np.isnan(traced.consensus_within.sel(site=site, layer=layer))
            else:
                rank = td.observables.effective_rank(values.double(), unit_rows=True)
                assert float(measured) == pytest.approx(float(rank), rel=1e-5)
    assert bool(traced.consensus_within.sel(site="feed_forward").notnull().all())
    td.diagnose(checkpoint, PROMPTS, levers=False)
