"""What a checkpoint's weights predict, what its tokens do, and the verdict in plain sentences."""

from tokendynamics.diagnosis._attention_seen import attention_seen
from tokendynamics.diagnosis._audit import audit
from tokendynamics.diagnosis._diagnose import diagnose
from tokendynamics.diagnosis._network_flow import flow_of
from tokendynamics.diagnosis._result import Convention, Diagnosis
from tokendynamics.diagnosis._token_paths import token_paths
from tokendynamics.diagnosis._trace import trace
from tokendynamics.diagnosis._verdict import Finding, Verdict, judge

__all__ = [
    "Convention", "Diagnosis", "Finding", "Verdict", "attention_seen", "audit", "diagnose", "flow_of", "judge",
    "token_paths", "trace",
]  # fmt: skip
