"""Studies: many training runs with paired seeds, their differences with intervals, and a verdict for each claim.

`study` trains the runs that a file describes and `open_study` reads what they left; `read_plan` and `parse_plan` check
a file without running it. `docs/study.md` shows what a file may say.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
