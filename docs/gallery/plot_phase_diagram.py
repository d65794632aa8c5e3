"""
A phase diagram
===============

How often do tokens on a sphere agree by time 20? A sweep runs twelve random starts for each :math:`\\beta` and number
of tokens. The line stands where the share is one half, dashed lines at the ends of 95 % intervals.
"""

import tempfile

from distributed import Client

import tokendynamics as td
from tokendynamics.specification.examples import example_text
from tokendynamics.sweeps import fractions, parse_plan

changes = {
    "draws = 200": "draws = 12",
    "high = 30.0\npoints = 10": "high = 10.0\npoints = 6",
    "[2, 3, 4, 6, 8, 12, 16]": "[2, 4, 8, 16]",
    '["outcome", "clusters", "consensus_signed"]': '["outcome"]',
}
text = example_text("temperature", "sweep")
for old, new in changes.items():
    text = text.replace(old, new)
plan = parse_plan(text, "temperature.toml")
with (
    tempfile.TemporaryDirectory() as folder,
    Client(processes=False, dashboard_address=None) as client,
):
    outcomes = td.sweep(plan, f"{folder}/temperature.zarr", scheduler=client).load()
td.figures.phase_diagram(fractions(outcomes))
