"""Which adapter reads which checkpoint. A new layout is one new file here, listed in `_ADAPTERS`."""

from __future__ import annotations

from tokendynamics.numerics._errors import CheckpointError, expected, shown
from tokendynamics.pretrained.adapters import _bert, _gpt2, _llama
from tokendynamics.pretrained.adapters._adapter import Adapter

__all__ = ["MODEL_TYPES", "Adapter", "adapter_for"]

_ADAPTERS: tuple[Adapter, ...] = (_gpt2.ADAPTER, _llama.ADAPTER, _bert.ADAPTER)

MODEL_TYPES: tuple[str, ...] = tuple(kind for adapter in _ADAPTERS for kind in adapter.model_types)


def adapter_for(model_type: object) -> Adapter:
    """Return the adapter that reads models whose configuration says `model_type`.

    >>> adapter_for("mistral").family
    'llama'

    Raises:
        CheckpointError: No adapter knows it; the message lists those that exist and how to add one.
    """
    for adapter in _ADAPTERS:
        if model_type in adapter.model_types:
            return adapter
    advice = "to add one, write src/tokendynamics/pretrained/adapters/_<layout>.py with an ADAPTER and list it there"
    raise CheckpointError(expected("architecture", " or ".join(MODEL_TYPES), shown(model_type), advice))
