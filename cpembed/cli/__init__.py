"""The command line: each subcommand parses, calls one library function and prints.

Results go to stdout, everything else to stderr. Only click is imported up front; a subcommand's
module is imported when it is called, and what it needs when it runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import click

from cpembed.cli.commands import cli
from cpembed.errors import CpembedError, InvariantError

INTERNAL_ERROR, WRONG_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes; errors of the package carry their own, and commands return theirs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code. Errors are one line on stderr."""
    try:
        code = cli.main(args=arguments, prog_name="cpembed", standalone_mode=False)
    except click.ClickException as error:
        return _fail(_usage(error), WRONG_INPUT)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except InvariantError as error:
        return _fail(f"internal error: {error}", INTERNAL_ERROR)
    except CpembedError as error:
        return _fail(str(error), error.exit_code)
    except Exception as error:
        # A bug: whoever reports it needs the place.
        traceback.print_exc()
        return _fail(f"internal error: {type(error).__name__}: {error}", INTERNAL_ERROR)
    return code if isinstance(code, int) else 0


def _usage(error: click.ClickException) -> str:
    """click's message on one line, with where to read on."""
    message = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += f"; see {error.ctx.command_path} --help"
    return message


def _fail(message: str, code: int) -> int:
    click.echo(f"cpembed: {' '.join(message.split())}", err=True)
    return code
