"""``tokendynamics circuits``: hand-built, learned and surveyed one-layer transformers on pairs of categories."""

from tokendynamics.cli.circuits._group import circuits_group

__all__ = ["circuits_group"]
