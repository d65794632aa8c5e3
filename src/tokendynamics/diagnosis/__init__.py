"""What a checkpoint's weights predict, what its tokens do, and the verdict in plain sentences."""

from tokendynamics.diagnosis.audit import audit
from tokendynamics.diagnosis.diagnose import diagnose
from tokendynamics.diagnosis.network_flow import flow_of
from tokendynamics.diagnosis.paths import token_paths
from tokendynamics.diagnosis.result import Convention, Diagnosis
from tokendynamics.diagnosis.trace import trace
from tokendynamics.diagnosis.verdict import Finding, Verdict, judge

__all__ = [
    "Convention",
    "Diagnosis",
    "Finding",
    "Verdict",
    "audit",
    "diagnose",
    "flow_of",
    "judge",
    "token_paths",
    "trace",
]
