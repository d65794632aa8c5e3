"""
A moving picture
================

`td.figures.animate` writes a GIF, or an MP4 where ffmpeg is installed. Each frame shows a state that was saved.
"""

import tempfile
from pathlib import Path

import numpy as np

import tokendynamics as td

identity = np.eye(3)
flow = td.Flow(td.Attention(identity, identity), td.Sphere())
run = td.simulate(flow, td.Sphere().sample(10, 3, seed=8), np.linspace(0, 10, 21))
path = Path(tempfile.mkdtemp()) / "tokens-on-a-sphere.gif"
td.figures.animate(run, path, frames_per_second=10, dots_per_inch=80)
print(f"{path.stat().st_size / 1000:.0f} kB")
path
