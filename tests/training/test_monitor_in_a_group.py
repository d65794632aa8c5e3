"""Several processes: the network inside what distributes it is measured, by the first one, unless it is spread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tokendynamics.training import Monitor
from tokendynamics.training.monitor._network import base_of, unwrapped, why_not_alone
from training.monitored import gpt2, language_model, texts


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.long
@pytest.mark.usefixtures("group")
def test_a_network_that_is_distributed_is_measured_as_itself() -> None:
    alone, spread, parallel = Monitor(texts()), Monitor(texts()), Monitor(texts())
    alone.step(language_model())
    spread.step(nn.parallel.DistributedDataParallel(language_model()))
    parallel.step(nn.DataParallel(language_model()))
    for monitor in (spread, parallel):
        assert monitor.dataset.attrs["model"] == "LanguageModel"
        np.testing.assert_array_equal(monitor.dataset.consensus_within, alone.dataset.consensus_within)


@pytest.mark.usefixtures("group")
def test_weights_that_are_spread_over_processes_are_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    """A pass of one process alone would wait for the others, for ever."""
    from torch.distributed.fsdp import fully_shard

    model, monitor = gpt2(), Monitor(texts(), every=1)
    fully_shard(model)
    for _ in range(3):
        monitor.step(model)
    reason = "this needs a network that one process has whole, but its weights are spread over several processes"
    assert monitor.status == f"not measured: {reason} (FSDPGPT2LMHeadModel)"
    assert len(caplog.messages) == 1
    assert why_not_alone(gpt2()) == ""


@pytest.mark.usefixtures("group")
def test_other_processes_than_the_first_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monitor = Monitor(texts())
    monitor.step(gpt2())
    assert monitor.status == "nothing measured yet"


@pytest.mark.long
def test_a_compiled_network_is_measured_as_itself() -> None:
    model = gpt2()
    assert unwrapped(torch.compile(model)) is model  # pyright: ignore[reportArgumentType]
    assert base_of(model) is model.get_submodule("transformer")


@pytest.mark.long
def test_an_adapter_of_peft_is_measured_with_its_network() -> None:
    peft = pytest.importorskip("peft")
    plain, adapted = gpt2(), gpt2()
    adapter = peft.get_peft_model(adapted, peft.LoraConfig(target_modules=["c_attn"], init_lora_weights=False))
    assert unwrapped(adapter) is adapted
    values = []
    for model in (plain, adapter):
        monitor = Monitor(texts())
        monitor.step(model)
        assert monitor.status == "measured"
        values.append(monitor.dataset.update_ratio.values)
    assert not np.allclose(values[0], values[1], equal_nan=True)


def test_weights_that_deepspeed_has_spread_are_known_by_their_mark() -> None:
    model = gpt2()
    vars(next(model.parameters()))["ds_id"] = 0
    assert why_not_alone(model) == "its weights are spread over several processes"
