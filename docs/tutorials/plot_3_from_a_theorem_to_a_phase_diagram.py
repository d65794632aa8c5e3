r"""
From a theorem to a phase diagram
=================================

*At the end you know which theorem applies to a flow, can check what it predicts, and have drawn a figure for a paper of
the region that no theorem covers.*
"""

import numpy as np

import tokendynamics as td

# %%
# A flow is attention on a space
# ------------------------------
#
# A head is two matrices: `qk` gives the logits and `ov` what is moved. Here `qk = β I` and `ov = I`, on the unit
# sphere.

identity = np.eye(3)


def flow_of(beta):
    return td.Flow(
        td.Attention(beta * identity, identity, normalization="plain"), td.Sphere()
    )


start = td.Sphere().sample(12, 3, seed=1)

# %%
# Which statements apply
# ----------------------
#
# `td.check` measures the hypotheses of every statement before anything runs.

for check in td.check(flow_of(1.0), start):
    if check.applies:
        print(check.statement, "→", check.prediction)

# %%
# The start lies in no open half sphere, so that Theorem 4.1, which has a rate, does not apply. The check says so:

(check,) = [
    check
    for check in td.check(flow_of(1.0), start)
    if check.statement == "asymptotic-4.1"
]
print(check.applies, check.reasons)
assert not check.applies

# %%
# Put the tokens into a half sphere, and it does, with a rate:

half = start.clone()
half[half[:, 0] < 0.1] *= -1
half = half[half[:, 0] > 0.1]
(check,) = [
    check
    for check in td.check(flow_of(1.0), half)
    if check.statement == "asymptotic-4.1"
]
print(check.prediction)
assert check.applies

# %%
# Does the run agree? `td.certify` evaluates every conclusion on the trajectory. It can fail.

run = td.simulate(flow_of(1.0), half, np.linspace(0, 20, 41))
certificates = {certificate.statement: certificate for certificate in td.certify(run)}
print(certificates["asymptotic-4.1"])
assert certificates["asymptotic-4.1"].outcome == "holds"

# %%
# Where no theorem gives a time
# -----------------------------
#
# From a general start the tokens also meet, but how long it takes depends on β: for large β they first form
# clusters that last very long. The sweep runs 20 starts for each β and number of tokens, to time 20.

from tokendynamics.figures import phase_diagram
from tokendynamics.specification.examples import example_text
from tokendynamics.sweeps import fractions, parse_plan

text = (
    example_text("temperature", "sweep")
    .replace("draws = 200", "draws = 20")
    .replace("points = 10", "points = 6")
)
text = text.replace("values = [2, 3, 4, 6, 8, 12, 16]", "values = [2, 4, 8, 16]")
plan = parse_plan(text, "temperature.toml")
print(plan.systems, "systems")

# %%
# Normally `td.sweep(plan, "temperature.zarr")` starts its own processes; here one thread is enough.

import tempfile

from distributed import Client

with (
    tempfile.TemporaryDirectory() as folder,
    Client(processes=False, dashboard_address=None) as client,
):
    outcomes = td.sweep(plan, f"{folder}/temperature.zarr", scheduler=client).load()
shares = fractions(outcomes)
agreed = shares.fraction.sel(outcome="consensus")
print(agreed.to_pandas().round(2))
assert agreed.isel(beta=0).min() > 0.9 > agreed.isel(beta=-1).sel(tokens=16)

# %%
# The figure: an area for each outcome, its border where the share is one half, and dashed lines at the ends of
# the 95 % intervals. `td.figures.save` writes it as PDF, at the width of a column.

phase_diagram(shares)

# %%
# Exercises
# ---------
#
# 1. Let the runs go to time 200 (`times = [0.0, 20.0]`). In which direction does the border move, and by how much?
# 2. Use the causal mask. Which statement applies now, and whom do the tokens meet?
# 3. Replace `ov` by `-I`. What does `td.check` say, and what do you see?
