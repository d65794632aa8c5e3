"""Messages during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback

from tokendynamics.provenance.progress import Progress


class Reported(TrainerCallback):
    """Tells how many steps are done.

    Args:
        report: See `Progress`.
        what: The piece of work, in words.
    """

    def __init__(self, report: Progress, what: str) -> None:
        self._report, self._what = report, what

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Tell where the run begins or resumes."""
        self._tell(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Tell the step."""
        self._tell(state)

    def _tell(self, state: Any) -> None:
        if state.is_world_process_zero:
            self._report(state.global_step, state.max_steps, self._what)


class Curves(TensorBoardCallback):
    """Writes every logged number for TensorBoard, to the last evaluation.

    Of a run that continues from a checkpoint, TensorBoard leaves out what had been written after that one.

    Args:
        folder: Where its files go.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin a file."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self.tb_writer = SummaryWriter(str(self._folder), purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Leave the file open for the evaluations that follow."""

    def close(self) -> None:
        """Bring everything to the disk; the file is complete."""
        if self.tb_writer is not None:
            self.tb_writer.close()
            self.tb_writer = None
