"""Flows of tokens under attention and their simulation."""

from tokendynamics.dynamics import events
from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._simulate import Interrupted, simulate
from tokendynamics.dynamics._status import Status
from tokendynamics.dynamics._trajectory import Trajectory

__all__ = ["Flow", "Interrupted", "Status", "Trajectory", "events", "simulate"]
