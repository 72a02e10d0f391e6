"""The C compiler, which links the library of a program."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from cpembed.errors import LoweringError
from cpembed.export.layout import Layout
from cpembed.export.program import Program
from cpembed.export.texts import NATIVE, header, tables
from cpembed.host_compiler import compiler_command

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
"""Environment variable with the command and its options; by default the first of :data:`COMPILERS`
on the path."""

COMPILERS = ("cc", "gcc", "clang")

SOURCES = ("runtime.c", "processor.h", "threads.h")
"""Sources of the runtime in :data:`~cpembed.export.texts.NATIVE`."""

_LIMIT_SECONDS = 300
"""Time limit of one call of the compiler."""


def compiler() -> list[str]:
    """Return the compiler's command, split at spaces.

    Raises :class:`BackendUnavailable` without a compiler.
    """
    return compiler_command(COMPILER_VARIABLE, COMPILERS, "a library is linked by a C compiler")


def compile_c(arguments: Sequence[str], folder: Path) -> None:
    """Call the compiler in a folder.

    Raises :class:`BackendUnavailable` without one, and :class:`LoweringError` with its first error.
    """
    command = compiler()
    try:
        process = subprocess.run(
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
    if process.returncode != 0:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "undefined" in line]
        reason = (errors or lines or [f"exit code {process.returncode}"])[0]
        raise LoweringError(f"{command[0]} cannot link the library: {reason}")


def parts(layout: Layout) -> dict[str, bytes]:
    """Return the files that a library is linked from: tables, kernels, and the constants."""
    program, name = layout.program, layout.program.name
    kernels = (kernel.contents for kernel in program.kernels.values())
    constants = (
        {f"{name}.weights": layout.blob.file()}
        if layout.in_file
        else {"constants.bin": layout.blob.contents}
    )
    return {
        "program.h": tables(layout).encode(),
        f"{name}.h": header(program, in_file=layout.in_file).encode(),
        "exports.map": f"{{ global: {name}_*; local: *; }};\n".encode(),
        **{source: (NATIVE / source).read_bytes() for source in SOURCES},
        **dict(zip(objects(program), kernels, strict=True)),
        **constants,
    }


def objects(program: Program) -> list[str]:
    """Return the names of the kernels' object files."""
    return [f"kernel_{number}.o" for number in range(len(program.kernels))]


def link_arguments(program: Program, options: Sequence[str] = ()) -> list[str]:
    """Return the compiler's arguments in a folder of :func:`parts`."""
    sources = ["-I.", "runtime.c", *objects(program)]
    return [*OPTIONS, *options, *sources, "-o", f"lib{program.name}.so", "-lm", "-ldl"]


def link(layout: Layout, folder: Path, options: Sequence[str] = ()) -> Path:
    """Link the shared library in a folder.

    Parameters
    ----------
    layout : Layout
        The program with the places of its buffers.
    folder : Path
        Folder to which the :func:`parts` and the library are written.
    options : sequence of str
        Further options of the compiler.
    """
    for file, contents in parts(layout).items():
        (folder / file).write_bytes(contents)
    compile_c(link_arguments(layout.program, options), folder)
    return folder / f"lib{layout.program.name}.so"
