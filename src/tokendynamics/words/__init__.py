"""How numbers, intervals, lists and findings are written: one notation for terminal, pages and documents."""

from tokendynamics.words._findings import Convention, Finding
from tokendynamics.words._intervals import estimate, interval, is_share, percent_estimate, places_for, share
from tokendynamics.words._manifest import duration, manifest_entries, moment, written
from tokendynamics.words._numbers import (
    UNDEFINED,
    column,
    count,
    exponential,
    factor,
    fixed,
    multiple,
    number,
    number_of_log,
    percent,
    power_of_ten,
    signed,
)
from tokendynamics.words._phrases import in_layers, indefinite, listing, plural, ranges, sentence

__all__ = [
    "UNDEFINED",
    "Convention",
    "Finding",
    "column",
    "count",
    "duration",
    "estimate",
    "exponential",
    "factor",
    "fixed",
    "in_layers",
    "indefinite",
    "interval",
    "is_share",
    "listing",
    "manifest_entries",
    "moment",
    "multiple",
    "number",
    "number_of_log",
    "percent",
    "percent_estimate",
    "places_for",
    "plural",
    "power_of_ten",
    "ranges",
    "sentence",
    "share",
    "signed",
    "written",
]
