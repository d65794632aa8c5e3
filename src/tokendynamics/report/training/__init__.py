"""Pages of training: one run, and a study of many."""

from tokendynamics.report.training._run_page import render_run, write_run
from tokendynamics.report.training._study_page import render_study, write_study

__all__ = ["render_run", "render_study", "write_run", "write_study"]
