"""Words about one token: singular where there is one."""

from __future__ import annotations

import re

import torch

import tokendynamics as td


def test_one_token_is_singular() -> None:
    start = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    texts = [
        str(result)
        for causal in (False, True)
        for result in td.check(td.Flow(td.Attention(eye, eye, causal=causal), td.Sphere()), start)
    ]
    plural = [text for text in texts if re.search(r"there are 1\b|\b1 (uniform )?tokens|exp\([−]?1 t\)", text)]
    assert not plural
    assert any("there is 1" in text for text in texts)
    assert any("1 uniform token in dim 3 shares an open half space" in text for text in texts)


def test_one_coordinate_is_singular() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    run = td.simulate(td.Flow(td.Attention(eye, eye), td.Sphere()), eye[:1], [0.0, 1.0])
    assert any("span reduction: 1 coordinate instead of 4" in note for note in run.notes)
