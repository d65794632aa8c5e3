"""Text word by word."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tokendynamics.training.tasks._task import checked_options
from tokendynamics.training.tasks._texts import AdjoiningWindows, RandomWindows, TextTask, check_length, text_splits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_OPTIONS: dict[str, Any] = {"context": 150, "evaluation_context": 156, "held_out": 0.05, "least": 1}
END, UNKNOWN = "<eos>", "<unk>"


class Words(TextTask):
    """Foretelling the next word; words are what stands between blanks, and every line ends with ``<eos>``.

    The vocabulary is that of the training split, by falling frequency as an adaptive softmax wants it; other words are
    ``<unk>``. Options: ``context``, the words that the network sees at most in training, ``evaluation_context``,
    likewise in evaluations, ``held_out``, the share of each of the validation and the test split where the data have
    none of their own, and ``least``, how often a word must occur to have a place of its own. The measure is the
    perplexity, exp of the mean loss.

    >>> task = Words.of("pydoc", {"context": 16}, seed=0, draws=4)
    >>> task.vocabulary[0], task.training_batch([task.training[0]])["labels"].shape
    ('<eos>', torch.Size([1, 17]))
    """

    measure = "perplexity"

    def __init__(
        self,
        training: RandomWindows,
        validation: AdjoiningWindows,
        test: AdjoiningWindows,
        vocabulary: Sequence[str],
        longest: int,
    ) -> None:
        super().__init__(training, validation, test)
        self.vocabulary, self._longest = vocabulary, longest

    @classmethod
    def of(cls, data: str, options: Mapping[str, Any], seed: int, draws: int) -> Words:
        """Return the task on a text.

        Raises:
            ArgumentValueError: No text there, fewer words than one context, or an option that there is not.
        """
        given = checked_options(options, _OPTIONS)
        lines = {name: _Lines(split) for name, split in text_splits(data, given["held_out"])._asdict().items()}
        vocabulary = _vocabulary(lines["training"], given["least"])
        numbers = {word: number for number, word in enumerate(vocabulary)}
        splits = {name: _encoded(part, numbers) for name, part in lines.items()}
        context, evaluated = given["context"] + 1, given["evaluation_context"] + 1
        check_length(splits, max(context, evaluated), "words", data)
        training = RandomWindows(splits["training"], context, seed=seed, draws=draws)
        validation, test = (AdjoiningWindows(splits[name], evaluated) for name in ("validation", "test"))
        return cls(training, validation, test, vocabulary, max(context, evaluated))

    def fitted(self) -> dict[str, Any]:
        """Return the size of the vocabulary, and the longest sequence."""
        return {"vocab_size": len(self.vocabulary), "max_position_embeddings": self._longest}

    def measures(self, loss: float, scores: Tensor | None) -> dict[str, float]:
        """Return the perplexity; infinite where it is beyond float64."""
        return {"perplexity": math.exp(loss) if loss < 700 else math.inf}

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer of these words."""
        from tokendynamics.modules.language_model import word_tokenizer

        return word_tokenizer({word: number for number, word in enumerate(self.vocabulary)})


class _Lines:
    """The lines of a text, decoded anew each time; they end where the tokenizer has them end."""

    def __init__(self, content: np.ndarray) -> None:
        self._content = content

    def __iter__(self) -> Iterator[str]:
        yield from io.TextIOWrapper(io.BytesIO(self._content.tobytes()), encoding="utf-8", errors="replace")


def _vocabulary(lines: Iterable[str], least: int) -> list[str]:
    """Return the words in the order of their numbers."""
    from tokendynamics.modules.language_model import vocabulary_of

    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
        counts[END] += 1
    rare = sum(count for count in counts.values() if count < least)
    kept = Counter({word: count for word, count in counts.items() if count >= least})
    kept[UNKNOWN] += rare
    return list(vocabulary_of(kept))


def _encoded(lines: Iterable[str], numbers: Mapping[str, int]) -> np.ndarray:
    unknown = numbers[UNKNOWN]

    def words() -> Iterator[int]:
        for line in lines:
            yield from (numbers.get(word, unknown) for word in line.split())
            yield numbers[END]

    return np.fromiter(words(), dtype=np.int32)
