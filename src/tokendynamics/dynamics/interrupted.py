"""Ctrl-C during a simulation."""

from __future__ import annotations

from tokendynamics.dynamics.trajectory import Trajectory


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a simulation: what was done so far is kept.

    Attributes:
        trajectory: Every system's states up to where its run was, with status "interrupted" for the unfinished.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__("the simulation was interrupted; its trajectory so far is in .trajectory")
        self.trajectory = trajectory
