"""The C compiler, and what it links: a library of a program."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from cpembed.errors import LoweringError
from cpembed.export.header import header
from cpembed.export.program import Program
from cpembed.export.tables import Layout, tables
from cpembed.host_compiler import compiler_command

NATIVE = Path(__file__).parent / "native"
"""The runtime, in C."""

OPTIONS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-Wl,--version-script=exports.map",
    "-Wl,--no-undefined",
    "-Wl,-z,noexecstack",
)

COMPILER_VARIABLE = "CC"
"""The command to use, with its options; by default the first of :data:`COMPILERS` on the path."""

COMPILERS = ("cc", "gcc", "clang")

_LIMIT_SECONDS = 300


def compiler() -> list[str]:
    """The words of the command.

    Raises :class:`BackendUnavailable` where there is none.
    """
    return compiler_command(COMPILER_VARIABLE, COMPILERS, "a library is linked by a C compiler")


def compile_c(arguments: Sequence[str], folder: Path) -> None:
    """Call the compiler in a folder.

    Raises :class:`BackendUnavailable` where there is none, and :class:`LoweringError` with its
    first error where it fails.
    """
    command = compiler()
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoweringError(f"{command[0]} cannot compile the library: {error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line or "undefined" in line]
        reason = (telling or lines or [f"exit code {done.returncode}"])[0]
        raise LoweringError(f"{command[0]} cannot link the library: {reason}")


SOURCES = ("runtime.c", "processor.h", "threads.h")
"""Of the runtime, in :data:`NATIVE`."""


def parts(layout: Layout) -> dict[str, bytes]:
    """What a library is made of, by file name: tables, kernels, and the constants."""
    program = layout.program
    name = program.name
    found = {
        "program.h": tables(layout).encode(),
        f"{name}.h": header(program, in_file=layout.in_file).encode(),
        "exports.map": f"{{ global: {name}_*; local: *; }};\n".encode(),
        **{source: (NATIVE / source).read_bytes() for source in SOURCES},
        **dict(zip(objects(program), (k.contents for k in program.kernels.values()), strict=True)),
    }
    if layout.in_file:
        return found | {f"{name}.weights": layout.blob.file()}
    return found | {"constants.bin": layout.blob.contents}


def objects(program: Program) -> list[str]:
    """The object files of the kernels."""
    return [f"kernel_{number}.o" for number in range(len(program.kernels))]


def link_arguments(program: Program, options: Sequence[str] = ()) -> list[str]:
    """What the C compiler is told in a folder of :func:`parts`."""
    made = ["-I.", "runtime.c", *objects(program)]
    return [*OPTIONS, *options, *made, "-o", f"lib{program.name}.so", "-lm", "-ldl"]


def link(layout: Layout, folder: Path, options: Sequence[str] = ()) -> Path:
    """The shared library in a folder, with its :func:`parts`."""
    for file, contents in parts(layout).items():
        (folder / file).write_bytes(contents)
    compile_c(link_arguments(layout.program, options), folder)
    return folder / f"lib{layout.program.name}.so"
