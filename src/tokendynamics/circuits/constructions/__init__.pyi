"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from .comparison import check_equivalence as check_equivalence
from .comparison import compare as compare
from .solutions import linear_case as linear_case
from .solutions import mixture as mixture
from .solutions import softmax_solution_1 as softmax_solution_1
from .solutions import softmax_solution_2 as softmax_solution_2
from .solutions import softmax_solution_3 as softmax_solution_3
from .solutions import solution_1 as solution_1
from .solutions import solution_2 as solution_2
from .solutions import solution_3 as solution_3
