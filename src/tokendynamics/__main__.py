"""The command line as a program: ``tokendynamics``, or ``python -m tokendynamics`` where it is not on the path."""

from __future__ import annotations

import sys


def program() -> None:
    """Run the command line with the arguments of the process; see `tokendynamics.cli.main`."""
    try:
        from tokendynamics.cli import main
    except KeyboardInterrupt:  # while its modules are read
        print("interrupted: nothing was written", file=sys.stderr)
        sys.exit(130)
    try:
        main()
    except KeyboardInterrupt:  # one more, while it ends: the words are said
        sys.exit(130)


if __name__ == "__main__":
    program()
