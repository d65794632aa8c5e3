"""How numbers, intervals, lists and findings are written: one notation for terminal, pages and documents."""

from tokendynamics.words._numbers import (
    UNDEFINED,
    column,
    count,
    digits_apart,
    estimate,
    exponential,
    factor,
    fixed,
    interval,
    is_share,
    multiple,
    number,
    number_of_log,
    percent,
    percent_estimate,
    places_beyond_zero,
    places_for,
    places_that_add,
    power_of_ten,
    share,
    signed,
)
from tokendynamics.words._phrases import (
    Convention,
    Finding,
    duration,
    in_layers,
    indefinite,
    listing,
    manifest_entries,
    moment,
    plural,
    ranges,
    sentence,
    written,
)

__all__ = [
    "UNDEFINED", "Convention", "Finding", "column", "count", "digits_apart", "duration", "estimate", "exponential",
    "factor", "fixed", "in_layers", "indefinite", "interval", "is_share", "listing", "manifest_entries", "moment",
    "multiple", "number", "number_of_log", "percent", "percent_estimate", "places_beyond_zero", "places_for",
    "places_that_add", "plural", "power_of_ten", "ranges", "sentence", "share", "signed", "written",
]  # fmt: skip
