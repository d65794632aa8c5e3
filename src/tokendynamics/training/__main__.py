"""Train what a folder's experiment.json describes: ``python -m tokendynamics.training FOLDER``.

It continues where an earlier process was stopped. The exit code is 0 where the run ended with all its steps. Several
processes train together as ``torchrun --nproc-per-node 4 -m tokendynamics.training FOLDER``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed

from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.printable import prepare_streams
from tokendynamics.training import train
from tokendynamics.training.folder import read_experiment


def main(arguments: list[str]) -> int:
    """Run one experiment and return the exit code; what is wrong is one line on standard error."""
    if len(arguments) != 1:
        print(expected("arguments", "the folder of one run", " ".join(arguments) or "nothing"), file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        command = f"python -m tokendynamics.training {folder.name}"
        record = train(read_experiment(folder), folder, resume=True, threads=1, command=command)
    except TokenDynamicsError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    if not record.finished and int(os.environ.get("RANK", "0")) == 0:
        print("; ".join(record.notes), file=sys.stderr)
    return 0 if record.finished else 1


if __name__ == "__main__":
    prepare_streams()
    sys.exit(main(sys.argv[1:]))
