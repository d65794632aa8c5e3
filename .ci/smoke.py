"""What an installed wheel must do, run from outside the source tree: `make dist`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import tokendynamics as td
from tokendynamics.report import explore


def main() -> int:
    """Simulate, check, diagnose and write both kinds of page with nothing but what the wheel brought."""
    package = Path(td.__file__).parent
    assert "site-packages" in package.parts, f"expected the installed package, got {package}"
    assert files("tokendynamics").joinpath("py.typed").is_file()
    assert td.__version__ == version("tokendynamics")
    identity = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    flow = td.Flow(td.Attention(identity, identity), td.Sphere())
    start = td.Sphere().sample(6, 3, seed=1)
    run = td.simulate(flow, start, [0.0, 200.0])
    assert float(td.observables.diameter(run.states[-1])) < 1e-6
    assert any(check.applies for check in td.check(flow, start))
    with tempfile.TemporaryDirectory() as folder:
        page = explore(Path(folder) / "explorer.html")
        assert "<canvas" in page.read_text(encoding="utf-8")
        command = str(Path(sys.executable).parent / "tokendynamics")
        listed = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)  # noqa: S603
        assert td.__version__ in listed.stdout
        tokens = td.load("random:distilgpt2:0")
        diagnosis = td.diagnose(tokens, [[5, 9, 7], [12, 3, 4], [1, 2, 8]], levers=False, heads=False, baseline=None)
        report = diagnosis.report(Path(folder) / "report.html")
        assert "<svg" in report.read_text(encoding="utf-8")
    print(f"[dist] tokendynamics {td.__version__} works from {package} on Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
