"""
Logic in the attention, or not
==============================

The query–key matrix of two exact transformers for the same task: one reads the previous position and leaves the
logic to the feed-forward part, the other holds the table q_true in its attention.
"""

import torch

import tokendynamics as td
from tokendynamics.circuits import PairTask, constructions, functionals

task = PairTask(functionals.random_functional(4, seed=0), positions=5)
models = {
    "solution 1: feed-forward part": constructions.solution_1(task),
    "solution 2: attention": constructions.solution_2(task),
}
blocks = {"category": 4, "position": 5}
figure, panels = td.figures.panels(
    2, width=td.figures.DOUBLE, height=3.2, titles=list(models)
)
for model, panel in zip(models.values(), panels, strict=True):
    td.figures.heat_map(
        torch.as_tensor(model.qk).squeeze(0), blocks=blocks, cells="signs", axes=panel
    )
figure
