"""The command line: one file per command, heavy imports only once a command runs; errors are one line and a code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import nullcontext

import click

from tokendynamics._version import __version__
from tokendynamics.cli._check import check_command
from tokendynamics.cli._compare import compare_command
from tokendynamics.cli._designs import study_command, sweep_command
from tokendynamics.cli._diagnose import diagnose_command
from tokendynamics.cli._explore import explore_command
from tokendynamics.cli._inspect import inspect_command
from tokendynamics.cli._interrupted import ending_signals as _ending_signals
from tokendynamics.cli._interrupted import interrupted_code as _interrupted_code
from tokendynamics.cli._reference import reference_group as _reference_group
from tokendynamics.cli._signature import epilog_of as _epilog_of
from tokendynamics.cli._simulate import simulate_command
from tokendynamics.cli._terminal import echo as _echo
from tokendynamics.cli._terminal import fail as _fail
from tokendynamics.cli._train import train_command
from tokendynamics.cli.circuits import circuits_group as _circuits_group
from tokendynamics.numerics.printable import prepare_streams as _prepare_streams
from tokendynamics.numerics.printable import shortened as _shortened

__all__ = ["commands", "main"]

# Messages of PyTorch, as a RuntimeError or TypeError, where an array does not fit into this memory or into any.
_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "Storage size calculation overflowed",
    "Overflow when unpacking",
)
_TOO_LARGE = (
    "memory is not enough for a run of this size; use fewer tokens, prompts or systems, "
    "in circuits smaller -N, -M, --batch, --hidden, --samples or --starts"
)

_FILES = os.strerror(errno.EMFILE)
"""The message of the system, quoted by libraries, where a process may not open another file."""
_TOO_MANY_FILES = "the limit of open files is too low for this command; raise it (ulimit -n 256)"

_MESSAGE = 350
"""Characters of a message that is followed by advice."""


@click.group(
    epilog=_epilog_of("tokendynamics"),
    commands=[
        diagnose_command, compare_command, inspect_command, simulate_command, check_command, sweep_command,
        study_command, train_command, explore_command, _reference_group, _circuits_group,
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(__version__, prog_name="tokendynamics")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of a failure, for a bug report.")
def commands(traceback: bool) -> None:
    """Where do a transformer's tokens go with depth, why, and what can be done about it?"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    That is 0 (done), 1 (failed), 2 (wrong usage), 3 (a limit is not met) or, interrupted, 128 and the
    number of the signal (130 after Ctrl-C).
    """
    is_program = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    _prepare_streams()
    try:
        for argument in arguments:  # no shell passes null bytes, but a program that calls `main` can
            if "\0" in argument:
                raise click.UsageError(f"expected arguments without null bytes, got {argument!r}")
        with _ending_signals() if is_program else nullcontext():
            code = commands.main(arguments, prog_name="tokendynamics", standalone_mode=False)
    except click.ClickException as error:
        message, context = error.format_message(), getattr(error, "ctx", None)
        if context is not None and not context.args and message == context.get_help():
            _echo(message, err=True)  # a group without a command prints its help
        elif context is not None:
            _fail(f"{_shortened(message, _MESSAGE)} (see {context.command_path} --help)")
        else:
            _fail(message)
        code = error.exit_code
    except click.Abort as error:
        # click takes the end of a damaged file for the end of standard input.
        if isinstance(error.__cause__, EOFError):
            _fail(f"a file ends before its content does ({error.__cause__})")
            code = 1
        else:
            _echo("interrupted: nothing was written", err=True)
            code = _interrupted_code()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        if "--traceback" in arguments:
            raise
        code = _report_failure(error)
    if is_program:  # a further Ctrl-C while the libraries are cleared away, which takes seconds, ends nothing
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code if isinstance(code, int) else 0)


def _report_failure(error: BaseException) -> int:
    """Print one line and return the exit code."""
    from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError, TokenDynamicsError

    line = " ".join(str(error).split())
    if isinstance(error, TokenDynamicsError):
        _fail(line)
        return 2 if isinstance(error, ArgumentTypeError | ArgumentValueError | CheckpointError) else 1
    if _FILES in line:
        _fail(_TOO_MANY_FILES)
        return 1
    if isinstance(error, OSError):
        _fail(line)
        return 1
    if isinstance(error, MemoryError) or any(words in line for words in _MEMORY):
        _fail(_TOO_LARGE)
        return 1
    came = _shortened(f"unexpected {type(error).__name__}: {line}", _MESSAGE)
    _fail(f"{came}; this is a defect: please report it with the output of 'tokendynamics --traceback …'")
    return 1
