"""Each choice the numbers hang on, in a sentence, with what would change if it were otherwise."""

from __future__ import annotations

import xarray as xr

from tokendynamics.diagnosis.result import Convention
from tokendynamics.diagnosis.verdict import COLLAPSED, NEUTRAL


def conventions_of(audit: xr.Dataset, trace: xr.Dataset) -> tuple[Convention, ...]:
    """Return the conventions recorded in two datasets, in words.

    Args:
        audit: From `tokendynamics.diagnosis.audit`.
        trace: From `tokendynamics.diagnosis.trace`.
    """
    return (
        Convention(
            "Value map",
            {"V": "V is W_V, each group's repeated for the heads that share it", "VO": "V is Σ_h W_V W_O"}[
                audit.attrs["value_map"]
            ],
            "the other choice changes A, and with it the regime, but not W",
        ),
        Convention(
            "Norm folding",
            f"the gain of the norm before attention is {audit.attrs['fold_norms']}",
            "folding it rescales rows of W_Q, W_K and W_V: signs per head stay nearly all the same, sizes do not",
        ),
        Convention(
            "Singular value maps",
            {
                "undefined": "A is reported as undefined where V is singular",
                "pinv": "A uses the pseudo-inverse where V is singular",
            }[audit.attrs["singular"]],
            "a pseudo-inverse gives signs for A that no statement of the theory is about",
        ),
        Convention("Scaling", audit.attrs["scaling"], "eigenvalues would be √d_head times larger"),
        Convention(
            "Near zero",
            audit.attrs["near_zero_threshold"],
            "an absolute threshold counts more in a network with small weights; cond(V) stands beside it",
        ),
        Convention("Balance", audit.attrs["balance"], "the two balances of ov differ where ov is far from symmetric"),
        Convention(
            "Sinks",
            trace.attrs["sinks"],
            "with them, the raw effective rank reads about 1 and E compares every token with the sink",
        ),
        Convention("Consensus E", trace.attrs["consensus"], "without |·| an antipodal pair would not count as agreed"),
        Convention(
            "Effective rank",
            trace.attrs["effective_rank"],
            "from the singular values themselves (Roy and Vetterli) it is larger",
        ),
        Convention(
            "Sites",
            trace.attrs["sites"],
            "one state a layer would hide which part moved it, and reading the last one after a final norm mixes in "
            "the norm's effect",
        ),
        Convention("Who does it", trace.attrs["component_change"], "with sinks, their few pairs would blur the sums"),
        Convention(
            "Layer badges",
            f"neutral when the mean pair cosine changes by at most {NEUTRAL:g}; collapsed from {COLLAPSED:g}",
            "a wider band calls more layers neutral",
        ),
        Convention("Precision", trace.attrs["precision"], "half precision adds noise of about 1e-3 to each cosine"),
        Convention(
            "Tokenization",
            "the model's own tokenizer" if trace.attrs["tokenization"] == "own" else trace.attrs["tokenization"],
            "other tokens are other particles",
        ),
    )
