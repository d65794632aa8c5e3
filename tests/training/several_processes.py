"""What several processes train together, each of which runs this: ``torchrun … several_processes.py FOLDER``."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import accelerate.state
import torch
from accelerate.utils import DistributedType
from transformers import TrainerCallback

from tokendynamics.training import Experiment, Samples, train
from tokendynamics.training._trainer import RunTrainer
from training.runs import At, interrupt

RANK = int(os.environ.get("RANK", "0"))


class Sharding:
    """Has accelerate shard weights over processors too, which PyTorch can and accelerate passes over."""

    def __init__(self) -> None:
        self.on, genuine = False, accelerate.state.PartialState.__init__

        def made(state: Any, *given: Any, **options: Any) -> None:
            genuine(state, *given, **options)
            shared = accelerate.state.PartialState._shared_state
            if self.on and shared["distributed_type"] == DistributedType.MULTI_CPU:
                shared["distributed_type"] = DistributedType.MULTI_GPU

        accelerate.state.PartialState.__init__ = made


class Looked(TrainerCallback):
    """Notes whether the weights are sharded."""

    def __init__(self) -> None:
        self.sharded: set[bool] = set()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.sharded |= {hasattr(parameter, "to_local") for parameter in given["model"].parameters()}


class Short:
    """The first items of a split."""

    def __init__(self, split: Any, count: int) -> None:
        self._split, self._count = split, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        return self._split[number]


def evaluated(folder: Path, experiment: Experiment) -> list[float]:
    """Losses on the first 1, 2, … items of the validation split."""
    from tokendynamics.training._trainer import trainer_arguments
    from tokendynamics.training.networks import network_of, task_of

    task = task_of(experiment, 8)
    arguments = trainer_arguments(experiment.recipe, folder / "checkpoints", 0, [], {})
    trainer = RunTrainer(network_of(experiment, task), task, experiment.recipe, arguments)
    splits: list[Any] = [Short(task.validation, count) for count in range(1, 8)]
    return [trainer.evaluate(eval_dataset=split)["eval_loss"] for split in splits]


def unequal(folder: Path) -> None:
    """Write the weights that transformers' own Trainer gives where texts have 1 to 11 labels each."""
    from training.test_accumulation import decoder, texts, trained

    result = trained(decoder(), texts(), 4 // int(os.environ["WORLD_SIZE"]), folder / "unequal", accumulation=1)
    if RANK == 0:
        torch.save(result, folder / "unequal.pt")


def plant(model: torch.nn.Module) -> None:
    """Make the head of the second process no number; that of the first one is as it was."""
    _planted(list(model.parameters())[-1])


def plant_apart(model: torch.nn.Module) -> None:
    """Make what the second process has of the table of tokens no number, in a row that no token has."""
    _planted(next(iter(model.parameters()))[:1])


def _planted(weight: torch.Tensor) -> None:
    if RANK == 1:
        detached = weight.detach()
        getattr(detached, "to_local", lambda: detached)().fill_(math.nan)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    experiment = Experiment.from_json(json.loads((folder / "experiment.json").read_text()))
    sharding, computed = Sharding(), {}

    def run(name: str, one: Experiment, *callbacks: Any, **options: Any) -> Any:
        return train(one, folder / name, loggers=["tensorboard"], callbacks=callbacks, **options)

    def stopped(name: str, one: Experiment, **options: Any) -> None:
        try:
            run(name, one, At(5, interrupt), **options)
        except KeyboardInterrupt:
            run(name, one, resume=True, **options)

    run("together", experiment)
    stopped("stopped", experiment)
    unequal(folder)
    computed["lengths"] = evaluated(folder / "lengths", experiment)
    record = run("planted", experiment, At(3, plant), Samples(2, 3))
    computed["planted"] = [record.status, *record.notes]
    record = run("planted apart", experiment, At(3, plant_apart))
    computed["planted apart"] = [record.status, *record.notes]
    sharding.on, looked = True, Looked()
    sharded: dict[str, Any] = {"arguments": {"fsdp": True}}
    run("sharded", experiment, looked, Samples(2, 3), **sharded)
    computed["sharded"] = sorted(looked.sharded)
    stopped("sharded and stopped", experiment, **sharded)
    half = experiment.changed(recipe={"precision": "bf16", "steps": 2})
    computed["half"] = run("half and sharded", half, **sharded).history[0]["loss"]
    record = run("sharded and planted", experiment, At(3, plant), **sharded)
    computed["sharded and planted"] = [record.status, *record.notes]
    (folder / f"found-{RANK}.json").write_text(json.dumps(computed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
