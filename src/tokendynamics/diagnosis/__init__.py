"""What a checkpoint's weights predict, what its tokens do, and the verdict in plain sentences."""

from tokendynamics.diagnosis._attention_seen import attention_seen
from tokendynamics.diagnosis._audit import audit
from tokendynamics.diagnosis._compare import compare
from tokendynamics.diagnosis._decode import decode
from tokendynamics.diagnosis._deeper import deeper
from tokendynamics.diagnosis._deeper_found import Deeper
from tokendynamics.diagnosis._diagnose import diagnose
from tokendynamics.diagnosis._heads import head_effects
from tokendynamics.diagnosis._levers import levers
from tokendynamics.diagnosis._levers_found import Levers
from tokendynamics.diagnosis._logit_lens import logit_lens
from tokendynamics.diagnosis._network_flow import flow_of
from tokendynamics.diagnosis._prediction import prediction_against_trace
from tokendynamics.diagnosis._repeated_texts import repeated_texts
from tokendynamics.diagnosis._token_clusters import token_clusters
from tokendynamics.diagnosis._token_paths import token_paths
from tokendynamics.diagnosis._what_if import what_if
from tokendynamics.diagnosis.comparison import Comparison
from tokendynamics.diagnosis.repeated_passes import passes
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.tracing import trace
from tokendynamics.diagnosis.verdict import Verdict, judge
from tokendynamics.words import Convention, Finding

__all__ = [
    "Comparison", "Convention", "Deeper", "Diagnosis", "Finding", "Levers", "Verdict", "attention_seen", "audit",
    "compare", "decode", "deeper", "diagnose", "flow_of", "head_effects", "judge", "levers", "logit_lens", "passes",
    "prediction_against_trace", "repeated_texts", "token_clusters", "token_paths", "trace", "what_if",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
