r"""
Where does a small transformer do its logic?
============================================

*At the end you can set a one-layer transformer by hand, decide by experiments which part computes, and see why one
experiment alone can mislead.*

The task: categories :math:`X_1 \ldots X_M`; for each token the answer is :math:`q(X_{i-1}, X_i)`, any table of two
adjacent categories.
"""

import torch

from tokendynamics.circuits import PairTask, constructions, functionals
from tokendynamics.circuits.evidence import evidence

task = PairTask(functionals.random_functional(4, seed=0), positions=8)
print(task)

# %%
# Three transformers that solve it
# --------------------------------
#
# In the first, attention only brings the previous category, and the feed-forward part recognizes the pair. In the
# second, the table *is* the query-key circuit. The third looks up a row by attention and selects from it.

networks = {
    "solution 1": constructions.solution_1(task),
    "solution 2": constructions.solution_2(task),
    "solution 3": constructions.solution_3(task),
}
x = torch.tensor([[1, 3, 2, 2, 4, 1, 3, 4]])
for name, network in networks.items():
    error = (network(x) - task.targets(x)).abs().max()
    print(f"{name}: largest error {error:.1e}")
    assert error < 1e-9

# %%
# The same answers, so the answers do not tell which part computes.
#
# Five instruments, one verdict
# -----------------------------
#
# `evidence` patches and ablates each part, and says which experiments decide.

for network in networks.values():
    print(evidence(network, task))
assert evidence(networks["solution 1"], task).verdict == "feed-forward"
assert evidence(networks["solution 2"], task).verdict == "attention"

# %%
# A mixture
# ---------
#
# Two heads: one computes a share of the table in attention, the rest is left to the feed-forward part. No single
# place holds the logic, and the verdict says so.

mixed = constructions.mixture(task, 0.5)
verdict = evidence(mixed, task)
print(verdict)
assert verdict.verdict == "both"

# %%
# Exercises
# ---------
#
# 1. At which share does the verdict of the mixture change, and how does it depend on the threshold?
# 2. Train one: `tokendynamics circuits learn combined --out learned`, then `tokendynamics circuits evidence learned`.
# 3. `constructions.solution_1(task, form="printed")` is the construction as the paper prints it. For which pairs
#    is it wrong?
