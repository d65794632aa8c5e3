"""Every public function about models, specifications and training with arguments that are right, and their kinds."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tokendynamics as td
from package.public_calls import Call, Kind, X, _call
from tokendynamics import observables, report, spectra
from tokendynamics.attention import from_asymptotic, from_logical, from_positional, ov_circuit, qk_circuit
from tokendynamics.circuits._transformer import shift
from tokendynamics.diagnosis import judge, repeated_texts
from tokendynamics.modules.language_model import LanguageModel
from tokendynamics.modules.vision import VisionModel
from tokendynamics.pretrained import remedy_coefficients, remedy_parameters, remove_remedy
from tokendynamics.specification import check, parse, read, run
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.sweeps import parse_plan, read_plan
from tokendynamics.sweeps import study as studies
from tokendynamics.training import Experiment, Recipe, Samples, preset, train

TINY = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 32, "vocab_size": 300}
TEXTS = {"one": "abc def", "two": "ghi"}
_FIVE = {name: f"{name} def" for name in "abcde"}
_SINKS: dict[str, tuple[Any, Kind]] = {
    "sinks": ("detect", "any"),
    "sink_ratio": (4.0, "number"),
    "truncate": (False, "flag"),
}
_PROGRESS: dict[str, tuple[Any, Kind]] = {"progress": (False, "any")}
_PACKED: dict[str, tuple[Any, Kind]] = {"packed": (True, "flag"), **_PROGRESS}
_PASSES: dict[str, tuple[Any, Kind]] = {
    "weights": ("fixed", "choice"),
    "feed_back": ("after_norm", "choice"),
    "positions": ("once", "choice"),
    "seed": (0, "integer"),
    "truncate": (False, "flag"),
    **_PROGRESS,
}


@functools.cache
def model() -> Any:
    """A random GPT-2 of two layers."""
    folder = Path(tempfile.mkdtemp()) / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return td.load(f"random:{folder}")


@functools.cache
def diagnosis() -> Any:
    """A diagnosis of it."""
    return td.diagnose(model(), TEXTS, levers=False)


@functools.cache
def comparison() -> Any:
    """Of it with another."""
    return td.compare(model(), texts=TEXTS, baseline="untrained")


def network() -> torch.nn.Module:
    """A live network that a call may change."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**{key: value for key, value in TINY.items() if key != "model_type"}))


def rotary_network() -> torch.nn.Module:
    """A live network with rotary positions."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **sizes))


@functools.cache
def rotary_model() -> Any:
    """That network, read."""
    return td.load(rotary_network())


@functools.cache
def remedied() -> torch.nn.Module:
    """A live network with a remedy."""
    return td.apply_remedy(rotary_network(), "lambda-diagonal")


@functools.cache
def trajectory() -> Any:
    """A short run."""
    from package.public_calls import RUN

    return RUN


def _model(function: Callable[..., Any], **further: tuple[Any, Kind]) -> Call:
    return _call(function, ckpt=(model(), "any"), **further)


def _texts(function: Callable[..., Any], **further: tuple[Any, Kind]) -> Call:
    return _model(function, texts=(TEXTS, "any"), **further)


def _text(function: Callable[..., Any], **further: tuple[Any, Kind]) -> Call:
    return _model(function, text=("abc def", "any"), **further)


def _monitor() -> td.Monitor:
    return td.Monitor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


IDS = torch.tensor([1, 2, 3])
STUDY = """
[study]
preset = "bytes-small"
seeds = [1, 2]
reference = "one"
[arms.one]
[arms.two]
regime = "divergence"
"""

MODELS: dict[str, Callable[[], Call]] = {
    "load": lambda: _call(
        td.load,
        spec=("random:gpt2", "any"),
        tokenizer=(None, "any"),
        half=(None, "any"),
        adapter=(None, "any"),
        stream=(None, "any"),
        inputs=(None, "any"),
        dtype=("float32", "any"),
        device=("cpu", "any"),
        device_map=(None, "any"),
        allow_pickle=(False, "flag"),
        cache=(None, "any"),
        **_PROGRESS,
    ),
    "load, live": lambda: _call(
        partial(td.load, network()),
        tokenizer=(None, "any"),
        half=(None, "any"),
        inputs=(None, "any"),
        dtype=("float32", "any"),
        stream=(None, "any"),
    ),
    "audit": lambda: _model(
        td.audit,
        value=("VO", "choice"),
        fold_norms=(None, "any"),
        singular=("undefined", "choice"),
        layers=(None, "any"),
        offsets=((0, 1), "any"),
        spectra=("extremes", "choice"),
        **_PROGRESS,
    ),
    "trace": lambda: _texts(
        td.trace,
        **_SINKS,
        extra=((), "any"),
        cluster_angle=(0.5, "number"),
        observables=({"size": lambda states: float(states.norm())}, "any"),
        packed=(True, "flag"),
        **_PROGRESS,
    ),
    "attention_seen": lambda: _texts(
        td.attention_seen, patterns=(False, "flag"), truncate=(False, "flag"), **_PROGRESS
    ),
    "what_if": lambda: _texts(td.what_if, changes=({"attention": 0.5}, "any"), **_SINKS, **_PROGRESS),
    "levers": lambda: _model(
        td.levers,
        texts=(_FIVE, "any"),
        candidates=(1, "integer"),
        loss=(None, "any"),
        budget=(0.02, "number"),
        **_SINKS,
        packed=(True, "flag"),
        **_PROGRESS,
    ),
    "head_effects": lambda: _model(
        td.head_effects, texts=(_FIVE, "any"), candidates=(1, "integer"), loss=(None, "any"), **_SINKS, **_PACKED
    ),
    "joint_levers": lambda: _model(
        td.joint_levers,
        texts=(_FIVE, "any"),
        most=(1, "integer"),
        candidates=(1, "integer"),
        loss=(None, "any"),
        budget=(0.02, "number"),
        **_SINKS,
        **_PACKED,
    ),
    "remedies": lambda: _call(
        td.remedies,
        ckpt=(rotary_model(), "any"),
        texts=([[1, 2, 3, 4], [5, 6, 7], [8, 9, 1], [2, 5, 8], [3, 7, 2]], "any"),
        loss=(None, "any"),
        budget=(0.02, "number"),
        **_SINKS,
        **_PACKED,
    ),
    "shared_directions": lambda: _model(
        td.shared_directions, texts=(_FIVE, "any"), words=(5, "integer"), **_SINKS, **_PROGRESS
    ),
    "source_tokens": lambda: _model(td.source_tokens, texts=(_FIVE, "any"), **_SINKS, **_PROGRESS),
    "nearest_statements": lambda: _call(
        td.nearest_statements,
        checkpoint=(model(), "any"),
        text=("abc def", "any"),
        layer=(1, "any"),
        statements=(["asymptotic-4.1"], "any"),
        truncate=(False, "flag"),
        **_PROGRESS,
    ),
    "Texts": lambda: _call(
        lambda **given: td.trace(model(), td.Texts(**given)),
        texts=(TEXTS, "any"),
        chat=(False, "flag"),
        window=(None, "any"),
        special_tokens=(True, "flag"),
    ),
    "LanguageModel": lambda: _call(LanguageModel, config=(None, "ours")),
    "VisionModel": lambda: _call(VisionModel, config=(None, "ours")),
    "chart": lambda: _call(report.chart, diagnosis=(diagnosis(), "ours")),
    "page": lambda: _call(report.page, result=(diagnosis(), "ours")),
    "notebook_html": lambda: _call(report.notebook_html, diagnosis=(diagnosis(), "ours")),
    "explore": lambda: _call(
        report.explore,
        path=("saved", "any"),
        subject=(model(), "any"),
        texts=(["abc def"], "any"),
        observables=(None, "any"),
        **_PROGRESS,
    ),
    "deeper": lambda: _texts(
        td.deeper,
        n=(2, "integer"),
        variants=(("full",), "any"),
        decoded=((1,), "any"),
        store=(None, "any"),
        **_PASSES,
    ),
    "passes": lambda: _text(
        td.passes,
        n=(2, "integer"),
        variant=(None, "any"),
        std=(None, "any"),
        pad_to=(None, "any"),
        reference=(0, "integer"),
        until=(None, "any"),
        store=(None, "any"),
        **_PASSES,
    ),
    "decode": lambda: _text(
        td.decode,
        passes=((0, 1), "any"),
        how=("positions", "choice"),
        new_tokens=(2, "integer"),
        variant=(None, "any"),
        **_PASSES,
    ),
    "logit_lens": lambda: _text(td.logit_lens, truncate=(False, "flag")),
    "token_paths": lambda: _text(td.token_paths, **_SINKS),
    "token_clusters": lambda: _text(td.token_clusters, layers=(None, "any"), most=(3, "integer"), **_SINKS),
    "flow_of": lambda: _call(
        td.flow_of,
        checkpoint=(model(), "any"),
        layers=(None, "any"),
        space=(None, "any"),
        dtype=(torch.float64, "any"),
    ),
    "diagnose": lambda: _call(
        td.diagnose,
        model=(model(), "any"),
        texts=(TEXTS, "any"),
        value=("VO", "choice"),
        fold_norms=(None, "any"),
        singular=("undefined", "choice"),
        layers=(None, "any"),
        **_SINKS,
        dtype=("float32", "any"),
        device=("cpu", "any"),
        threads=(None, "any"),
        allow_pickle=(False, "flag"),
        levers=(False, "flag"),
        passes=(None, "any"),
        weights=("fixed", "any"),
        variants=(("full",), "any"),
        command=(None, "any"),
        **_PROGRESS,
    ),
    "compare": lambda: _call(
        partial(td.compare, model(), model()),
        texts=(TEXTS, "any"),
        names=(None, "any"),
        baseline=(None, "any"),
        seed=(0, "integer"),
        weights=(False, "flag"),
        halved=(False, "flag"),
        **_SINKS,
        dtypes=(("float32",), "any"),
        device=("cpu", "any"),
        threads=(None, "any"),
        allow_pickle=(False, "flag"),
        command=(None, "any"),
        **_PROGRESS,
    ),
    "compare, models": lambda: _call(
        lambda first, second: td.compare(first, second, texts=TEXTS), first=(model(), "any"), second=(model(), "any")
    ),
    "apply_remedy": lambda: _call(
        lambda kind, start: td.apply_remedy(rotary_network(), kind, start=start),
        kind=("lambda-diagonal", "any"),
        start=(-0.1, "number"),
    ),
    "apply_remedy, model": lambda: _call(lambda model: td.apply_remedy(model, "lambda-diagonal"), model=(None, "ours")),
    "remove_remedy": lambda: _call(remove_remedy, model=(remedied(), "ours")),
    "remedy_parameters": lambda: _call(remedy_parameters, model=(remedied(), "ours")),
    "remedy_coefficients": lambda: _call(remedy_coefficients, model=(remedied(), "ours")),
    "Checkpoint.attention": lambda: _call(model().attention, layer=(1, "integer")),
    "Checkpoint.feed_forward": lambda: _call(model().feed_forward, layer=(1, "integer")),
    "Checkpoint.iter_attention": lambda: _call(
        lambda layers: list(model().iter_attention(layers)), layers=(None, "any")
    ),
    "Checkpoint.encode": lambda: _call(model().encode, text=("abc", "text"), truncate=(False, "flag")),
    "Checkpoint.states": lambda: _call(model().states, ids=(IDS, "any")),
    "Checkpoint.states_in_packs": lambda: _call(
        lambda several, packed, logits, hidden: list(
            model().states_in_packs(several, packed=packed, logits=logits, hidden=hidden)
        ),
        several=([IDS], "any"),
        packed=(True, "flag"),
        logits=(False, "flag"),
        hidden=(False, "flag"),
    ),
    "Checkpoint.packs": lambda: _call(model().packs, several=([IDS], "any"), packed=(True, "flag")),
    "Checkpoint.one_pack": lambda: _call(model().one_pack, several=([IDS], "any")),
    "Checkpoint.fewest_packs": lambda: _call(model().fewest_packs, several=([IDS], "any"), tokens=(12, "integer")),
    "Checkpoint.watch_attention": lambda: _call(
        model().watch_attention, ids=(IDS, "any"), watch=(lambda call: None, "any")
    ),
    "Checkpoint.watch_pack": lambda: _call(
        model().watch_pack, pack=(model().packs([IDS])[0], "ours"), watch=(lambda call: None, "any")
    ),
    "Checkpoint.under": lambda: _call(model().under, variant=({"attention": 0.5}, "any")),
    "Checkpoint.save": lambda: _call(td.load(network()).save, folder=("saved", "any")),
    "Diagnosis.save": lambda: _call(
        diagnosis().save, folder=("saved", "any"), format=("zarr", "choice"), overwrite=(True, "flag")
    ),
    "Comparison.save": lambda: _call(
        comparison().save, folder=("saved", "any"), format=("zarr", "choice"), overwrite=(True, "flag")
    ),
    "Trajectory.save": lambda: _call(trajectory().save, path=("saved", "any"), overwrite=(True, "flag")),
    "write": lambda: _call(
        report.write, result=(diagnosis(), "ours"), path=("saved", "any"), max_bytes=(10, "integer")
    ),
    "write, a comparison": lambda: _call(
        report.write, result=(comparison(), "ours"), path=("saved", "any"), max_bytes=(10, "integer")
    ),
    "write, a trajectory": lambda: _call(
        report.write, result=(trajectory(), "ours"), path=("saved", "any"), max_bytes=(10, "integer")
    ),
    "judge": lambda: _call(
        judge, audit=(diagnosis().audit, "any"), trace=(diagnosis().trace, "ours"), refused=("", "text")
    ),
    "repeated_texts": lambda: _call(repeated_texts, prompts=(TEXTS, "any")),
    "Monitor": lambda: _call(
        td.Monitor,
        texts=([[1, 2, 3], [4, 5, 6], [7, 8, 9]], "any"),
        every=(5, "integer"),
        tokenizer=(None, "any"),
        writer=(None, "any"),
        inputs=(None, "any"),
    ),
    "Monitor.measure": lambda: _call(_monitor().measure, model=(network(), "ours"), step=(0, "any")),
    "Monitor.step": lambda: _call(_monitor().step, model=(network(), "any")),
    "Monitor.load_state_dict": lambda: _call(_monitor().load_state_dict, state=({}, "any")),
    "Monitor.open": lambda: _call(td.Monitor.open, folder=("nothing", "any")),
    "preset": lambda: _call(preset, name=("bytes-small", "choice")),
    "Experiment.changed": lambda: _call(
        preset("bytes-small").changed,
        regime=(None, "any"),
        remedy=(None, "any"),
        data=(None, "any"),
        seed=(None, "any"),
        model=(None, "any"),
        options=(None, "any"),
        recipe=(None, "any"),
    ),
    "Experiment": lambda: _call(
        Experiment,
        name=("a", "text"),
        task=("bytes", "any"),
        data=("stdlib", "text"),
        model=(dict(preset("bytes-small").model), "any"),
        recipe=(preset("bytes-small").recipe, "ours"),
        options=(dict(preset("bytes-small").options), "any"),
        seed=(0, "integer"),
    ),
    "Experiment.from_json": lambda: _call(Experiment.from_json, values=(preset("bytes-small").as_json(), "any")),
    "Recipe": lambda: _call(
        Recipe,
        steps=(1, "integer"),
        batch=(1, "integer"),
        learning_rate=(0.1, "number"),
        accumulation=(1, "integer"),
        schedule=("cosine", "choice"),
        warmup=(0, "integer"),
        lowest=(0.0, "number"),
        optimizer=("adamw", "choice"),
        weight_decay=(0.0, "number"),
        betas=((0.9, 0.99), "any"),
        clip=(1.0, "any"),
        precision=("float32", "choice"),
        averaging=(None, "any"),
        evaluate_every=(1, "integer"),
        save_every=(1, "integer"),
        log_every=(1, "integer"),
    ),
    "Samples": lambda: _call(Samples, every=(5, "integer"), tokens=(5, "integer")),
    "train": lambda: _call(
        lambda **given: train(**{"experiment": None, "folder": "trained", **given}), experiment=(None, "ours")
    ),
    "parse": lambda: _call(parse, text=(example_text("minimal"), "text"), name=("minimal.toml", "text")),
    "read": lambda: _call(read, path=("nothing.toml", "any")),
    "run": lambda: _call(
        run,
        spec=(parse(example_text("minimal"), "minimal.toml"), "any"),
        threads=(None, "any"),
        progress=(False, "any"),
        command=(None, "any"),
    ),
    "check, specification": lambda: _call(
        check, spec=(parse(example_text("minimal"), "minimal.toml"), "any"), threads=(None, "any")
    ),
    "example_names": lambda: _call(example_names, kind=("sweep", "choice")),
    "example_text": lambda: _call(example_text, name=("outcomes", "choice"), kind=("sweep", "choice")),
    "parse_plan": lambda: _call(parse_plan, text=(example_text("outcomes", "sweep"), "text"), name=("a.toml", "text")),
    "read_plan": lambda: _call(read_plan, path=("nothing.toml", "any")),
    "parse_plan of studies": lambda: _call(studies.parse_plan, text=(STUDY, "text"), name=("a.toml", "text")),
    "read_plan of studies": lambda: _call(studies.read_plan, path=("nothing.toml", "any")),
    "open_study": lambda: _call(studies.open_study, store=("nothing", "any")),
    "study": lambda: _call(
        partial(studies.study, studies.parse_plan(STUDY, "a.toml"), scheduler="nonsense://127.0.0.1:1"),
        store=("study", "any"),
        workers=(None, "any"),
        resume=(False, "flag"),
        progress=(False, "any"),
        command=(None, "any"),
    ),
    "study, spec": lambda: _call(lambda spec: studies.study(spec, "study"), spec=(None, "ours")),
    "repetition": lambda: _call(observables.repetition, tokens=([1, 2, 1], "any")),
    "shares": lambda: _call(observables.shares, prompts=([X, X], "any")),
    "relative_kappa": lambda: _call(
        observables.relative_kappa, kappa=(np.ones(2), "any"), reference=(np.ones(2), "any")
    ),
    "direction_clusters": lambda: _call(observables.direction_clusters, x=(X, "array"), most=(2, "integer")),
    "from_asymptotic": lambda: _call(from_asymptotic, **{name: (np.eye(2), "array") for name in "QKVW"}),
    "from_logical": lambda: _call(from_logical, **{name: (np.eye(2), "array") for name in "qkv"}),
    "from_positional": lambda: _call(
        from_positional, **{name: (np.eye(2), "array") for name in "QKV"}, scale=(1.0, "number")
    ),
    "qk_circuit": lambda: _call(qk_circuit, W_Q=(np.eye(2), "array"), W_K=(np.eye(2), "array"), scale=(1.0, "number")),
    "ov_circuit": lambda: _call(ov_circuit, W_V=(np.eye(2), "array"), W_O=(np.eye(2), "array")),
    "shift": lambda: _call(shift, positions=(3, "integer")),
    "value_spectrum, wanted": lambda: _call(partial(spectra.value_spectrum, np.eye(2)), wanted=("extremes", "choice")),
}
