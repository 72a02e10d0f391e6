"""``cpembed emulate``: programs of accelerators, executed on this machine."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import click

from cpembed.cli import options, output
from cpembed.cli.completion import accelerators
from cpembed.cli.parameters import argument, subcommand
from cpembed.driver.options import REQUIRED, option
from cpembed.errors import CpembedError, ExecutionFault
from cpembed.files import write_whole


def _files(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of ``NAME=FILE`` by name."""
    files: dict[str, Path] = {}
    for value in values:
        name, separator, path = value.partition("=")
        if not separator or not name or not path:
            raise click.BadParameter(f"{value!r}: write NAME=FILE", ctx, param)
        if name in files:
            raise click.BadParameter(f"{name} is given more than once: keep one", ctx, param)
        files[name] = Path(path)
    return files


@dataclass(frozen=True, kw_only=True)
class EmulateArguments:
    """Command line of ``cpembed emulate``."""

    path: Path = argument(metavar="PROGRAM", type=click.Path(path_type=Path))
    target: str = option(
        REQUIRED,
        "Accelerator: a shipped name, or a TOML file with [[instructions]].",
        metavar="NAME|FILE",
        shell_complete=accelerators,
    )
    inputs: dict[str, Path] = option(
        (),
        "Elements of an input or constant, a file of numpy (.npy) in the shape that the program "
        "declares. Others are random.",
        flag="--input",
        metavar="NAME=FILE",
        multiple=True,
        callback=_files,
    )
    outputs: dict[str, Path] = option(
        (),
        "Write a tensor after the run to a file of numpy (.npy).",
        flag="--output",
        metavar="NAME=FILE",
        multiple=True,
        callback=_files,
    )
    against: str | None = option(
        None,
        "Compare an output with an expression over the program's tensors: bit for bit for "
        "integers, up to rounding for floats.",
        metavar="EXPRESSION",
    )
    seed: int = options.seed_option(
        "Seed of random inputs, and of the order of units with channels."
    )
    save: Path | None = options.folder_option(
        "Write the program in the machine's own text, with a manifest."
    )
    as_json: bool = options.json_option()


@subcommand("emulate", EmulateArguments)
def emulate_command(arguments: EmulateArguments) -> int:
    """Execute the assembly of an accelerator and report faults, bytes, cycles and energy.

    What the machine leaves undefined ends the run with one line: a read of rows that were never
    written, a place outside of a memory, units that race. The assembly is described in
    docs/emulate.md.

    cpembed emulate product.s --target gemmini
    cpembed emulate product.s --target gemmini --against "C[x,y] += A[x,z] * B[z,y]"
    """
    import numpy as np

    from cpembed.accelerator.emulation import emulate, read_assembly
    from cpembed.accelerator.machine_code import save as save_text
    from cpembed.hw.isa_reader import load_instruction_set
    from cpembed.ir.dtypes import as_stored

    path = arguments.path
    program = read_assembly(path, load_instruction_set(arguments.target))
    for name in arguments.outputs:
        if name not in program.tensors:
            raise CpembedError(
                f"{path} declares no tensor {name}: use {' '.join(program.tensors) or 'none'}"
            )
    with output.ProgressLine() as progress:
        try:
            result = emulate(
                program,
                arguments.inputs,
                seed=arguments.seed,
                against=arguments.against,
                progress=progress,
            )
        except ExecutionFault as fault:
            raise ExecutionFault(f"{path}: {fault}") from None
    for name, file in arguments.outputs.items():
        array = program.tensors[name].array(result.run.buffers[name])
        content = io.BytesIO()
        np.save(content, as_stored(np.ascontiguousarray(array)), allow_pickle=False)
        write_whole(file, content.getvalue())
    if arguments.save is not None:
        save_text(program, arguments.save, result.run)
    for warning in result.run.warnings:
        output.message(warning)
    from cpembed.report.emulation import report

    output.print_report(result, lambda: report(result), as_json=arguments.as_json)
    if result.comparison is not None and result.comparison.differences:
        output.message(
            f"{path}: {result.comparison.first}, and {result.comparison.differences - 1:,} more of "
            f"{result.comparison.elements:,} elements differ"
        )
        return 1
    return 0
