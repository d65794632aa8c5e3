"""Reads a page back: the rows of its tables, and of the files that it offers."""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from typing import Any
from urllib.parse import unquote

import numpy as np

from tokendynamics.report import page

AFTER = {
    "embedding": "feed_forward",
    "attention": "attention",
    "feed-forward": "feed_forward",
    "final norm": "final_norm",
}
"""The site of the trace that a table means."""


def page_of(result: Any) -> str:
    """The page of a result, with plain spaces where no line may end."""
    return plain_spaces(page(result))


def plain_spaces(text: str) -> str:
    """A text with plain spaces where no line may end."""
    return text.replace("\u00a0", " ")


def figure_of(page: str, figure: str) -> str:
    """The markup of a figure."""
    part = page[page.index(f'<figure id="{figure}">') :]
    return part[: part.index("</figure>")]


def table_of(page: str, figure: str) -> list[list[str]]:
    """The texts of the rows of a figure's table."""
    part = figure_of(page, figure)
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def saved(page: str, name: str) -> list[list[str]]:
    """The rows of the CSV that a page offers under a name, the heads first."""
    found = re.search(rf'href="data:text/csv;charset=utf-8,([^"]*)" download="{name}.csv"', page)
    assert found is not None
    return list(csv.reader(io.StringIO(unquote(found[1]))))


def value_of(text: str) -> float:
    """Reads back a number as the page writes it."""
    if text == "undefined":
        return float("nan")
    mantissa, _, power = text.replace("−", "-").replace(",", "").partition(" × 10")
    exponent = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(mantissa) * 10.0 ** int(exponent or 0)


def close(texts: list[str], values: np.ndarray) -> bool:
    """Whether texts are these numbers, to the digits of a page."""
    return np.allclose([value_of(text) for text in texts], np.asarray(values, float), rtol=6e-4, equal_nan=True)
