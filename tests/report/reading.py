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
    match = re.search(rf'href="data:text/csv;charset=utf-8,([^"]*)" download="{name}.csv"', page)
    assert match is not None
    return list(csv.reader(io.StringIO(unquote(match[1]))))


def value_of(text: str) -> float:
    """Reads back a number as the page writes it."""
    if text == "undefined":
        return float("nan")
    mantissa, _, power = text.replace("−", "-").replace(",", "").partition(" × 10")
    exponent = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(mantissa) * 10.0 ** int(exponent or 0)


def unit_of(text: str) -> float:
    """One unit of the last place of a number as the page writes it; 0 for a zero, which is exact."""
    if text == "0":
        return 0.0
    mantissa, _, power = text.partition(" × 10")
    return abs(value_of(f"1 × 10{power}" if power else "1")) * 10.0 ** -len(mantissa.partition(".")[2])


def close(texts: list[str], values: np.ndarray) -> bool:
    """Whether texts are these numbers, rounded to the places that they show."""
    units = np.array([unit_of(text) for text in texts])
    shown, wanted = np.array([value_of(text) for text in texts]), np.asarray(values, float)
    same = np.abs(shown - wanted) <= (0.5 + 1e-6) * units + 1e-12
    return bool(np.all(same | (np.isnan(shown) & np.isnan(wanted))))


def ragged(page: str) -> list[tuple[str, str, str]]:
    """Columns of tables in which two numbers have different decimal places: table, the first number, and the other.

    A number below one unit of the column's last place stands by itself, and so does a power of ten.
    """
    pairs = []
    for part in re.findall(r"<table.*?</table>", page, re.DOTALL):
        body = re.findall(r"<tr>(.*?)</tr>", part[part.index("<tbody>") :], re.DOTALL)
        rows = [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in body]
        for entries in zip(*rows, strict=True):
            numbers = [entry for entry in entries if re.fullmatch(r"[+−]?[\d,]+(\.\d+)?", entry) and value_of(entry)]
            if not any("." in entry for entry in numbers):
                continue
            largest = max(numbers, key=lambda entry: abs(value_of(entry)))
            pairs += [
                (part[:200], largest, entry)
                for entry in numbers
                if unit_of(entry) != unit_of(largest) and abs(value_of(entry)) >= unit_of(largest)
            ]
    return pairs
