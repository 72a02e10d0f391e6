"""``cpembed vta``: programs for VTA as text and as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import Subcommand, json_option
from cpembed.cli.output import print_json
from cpembed.errors import ProgramError

if TYPE_CHECKING:
    from cpembed.backends.vta.program import VtaProgram

_PATH = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """Assemble and disassemble programs for VTA.

    A PROGRAM is a directory or a zip of insns.bin, dram.bin and meta.json (docs/vta.md).
    """


@command.command("asm", cls=Subcommand)
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option(
    "-o",
    "--output",
    required=True,
    type=_PATH,
    metavar="PROGRAM",
    help="Where the program goes: a directory, or a zip if the name ends in .zip.",
)
@json_option
def asm(*, file: str, output: Path, as_json: bool) -> int:
    """Assemble a text (- is the standard input) and save the program; what is there is replaced.

    \b
    cpembed vta asm product.s -o product.zip
    """
    from cpembed.backends.vta.assembly import assemble
    from cpembed.backends.vta.container import save_program

    program = assemble(_read(file), "standard input" if file == "-" else file)
    save_program(program, output)
    if as_json:
        print_json({"program": str(output), **_summary(program)})
    else:
        summary = _summary(program)
        click.echo(
            f"{output}: {summary['instructions']:,} instructions, {summary['dram_bytes']:,} bytes "
            f"of DRAM, tensors {', '.join(summary['tensors']) or 'none'}"
        )
    return 0


@command.command("disasm", cls=Subcommand)
@click.argument("path", metavar="PROGRAM", type=_PATH)
@click.option("--no-data", is_flag=True, help="Leave out what tensors other than micro-ops hold.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the text to FILE instead of the standard output.",
)
def disasm(*, path: Path, no_data: bool, output: Path | None) -> int:
    """Print a saved program as text, which `cpembed vta asm` reads.

    \b
    cpembed vta disasm product.zip --no-data
    """
    from cpembed.backends.vta.assembly import disassemble
    from cpembed.backends.vta.container import load_program

    text = disassemble(load_program(path), data=not no_data)
    if output is None:
        click.echo(text, nl=False)
        return 0
    from cpembed.report.files import write_whole

    write_whole(output, text)
    return 0


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProgramError(f"{file}: not a text file in UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise ProgramError(f"{file}: cannot be read: {reason}") from None


def _summary(program: VtaProgram) -> dict[str, Any]:
    return {
        "instructions": len(program.instructions),
        "dram_bytes": len(program.dram),
        "tensors": list(program.tensors),
    }
