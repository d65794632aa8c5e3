"""Text byte by byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tokendynamics.training.tasks._task import checked_options
from tokendynamics.training.tasks._texts import AdjoiningWindows, RandomWindows, TextTask, check_length, text_splits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_OPTIONS: dict[str, Any] = {"context": 128, "held_out": 0.05}


class Bytes(TextTask):
    """Foretelling the next byte: windows at random in training, side by side in evaluations.

    Options: ``context``, the bytes that the network sees at most (a window has one more, to be foretold), and
    ``held_out``, the share of each of the validation and the test split. The measure is bits per byte: the mean loss
    over ln 2.

    >>> task = Bytes.of("pydoc", {"context": 16}, seed=0, draws=4)
    >>> task.training_batch([task.training[0], task.training[1]])["input_ids"].shape
    torch.Size([2, 17])
    """

    measure = "bits_per_byte"

    @classmethod
    def of(cls, data: str, options: Mapping[str, Any], seed: int, draws: int) -> Bytes:
        """Return the task on a text, see `text_splits`.

        Raises:
            ArgumentValueError: No text there, fewer bytes than one context, or an option that there is not.
        """
        given = checked_options(options, _OPTIONS)
        length, splits = given["context"] + 1, text_splits(data, given["held_out"])
        check_length(splits._asdict(), length, "bytes", data)
        training = RandomWindows(splits.training, length, seed=seed, draws=draws)
        validation, test = (AdjoiningWindows(split, length) for split in splits[1:])
        return cls(training, validation, test)

    def fitted(self) -> dict[str, Any]:
        """Return the vocabulary of 256 bytes, and the longest sequence."""
        return {"vocab_size": 256, "max_position_embeddings": self.training.length}

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return bits per byte."""
        return {"bits_per_byte": loss / math.log(2)}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer of bytes."""
        from tokendynamics.modules.language_model import byte_tokenizer

        return byte_tokenizer()
