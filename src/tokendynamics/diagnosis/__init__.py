"""What a checkpoint's weights predict, what its tokens do, and the verdict in plain sentences.

Each folder holds measures, their result and its sentences: `auditing` (audit), `tracing` (trace, shared_directions,
source_tokens), `gating` (levers, head_effects, joint_levers, remedies, what_if), `deepening` (passes, deeper) and
`comparing` (compare); verdict and diagnosis are above them. None is named like a function: as an attribute of this
package, a folder `audit` would hide `audit`.
"""

from tokendynamics.diagnosis._diagnose import diagnose
from tokendynamics.diagnosis._network_flow import NearStatement, flow_of, nearest_statements
from tokendynamics.diagnosis.auditing._audit import audit
from tokendynamics.diagnosis.comparing._compare import compare
from tokendynamics.diagnosis.comparing.result import Comparison
from tokendynamics.diagnosis.deepening._decode import decode, logit_lens
from tokendynamics.diagnosis.deepening._deeper import deeper
from tokendynamics.diagnosis.deepening.repeated_passes import passes
from tokendynamics.diagnosis.deepening.result import Deeper
from tokendynamics.diagnosis.gating._heads import head_effects
from tokendynamics.diagnosis.gating._joint import joint_levers
from tokendynamics.diagnosis.gating._levers import levers
from tokendynamics.diagnosis.gating._remedies import remedies
from tokendynamics.diagnosis.gating._result import Levers
from tokendynamics.diagnosis.gating._what_if import what_if
from tokendynamics.diagnosis.result import Diagnosis
from tokendynamics.diagnosis.tracing._attention_seen import attention_seen
from tokendynamics.diagnosis.tracing._directions import shared_directions
from tokendynamics.diagnosis.tracing._one_prompt import token_clusters, token_paths
from tokendynamics.diagnosis.tracing._source_tokens import source_tokens
from tokendynamics.diagnosis.tracing.measure import trace
from tokendynamics.diagnosis.tracing.prompts import repeated_texts
from tokendynamics.diagnosis.verdict import Verdict, judge
from tokendynamics.words import Convention, Finding

__all__ = [
    "Comparison", "Convention", "Deeper", "Diagnosis", "Finding", "Levers", "NearStatement", "Verdict",
    "attention_seen", "audit", "compare", "decode", "deeper", "diagnose", "flow_of", "head_effects", "joint_levers",
    "judge", "levers", "logit_lens", "nearest_statements", "passes", "remedies", "repeated_texts",
    "shared_directions", "source_tokens", "token_clusters", "token_paths", "trace", "what_if",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
