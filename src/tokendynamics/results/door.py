"""The one door upwards: pages stand above results, and are looked up by name when a result is asked for its page."""

from importlib import import_module
from types import ModuleType


def pages() -> ModuleType:
    """Return `tokendynamics.report`."""
    return import_module("tokendynamics.report")
