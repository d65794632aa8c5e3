"""The statements of the theory: which apply to a flow, what they predict, and what held along a trajectory."""

from __future__ import annotations

from tokendynamics.theorems.certify import certify
from tokendynamics.theorems.check import check
from tokendynamics.theorems.papers import PAPERS, Paper
from tokendynamics.theorems.registry import STATEMENTS
from tokendynamics.theorems.result import Certificate, Check, Condition, Hypothesis, Prediction
from tokendynamics.theorems.statement import Statement

__all__ = [
    "PAPERS",
    "STATEMENTS",
    "Certificate",
    "Check",
    "Condition",
    "Hypothesis",
    "Paper",
    "Prediction",
    "Statement",
    "certify",
    "check",
]
