"""Pages of training: one run, a study of many, and what a monitor saw of any run."""

from tokendynamics.report.training._monitor_page import render_monitor, write_monitor
from tokendynamics.report.training._run_page import render_run, write_run
from tokendynamics.report.training._study_page import render_study, write_study

__all__ = ["render_monitor", "render_run", "render_study", "write_monitor", "write_run", "write_study"]
