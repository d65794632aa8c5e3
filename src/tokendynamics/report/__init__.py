"""The report: a diagnosis as one self-contained HTML page that reads without network and without scripts."""

from tokendynamics.report.diagnosis._notebook import notebook_html, shares_chart
from tokendynamics.report.diagnosis._page import render_report, write_report

__all__ = ["notebook_html", "render_report", "shares_chart", "write_report"]
