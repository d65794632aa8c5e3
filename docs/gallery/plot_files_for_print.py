"""
Files for print
===============

`td.figures.save` writes PNG, SVG or PDF by the suffix, and the same figure gives the same bytes. Text stays text.
"""

import tempfile
from pathlib import Path

import tokendynamics as td

identity = [[1.0, 0.0], [0.0, 1.0]]
run = td.simulate(
    td.Flow(td.Attention(identity, identity), td.Sphere()),
    td.Sphere().sample(5, 2, seed=9),
    range(21),
)
figure = td.figures.distances(
    run, geometry="sphere", log="values", width=td.figures.SINGLE
)
folder = Path(tempfile.mkdtemp())
for suffix in ("pdf", "svg", "png"):
    path = td.figures.save(figure, folder / f"angles.{suffix}")
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
figure
