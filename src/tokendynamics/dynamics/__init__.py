"""Flows of tokens under attention and their simulation."""

from tokendynamics.dynamics import events
from tokendynamics.dynamics.flow import Flow
from tokendynamics.dynamics.interrupted import Interrupted
from tokendynamics.dynamics.simulate import simulate
from tokendynamics.dynamics.status import Status
from tokendynamics.dynamics.trajectory import Trajectory

__all__ = ["Flow", "Interrupted", "Status", "Trajectory", "events", "simulate"]
