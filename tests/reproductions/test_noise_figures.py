"""The figure of the phases of noise: rests of infinitely many tokens by another route, and its rows."""

from __future__ import annotations

import numpy as np
import pytest

from reproductions.noise import phases


@pytest.mark.parametrize(("beta", "mean"), [(1.0, 0.4), (4.0, 0.7)])
def test_a_rest_is_one_of_the_equation_of_the_density(beta: float, mean: float) -> None:
    """Drift and noise balance: ρ' / 2 = K ρ (sin-kernel * ρ), by derivatives of Fourier series."""
    density, coupling = phases.density(beta, mean)
    size = len(density)
    angles = 2 * np.pi * np.arange(size) / size
    apart = angles - angles[:, None]
    drift = coupling * (np.exp(beta * np.cos(apart)) * np.sin(apart)) @ density / size
    slope = np.fft.ifft(1j * np.fft.fftfreq(size, 1 / size) * np.fft.fft(density)).real
    assert np.abs(slope / 2 - drift * density).max() < 1e-9
    assert (density * np.cos(angles)).mean() == pytest.approx(mean, abs=1e-10)
    assert density.mean() == pytest.approx(1)


@pytest.mark.slow
def test_rows_hold_and_the_figure_has_a_line_for_each_beta() -> None:
    record = phases.reproduce(tokens=120, horizon=20.0)
    assert {quantity.name for quantity in record.failures} <= {record.quantities[-1].name}
    panel = phases.draw(record).axes[0]
    assert len(panel.lines) >= len(phases.CALM) + len(phases.SHARP)
