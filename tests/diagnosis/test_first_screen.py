"""What, why and what to do: the same on every surface, without symbols, each number from hidden states by hand."""

from __future__ import annotations

import copy
import html
import re
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.test_heads import ids_of, network_of
from diagnosis.text_halves import finding, measuring
from report.reading import page_of
from tokendynamics.cli._diagnose import show
from tokendynamics.cli._output import Output
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.words import fixed, in_layers


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return td.diagnose(network_of("llama"), ids_of(), sinks=[])


def plain(text: str) -> str:
    """Text of HTML or of a terminal, its spaces and line ends as one space."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))


@pytest.mark.long
def test_every_surface_has_the_same_three_lines(diagnosis: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    lines = diagnosis.verdict.lines
    assert [name for name, _ in lines] == ["What", "Why", "What to do"]
    show(Output(as_json=False), diagnosis, None)
    surfaces = [
        page_of(diagnosis),
        diagnosis._repr_html_(),
        diagnosis.summary(),
        diagnosis.markdown(),
        capsys.readouterr().out,
    ]
    for surface in map(plain, surfaces):
        places = [plain(surface.replace("\\", "")).find(plain(text)) for _, text in lines]
        assert -1 < places[0] < places[1] < places[2]


@pytest.mark.long
def test_the_first_screen_has_no_symbol(diagnosis: Diagnosis) -> None:
    assert not re.search(r"[καβλΔ∂σρ′]", " ".join(text for _, text in diagnosis.verdict.lines))
    assert "κ′" in diagnosis.verdict.details[0].text  # where it is defined


def kappa_of(states: list[np.ndarray]) -> float:
    """κ of one state a token, prompt by prompt, as a loop over pairs of different tokens."""
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in states]
    within = np.mean([np.mean([u[i] @ u[j] for i, j in permutations(range(len(u)), 2)]) for u in units])
    between = np.mean([np.mean(one @ other.T) for one, other in combinations(units, 2)])
    return float((within - between) / (1 - between))


def states_of(network: Any, prompts: list[list[int]]) -> list[list[np.ndarray]]:
    """States at the embedding, after the attention and after each block, by prompt, from hooks on a LLaMA."""
    base, by_site = getattr(network, "model", network), []
    for prompt in prompts:
        attended: list[torch.Tensor] = []
        hooks = [
            layer.self_attn.register_forward_hook(lambda module, given, output: attended.append(output[0]))  # noqa: B023
            for layer in base.layers
        ]
        ends: list[torch.Tensor] = []
        hooks.append(base.norm.register_forward_pre_hook(lambda module, given: ends.append(given[0])))  # noqa: B023
        with torch.no_grad(), silenced():
            hidden = network(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        for hook in hooks:
            hook.remove()
        blocks = [*hidden[:-1], ends[0]]  # the last of `hidden_states` is normed
        middle = [state + update for state, update in zip(blocks[:-1], attended, strict=True)]
        sites = [blocks[0], *(x for pair in zip(middle, blocks[1:], strict=True) for x in pair)]
        by_site.append([x[0].double().numpy() for x in sites])
    return [list(site) for site in zip(*by_site, strict=True)]


@pytest.mark.long
def test_each_number_is_that_of_the_hidden_states(diagnosis: Diagnosis) -> None:
    network, prompts = network_of("llama"), ids_of()
    kappa = np.array([kappa_of(site) for site in states_of(network, prompts)])
    relative = (kappa - kappa[0]) / (1 - kappa[0])
    (_, what), (_, why), (_, advice) = diagnosis.verdict.lines
    assert f"Within-text similarity after the last layer is {fixed(relative[-1])} (90 % CI " in what
    worst = int(np.argmax(relative[2::2])) + 1
    assert (
        f" ({fixed(relative[2 * worst])}). The attention of layer 1 contributes {fixed(relative[1], sign=True)} " in why
    )
    first = min(diagnosis.verdict.worst.layers)
    assert f" of the total {fixed(relative[2 * first], sign=True)} up to layer {first}." in why
    kappas = np.array([kappa_of(site) for site in states_of(network, finding(prompts))])[::2]
    falls = -np.diff(np.log(1 - kappas))
    rising = (np.flatnonzero(falls >= 0.1 * falls.mean()) + 1).tolist()
    counted = "all of layers 1–4" if len(rising) == 4 else f"{len(rising)} of layers 1–4 ({in_layers(rising)})"
    assert f"it rises in {counted}." in advice


@pytest.mark.slow
@pytest.mark.pretrained
def test_each_number_of_smollm2_is_that_of_its_hidden_states() -> None:
    from tokendynamics.diagnosis.texts import default_texts

    ckpt = td.load("smollm2")
    texts = dict(list(default_texts().items())[:6])
    diagnosis = td.diagnose(ckpt, texts, sinks=[0], baseline=None)
    prompts = [ckpt.encode(text).ids.flatten().tolist() for text in texts.values()]
    network = ckpt.model

    def kappas(model: Any, chosen: list[list[int]]) -> np.ndarray:
        sites = states_of(model, chosen)
        return np.array([kappa_of([x[1:] for x in site]) for site in sites])

    kappa = kappas(network, prompts)
    relative = (kappa - kappa[0]) / (1 - kappa[0])
    (_, what), (_, why), (_, advice) = diagnosis.verdict.lines
    assert f"Within-text similarity after the last layer is {fixed(relative[-1])} (90 % CI " in what
    steps = np.diff(relative)
    assert f"the largest contribution is {fixed(steps.max(), sign=True)} (" in why
    where = diagnosis.levers.where
    others = measuring(prompts)
    whole = kappas(network, others)[2 * where]
    for layer, head, value in re.findall(r"layer (\d+) head (\d+) \(([+−][0-9.]+)\)", why):
        changed = copy.deepcopy(network)
        size = changed.config.hidden_size // changed.config.num_attention_heads
        changed.layers[int(layer) - 1].self_attn.o_proj.weight.data[:, int(head) * size : (int(head) + 1) * size] = 0
        effect = whole - kappas(changed, others)[2 * where]
        assert effect == pytest.approx(float(value.replace("−", "-")), abs=6e-4)
    assert "No change is needed to avoid consensus." in advice
