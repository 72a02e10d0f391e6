"""The command line: each subcommand parses, calls one library function and prints.

Results go to stdout, everything else to stderr. Only click is imported up front; a subcommand's
module is imported when it is called, and what it needs when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from cpembed.cli.commands import cli
from cpembed.cli.interrupt import INTERRUPTED, end, interruptible
from cpembed.cli.output import message
from cpembed.cli.terminal import READER_LEFT, accept_any_text, discard_output
from cpembed.errors import CpembedError, DamagedStore, InvariantError
from cpembed.files import FOLDER_GONE, is_folder_gone

INTERNAL_ERROR, WRONG_INPUT, STOPPED = 1, 2, 4
"""Exit codes; errors of the package carry their own, and commands return theirs."""

_COMPLETE = "_CPEMBED_COMPLETE"
"""What a shell that asks for completions sets; click answers, and exits."""

_PACKAGE = Path(__file__).parents[1]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Failures of what is written to, not of the package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code. Errors are one line on stderr."""
    code = _main(arguments)
    if code == INTERRUPTED and arguments is None:
        end()
    return code


def _main(arguments: Sequence[str] | None) -> int:
    accept_any_text()
    try:
        _check_words(arguments)
        with interruptible(then_ignored=arguments is None), _store_messages():
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
        # The reader has seen enough; click makes an exit of it.
        discard_output()
        return READER_LEFT
    except Exception as error:
        # An error of opening names a file; one of writing does not.
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            discard_output()
            what = f"the output cannot be written: {error.strerror}"
            return _fail(f"{what}; free some space or send it elsewhere", INTERNAL_ERROR)
        if isinstance(error, OSError) and (what := _surroundings(error)) is not None:
            return _fail(what, WRONG_INPUT)
        # A bug: whoever reports it needs the place.
        traceback.print_exc()
        return _fail(f"internal error: {type(error).__name__}: {error}", INTERNAL_ERROR)
    return code if isinstance(code, int) else 0


def _check_words(arguments: Sequence[str] | None) -> None:
    """Raise :class:`CpembedError` for a null character, which only a program can pass: no path,
    workload or number has one, and the system's functions raise many errors for it."""
    for word in arguments or ():
        if "\0" in word:
            raise CpembedError(f"{word!r}: a null character: leave it out")


def _surroundings(error: OSError) -> str | None:
    """What is wrong with files or folders of the user's, in words; None for another error, such as
    of a file of the package."""
    if is_folder_gone():
        return FOLDER_GONE
    name = error.filename
    if not isinstance(name, str | bytes) or _PACKAGE in Path(os.fsdecode(name)).parents:
        return None
    return f"{os.fsdecode(name)}: {error.strerror}: name another file or folder"


@contextmanager
def _store_messages() -> Generator[None]:
    """Print what is wrong with a store as a line on stderr, once however often it is read."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DamagedStore)
        usual = warnings.showwarning

        def show(text: Warning | str, kind: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(kind, DamagedStore):
                usual(text, kind, *where, **more)
            elif str(text) not in said:
                said.add(str(text))
                message(str(text))

        warnings.showwarning = show
        yield


def _usage(error: click.ClickException) -> str:
    """click's message on one line, with where to read on."""
    message = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += f"; see {error.ctx.command_path} --help"
    return message


def _fail(text: str, code: int) -> int:
    message(text)
    return code
