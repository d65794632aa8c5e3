"""Flows of tokens under attention and their simulation.

`simulate` has seven engines: "batched" (Dormand–Prince pairs in PyTorch, step control for each system by itself),
"compiled" (the same for very many small systems, eight side by side in the vectors of the processor, by numba of the
extra `fast`; it knows no spaces, positions, events or functions of time of your own), "stiff" (SciPy's LSODA with
the analytic Jacobian, for long horizons), "layers" (the discrete model: times count layers of step `tau`, with the
factor `residual` of the state itself), "hardmax" (hardmax weights in free space, by the exponential of a matrix from
change to change), "fixed" (equal steps of `method`, differentiable), "sde" (equal steps with `noise`, differentiable
along the noise that was drawn). "auto" takes "sde" if `noise` is given, "fixed" if `step` is, "hardmax" for such
weights, "stiff" for small systems over long horizons, "compiled" where the work of all systems is worth
compiling for (from 10,000 of 10 tokens on, or 1,630 of 32) and it is installed, and "batched" otherwise; the trajectory
says which. The compiler takes some seconds the first time that it meets a number of features, a method or a kind of
flow; what it made is kept on disk.

Where no `method` is given, "batched" and "compiled" take "dop853", of order 8, from an rtol on at which it needs less
work than "dopri5", of order 5; the notes say which and why. Output times and events within a step cost "dop853" three
more right-hand sides.

A run continues from a trajectory: systems that reached its end start there, and schedules go on at its time; systems
that ended before keep their status, end time and last state and are not run. The new trajectory has its own times only.

A function of time is asked within the run only, at the times at which steps ask; no step passes an output time.
`max_step` bounds every step, `jumps` declares where functions jump, and notes say what may have been missed.

With ``frame="rescaled"`` the tokens of a free flow are ``z = exp(−t V) x``, V = Σ_h ov_h times the factor of the
weights: tokens that diverge have a limit there, z is x at t = 0, and x0, states, events, statuses and observables are
those of z. It asks for softmax or hardmax weights, no positions, and constant ov_h that commute with V. Logits keep
their size in logarithms; where they differ by more than floats hold, the softmax is a hardmax. "layers" has no such
frame, and "compiled" has it where ov is a multiple of the identity and qk constant.

With ``noise=Noise(strength, seed)`` tokens make Brownian motions beside the flow, in free space, on spheres and on
ellipsoids: a step of Heun's method stands between two halves of noise, and errors in law are of order `step`². The
numbers of a system depend on seed, place and step alone: they go on where a run continues, as if it had not stopped
(with another seed, others), and no other system changes them. Events are looked at where steps end.

A system whose run cannot be completed does not raise: its status says why, and its states are held from there. In free
space a system whose norm exceeds 1e100 (1e15 in float32) ends as "diverged", and the trajectory's notes warn where
tokens come near `atol`, which is then all that controls them.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
