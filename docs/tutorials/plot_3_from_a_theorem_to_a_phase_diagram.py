"""
From a theorem to a phase diagram
=================================

*At the end you know which theorem applies to a flow, what it predicts, and how to see it in a figure for a paper.*

A flow is a pair of circuits and a space. Twelve tokens start on the sphere; both circuits are the identity.
"""

import tokendynamics as td

identity = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
flow = td.Flow(td.Attention(identity, identity), td.Sphere())
start = td.Sphere().sample(12, 3, seed=1)

# %%
# Which statements apply
# ----------------------
#
# `td.check` measures the hypotheses of every statement before anything runs.

applicable = [row for row in td.check(flow, start) if row.applies]
for row in applicable:
    print(row.statement, row.prediction)
assert "asymptotic-3.1" in {row.statement for row in applicable}
