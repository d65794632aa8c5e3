"""Draws charts as a child process: one specification a line on standard input, one answer a line on standard output.

Run as a file by `tokendynamics.figures.drawing`, not imported: it needs nothing of the package, so that it starts
at once. Its one argument is the folder that holds vl_convert.
"""

from __future__ import annotations

import json
import signal
import sys


def main() -> None:
    """Answer until standard input ends, which it does when the parent process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes standard input
    sys.path.append(sys.argv[1])
    import vl_convert

    for line in sys.stdin.buffer:
        try:
            answer = {"svg": vl_convert.vegalite_to_svg(json.loads(line))}
        except BaseException as error:  # a panic of Rust code is no Exception
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.buffer.write(json.dumps(answer).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
