"""The command line: each subcommand parses, calls one library function and prints.

Results go to stdout, everything else to stderr. Only click is imported up front; the module of a
subcommand is imported when it is called, and everything else when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from cpembed.cli.interrupt import INTERRUPTED, end, interruptible
from cpembed.cli.output import READER_LEFT, accept_any_text, discard_output, message
from cpembed.errors import CpembedError, DamagedStore, InvariantError
from cpembed.files import FOLDER_GONE, is_folder_gone
from cpembed.targets import TARGET_COMMANDS

INTERNAL_ERROR, WRONG_INPUT, STOPPED = 1, 2, 4
"""Exit codes of errors that carry none: errors of the package do, and commands return theirs."""

# Environment variable by which a shell requests completions from click, which then exits.
_COMPLETE = "_CPEMBED_COMPLETE"

_PACKAGE = Path(__file__).parents[1]

# Errors of the device or file that is written to, not of the package.
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "solve": ("search", "Rank the candidate embeddings of a target's instruction in a workload."),
    "explain": ("search", "Show one candidate in full, or why nothing fits."),
    "run": ("kernels", "Generate the kernel, verify its numbers, time or simulate it."),
    "build": ("build", "Build a library of a kernel or a model, to be used without cpembed."),
    "bench": ("bench", "Run a suite, one row for each layer."),
    "match": ("models", "Show which operators of a model an instruction computes, and how well."),
    "layouts": ("kernels", "Find the fastest layout of a workload's tensors, packing included."),
    "network": ("models", "Compile a whole model, run it, verify and time it layer by layer."),
    "cache": ("cache", "Take kernels that were chosen for networks to other machines."),
    "tune": ("kernels", "Find the fastest embedding and schedule of a workload, and keep them."),
    "worker": ("worker", "Join a cluster and execute its tasks."),
    "explore": ("exploration", "Find the machines of a space that are the best for a suite."),
    "fuse": ("fusion", "Schedule a block of operators on a machine: what stays on chip."),
    "shape": (
        "exploration",
        "Find the shape of a matrix product that computes a suite in the fewest executions.",
    ),
    "emulate": ("accelerators", "Execute the assembly of an accelerator; report faults and costs."),
    **TARGET_COMMANDS,
    "targets": ("search", "List the targets and whether this machine executes them."),
    "processors": ("search", "List the processors that libraries may be built for."),
    "operators": ("search", "List the operators and the sizes they take."),
}
"""Module and help of each subcommand; the module defines the click command ``NAME_command``, that
of a target ``command``."""


class Subcommands(click.Group):
    """Group that imports a subcommand when it is called, and none to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, _ = SUBCOMMANDS[cmd_name]
        command: click.Command
        if cmd_name in TARGET_COMMANDS:
            command = import_module(module).command
        else:
            command = getattr(import_module(f"cpembed.cli.{module}"), f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.group(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cpembed", prog_name="cpembed")
def cli() -> None:
    """Fit tensor operators to hardware instructions.

    Every embedding is found, its program proven, and its kernel generated.

    A WORKLOAD is an operator with its sizes (conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1), a
    layer of a suite (deepbench:11), or an expression with its extents
    ("C[x,y] += A[x,z] * B[z,y]" x=4 y=4 z=8).

    Exit codes: 0 a result; 2 a wrong command line, specification or workload; 3 proven infeasible;
    4 stopped by a limit without a result; 5 a missing back end or device; 1 an internal error.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code; errors are one line on stderr."""
    code = _main(arguments)
    if code == INTERRUPTED and arguments is None:
        end()
    return code


def _main(arguments: Sequence[str] | None) -> int:
    accept_any_text()
    try:
        _reject_null_characters(arguments)
        # With arguments this is a call of a test or a program, which handles later interrupts
        # itself.
        with interruptible(then_ignored=arguments is None), _store_messages():
            # Not standalone: click would print its own errors and exit.
            code = cli.main(arguments, "cpembed", complete_var=_COMPLETE, standalone_mode=False)
            if sys.stdout is not None:  # None where the shell closed it: `>&-`.
                sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG_INPUT
    except click.ClickException as error:
        return _fail(_usage(error), WRONG_INPUT)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except InvariantError as error:
        return _fail(f"internal error: {error}", INTERNAL_ERROR)
    except CpembedError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail("out of memory: use smaller sizes or a narrower set", STOPPED)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and _COMPLETE in os.environ:
            return int(error.code or 0)
        # The reader closed the pipe, which click turns into an exit.
        discard_output()
        return READER_LEFT
    except Exception as error:
        # An error of opening a file names it; one of writing does not.
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS and error.filename is None:
            discard_output()
            problem = f"the output cannot be written: {error.strerror}"
            return _fail(f"{problem}; free some space or send it elsewhere", INTERNAL_ERROR)
        if isinstance(error, OSError) and (problem := _user_file_problem(error)) is not None:
            return _fail(problem, WRONG_INPUT)
        # A bug of cpembed: its report needs the traceback.
        traceback.print_exc()
        return _fail(f"internal error: {type(error).__name__}: {error}", INTERNAL_ERROR)
    return code if isinstance(code, int) else 0


def _reject_null_characters(arguments: Sequence[str] | None) -> None:
    """Raise :class:`CpembedError` for a null character, which only a program can pass.

    No path, workload or number has one, and the system's functions raise various errors for it.
    """
    for word in arguments or ():
        if "\0" in word:
            raise CpembedError(f"{word!r}: a null character: leave it out")


def _user_file_problem(error: OSError) -> str | None:
    """Return the problem of a file or folder of the user; None for other errors."""
    if is_folder_gone():
        return FOLDER_GONE
    name = error.filename
    # A missing file of the package is a bug or a broken installation, not wrong input.
    if not isinstance(name, str | bytes) or _PACKAGE in Path(os.fsdecode(name)).parents:
        return None
    return f"{os.fsdecode(name)}: {error.strerror}: name another file or folder"


@contextmanager
def _store_messages() -> Generator[None]:
    """Return a context that prints the problem of a damaged store as a line on stderr, once."""
    printed: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DamagedStore)
        original = warnings.showwarning

        def show(text: Warning | str, kind: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(kind, DamagedStore):
                original(text, kind, *place, **more)
            elif str(text) not in printed:
                printed.add(str(text))
                message(str(text))

        warnings.showwarning = show
        yield


def _usage(error: click.ClickException) -> str:
    """Return click's message on one line, with the command that prints more."""
    text = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f"; see {error.ctx.command_path} --help"
    return text


def _fail(text: str, code: int) -> int:
    message(text)
    return code
