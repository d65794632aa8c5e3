"""Tokenizers of bytes and of words, which AutoTokenizer reads from the files that they save."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments

END, UNKNOWN = "<eos>", "<unk>"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose ids are the bytes of the text in UTF-8, 0 … 255: every text comes back as it was.

    Bytes that are no UTF-8 are decoded as �. No byte has a special meaning.

    >>> tokenizer = byte_tokenizer()
    >>> tokenizer("aé")["input_ids"]
    [97, 195, 169]
    >>> tokenizer.decode([97, 195, 169, 195])
    'aé�'
    """
    # Each byte is spelt as one letter, as GPT-2 spells them, and no two are merged.
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


@typed_arguments
def word_tokenizer(vocabulary: Mapping[str, int]) -> PreTrainedTokenizerFast:
    r"""Return a tokenizer of what stands between white space, with ``<eos>`` for the end of a line.

    ``<eos>`` is a word like others: nothing stops there. What is not in the vocabulary is ``<unk>``.

    Args:
        vocabulary: The id of each word, 0 … n − 1, ``<eos>`` and ``<unk>`` among them; see `vocabulary_of`.

    Raises:
        ArgumentTypeError: No mapping of texts to integers.
        ArgumentValueError: Other ids, a word with white space in it, or a missing ``<eos>`` or ``<unk>``.

    >>> tokenizer = word_tokenizer({"the": 0, "<eos>": 1, "cat": 2, "<unk>": 3})
    >>> tokenizer("the cat ,\nthe")["input_ids"]
    [0, 2, 3, 1, 0]
    >>> tokenizer.decode([0, 2, 3, 1, 0])
    'the cat <unk> <eos> the'
    """
    _check_words("vocabulary", vocabulary)
    for word in (END, UNKNOWN):
        if word not in vocabulary:
            raise ArgumentValueError("vocabulary", f"the word {word} too", f"{len(vocabulary)} words without")
    if set(vocabulary.values()) != set(range(len(vocabulary))):
        raise ArgumentValueError("vocabulary", f"the ids 0 … {len(vocabulary) - 1}, each once", "others")
    tokenizer = Tokenizer(models.WordLevel(vocab=dict(vocabulary), unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\r\n?|\n"), f" {END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, clean_up_tokenization_spaces=False)


@typed_arguments
def vocabulary_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the id of each word by falling frequency, as an adaptive softmax wants it; those of one count by name.

    Args:
        counts: How often each word occurs, from 0; ``<eos>`` and ``<unk>`` are added where they are missing, with 0.

    Raises:
        ArgumentTypeError: No mapping of texts to integers.
        ArgumentValueError: A negative count, or a word with white space in it.

    >>> vocabulary_of({"the": 7, "a": 2, "cat": 2, "<eos>": 3})
    {'the': 0, '<eos>': 1, 'a': 2, 'cat': 3, '<unk>': 4}
    """
    _check_words("counts", counts)
    for word, count in counts.items():
        if count < 0:
            raise ArgumentValueError(f"counts[{shown(word)}]", "an integer from 0", count)
    whole = {END: 0, UNKNOWN: 0, **counts}
    return {word: at for at, word in enumerate(sorted(whole, key=lambda word: (-whole[word], word)))}


def _check_words(argument: str, words: Mapping[str, int]) -> None:
    for word in words:
        if word.split() != [word]:
            raise ArgumentValueError(argument, "words without white space", shown(word))
