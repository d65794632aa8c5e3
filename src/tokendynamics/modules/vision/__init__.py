"""A vision transformer in a chosen regime, as transformers' `PreTrainedModel`, registered with its Auto classes."""

from tokendynamics.modules.vision._model import VisionConfig, VisionModel

__all__ = ["VisionConfig", "VisionModel"]
