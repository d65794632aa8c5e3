"""Speed and memory as ratios measured in one run; ``make bench`` prints the table."""

import os

# Read when numpy is first imported. Its products here are 10 × 3 to 50 × 500: a second thread would only wait, and
# solvers are compared per core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
