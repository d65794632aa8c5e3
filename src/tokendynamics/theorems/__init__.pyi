"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from ._closed_forms import predict_equiangular as predict_equiangular
from ._closed_forms import predict_gaussian_moments as predict_gaussian_moments
from ._closed_forms import predict_interaction_window as predict_interaction_window
from ._closed_forms import predict_long_context as predict_long_context
from ._closed_forms import predict_noise_transition as predict_noise_transition
from ._closed_forms import predict_position_correlation as predict_position_correlation
from ._closed_forms import predict_strong_centers as predict_strong_centers
from ._closed_forms import predict_two_clusters as predict_two_clusters
from ._families import Family as Family
from ._search import Search as Search
from ._search import search_counterexample as search_counterexample
from ._statement import PAPERS as PAPERS
from ._statement import Statement as Statement
from .atlas import ATLAS as ATLAS
from .registry import certify as certify
from .registry import check as check
from .result import Certificate as Certificate
from .result import Check as Check
from .result import Condition as Condition
from .result import Hypothesis as Hypothesis
from .result import Prediction as Prediction
from .statements import STATEMENTS as STATEMENTS
