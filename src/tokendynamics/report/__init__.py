"""The report: a diagnosis as one self-contained HTML page that reads without network and without scripts."""

from tokendynamics.report.diagnosis._page import render_report, write_report

__all__ = ["render_report", "write_report"]
