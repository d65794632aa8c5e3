"""
Three fates in free space
=========================

The largest norm of four tokens: it falls like t^(−1/2), grows like e^t, or escapes although both forms have the
signs of convergence.
"""

import torch

import tokendynamics as td

identity = torch.eye(2, dtype=torch.float64)
start = torch.tensor(
    [[1.0, 0.2], [0.4, 0.9], [-0.6, 0.5], [0.1, -0.8]], dtype=torch.float64
)
logits = torch.tensor([[1.0, 2.0], [-2.0, 1.0]], dtype=torch.float64)
turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
systems = {
    "A ≺ 0: to zero": (identity, -identity),
    "ov = I: apart": (identity, identity),
    "A_sym ≺ 0, A not symmetric": (logits, turned),
}
assert (
    td.spectra.regime(identity, -identity).name
    == td.spectra.regime(logits, turned).name
    == "convergence"
)
times = torch.cat(
    [
        torch.zeros(1, dtype=torch.float64),
        torch.logspace(-1, 2, 61, dtype=torch.float64),
    ]
)
largest = []
for qk, ov in systems.values():
    run = td.simulate(
        td.Flow(td.Attention(qk, ov), td.Free()),
        start,
        times,
        events=[td.events.NormAbove(1000)],
    )
    largest.append(
        run.states.norm(dim=-1).amax(dim=-1).nan_to_num(nan=1000).clamp(max=1000)
    )

figure = td.figures.over_time(
    times,
    torch.stack(largest),
    "largest norm, up to 1000",
    names=list(systems),
    log="both",
)
figure.axes[0].set_ylim(top=1e5)
figure
