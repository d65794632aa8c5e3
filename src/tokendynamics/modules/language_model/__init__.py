"""A decoder in a chosen regime, as transformers' `PreTrainedModel`, registered with its Auto classes."""

from tokendynamics.modules.language_model._model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.language_model._tokenizers import byte_tokenizer, vocabulary_of, word_tokenizer

__all__ = ["LanguageModel", "LanguageModelConfig", "byte_tokenizer", "vocabulary_of", "word_tokenizer"]
