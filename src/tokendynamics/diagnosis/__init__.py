"""What a checkpoint's weights predict, what its tokens do, and the verdict in plain sentences.

Each folder holds measures, their result and its sentences: `auditing` (audit), `tracing` (trace, shared_directions,
source_tokens), `gating` (levers, head_effects, joint_levers, remedies, what_if), `deepening` (passes, deeper) and
`comparing` (compare); verdict and diagnosis are above them. None is named like a function: as an attribute of this
package, a folder `audit` would hide `audit`.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
