"""One system of 8192 tokens in 64 dimensions, against the products and exponentials that nobody can avoid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.flows import equal_error, peers
from bench.flows.costs import costs
from bench.flows.equal_error import Contender, Entry, Race
from bench.flows.sphere_flow import SphereFlow
from bench.measure import NO_TARGET, NOTHING_COMPARED, Comparison, Cost, rounds_of, share
from tokendynamics.dynamics import Flow
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

TOKENS, DIM = 8192, 64
BLOCKS = (128, 256, 512, 1024)
ROUNDS = 5
ALLOWED = 50e6
RUN, RUN_QUICKLY, HORIZON = 2048, 512, 10.0
TARGETS = {"scipy DOP853": 1.2, "diffrax Tsit5": 1.2, "diffrax Dopri8": 1.2}
"""By how much the run of 512 tokens is to be faster at equal error."""
WANTED, REFERENCE_RTOL = 1e-9, 1e-12
_PARTS = ("products", "exponentials")
# The slopes of a Dormand–Prince step are seven states by themselves: the memory of a run is told and not judged.
_JUDGED = {"velocity": True, "simulate": False}

# VmHWM and not ru_maxrss: the latter starts from the resident size of the process that forked this one.
_MEASURE = """
import pathlib, sys
import torch
from bench.flows.long_sequence import flow_and_start
from tokendynamics.dynamics import simulate
torch.set_num_threads(int(sys.argv[1]))
def peak():
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
def work(tokens):
    flow, x = flow_and_start(tokens)
    if sys.argv[2] == "velocity":
        flow.velocity(x)
    else:
        simulate(flow, x, [0.0, 0.1], rtol=1e-6, engine="batched")
work(256)
footprint = peak()
work(int(sys.argv[3]))
print(peak() - footprint)
"""


def flow_and_start(tokens: int) -> tuple[Flow, Tensor]:
    """One head, full mask, constant matrices; and tokens on the sphere."""
    return _flow().ours(), Sphere().sample(tokens, DIM, seed=1)


def _flow() -> SphereFlow:
    generator = torch.Generator().manual_seed(0)
    qk, ov = torch.randn(2, 1, DIM, DIM, generator=generator, dtype=torch.float64) / 8
    return SphereFlow(qk, ov)


def entry(quick: bool) -> Entry:
    """A run of a shorter sequence: the peers hold all its logits at once, several times."""
    flow = _flow()
    contenders = [
        Contender("ours, dop853", lambda: peers.ours(flow, method="dop853"), 1),
        Contender("ours, dopri5", lambda: peers.ours(flow, method="dopri5"), 1),
        Contender("scipy DOP853", lambda: peers.scipy(flow), 1),
        Contender("torchdiffeq dopri5", peers.where_installed("torchdiffeq", flow), 1),
        Contender("torchode dopri5", peers.where_installed("torchode", flow), 1),
        Contender("diffrax Tsit5", peers.where_installed("diffrax", flow), 1),
        Contender("diffrax Dopri8", peers.where_installed("diffrax", flow, method="Dopri8"), 1),
    ]
    tokens = RUN_QUICKLY if quick else RUN
    return Entry(Sphere().sample(tokens, DIM, seed=1)[None], HORIZON, contenders)


def run(quick: bool = False) -> Iterator[Comparison | Cost]:
    """Time of a right-hand side, the memory that it and a run take, and a run beside others' solvers."""
    yield from _right_hand_side(1 if quick else ROUNDS)
    with limited_threads(1):
        taking_part = entry(quick)
        exact = peers.scipy(_flow())(taking_part.starts, HORIZON, REFERENCE_RTOL).states
        workload = f"one system of {taking_part.starts.shape[1]} × {DIM} to t = {HORIZON:g}"
        race = Race(workload, taking_part, HORIZON, exact, loosest=1e-3)
        timed = equal_error.run(race, WANTED, 7 if quick else 3)
        for other in taking_part.contenders[1:]:
            at_least = TARGETS.get(other.name) if quick else None
            yield equal_error.against(race, timed, WANTED, "ours, dop853", other.name, at_least)
        yield from costs("long_sequence", timed, taking_part.contenders, quick)


def _right_hand_side(rounds: int) -> Iterator[Comparison]:
    flow, x = flow_and_start(TOKENS)
    field = flow.field(x)
    works: dict[str, Callable[[], object]] = {"ours": lambda: field.velocity(x, 0.0)}
    for block in BLOCKS:
        works |= {f"products {block}": _products(x, block), f"exponentials {block}": _exponentials(block)}
    seconds = rounds_of(works, rounds)
    bounds = [sum(min(taken[f"{part} {block}"] for block in BLOCKS) for part in _PARTS) for taken in seconds]
    # A share of the bound's rate: right-hand sides per second of each.
    rates = [(1 / taken["ours"], 1 / bound) for taken, bound in zip(seconds, bounds, strict=True)]
    exact = _blockwise(flow, x)
    difference = float((field.velocity(x, 0.0) - exact).abs().max() / exact.abs().max())
    name = f"one system of {TOKENS} × {DIM}"
    yield share(
        f"{name}, right-hand side, of the rate of both products in blocks and token² exponentials in cache",
        rates, at_least=0.75, error=f"differs from a plain softmax by {difference:.0e} of the largest", unit="/s",
    )  # fmt: skip
    for work in _JUDGED:
        yield _memory(name, work, x.numel() * x.element_size())


def _products(x: Tensor, block: int) -> Callable[[], object]:
    """``Q K^T`` and ``W V`` in blocks of rows, in memory set aside beforehand."""
    scores, mixed = torch.empty(block, TOKENS, dtype=x.dtype), torch.empty_like(x)
    keys = x.mT.contiguous()

    def work() -> None:
        for start in range(0, TOKENS, block):
            rows = slice(start, start + block)
            torch.mm(x[rows], keys, out=scores)
            torch.mm(scores, x, out=mixed[rows])

    return work


def _exponentials(block: int) -> Callable[[], object]:
    """token² exponentials of numbers between −1 and 0, a block that stays in cache at a time."""
    size = block * 128
    numbers, results = torch.linspace(-1, 0, size, dtype=torch.float64), torch.empty(size, dtype=torch.float64)

    def work() -> None:
        for _ in range(TOKENS * TOKENS // size):
            torch.exp(numbers, out=results)

    return work


def _blockwise(flow: Flow, x: Tensor) -> Tensor:
    qk, ov = flow.attention.qk.matrix_at(0.0)[0], flow.attention.ov.matrix_at(0.0)[0]
    pull = torch.cat([torch.softmax(rows @ qk @ x.mT, dim=-1) @ x for rows in x.split(256)]) @ ov.mT
    pull = flow.weight_factor * pull
    return pull - (x * pull).sum(dim=-1, keepdim=True) * x


def _memory(name: str, work: str, state: int) -> Comparison:
    command = [sys.executable, "-c", _MEASURE, str(torch.get_num_threads()), work, str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    beyond = int(done.stdout) - state
    ratio, limit = beyond / ALLOWED, f"{ALLOWED / 1e6:g} MB"
    what = "a right-hand side" if work == "velocity" else "a run of the batched engine"
    target = f"under {limit}" if _JUDGED[work] else NO_TARGET
    return Comparison(
        f"{name}, peak of {what} beyond the state of {state / 1e6:.1f} MB, against {limit}",
        beyond / 1e6, ALLOWED / 1e6, ratio, (ratio, ratio), target, ratio < 1 or not _JUDGED[work],
        NOTHING_COMPARED, "MB",
    )  # fmt: skip
