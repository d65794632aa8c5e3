"""A vision transformer in a chosen regime, as transformers' `PreTrainedModel`, registered with its Auto classes."""

from tokendynamics.modules.vision._model import Encoder, VisionConfig, VisionModel

__all__ = ["Encoder", "VisionConfig", "VisionModel"]
