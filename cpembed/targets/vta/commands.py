"""``cpembed vta``: programs for VTA as text and as files."""

from __future__ import annotations

import io
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import file_option, json_option, seed_option
from cpembed.cli.output import message, print_json, print_text, write
from cpembed.cli.parameters import argument, subcommand
from cpembed.driver.options import REQUIRED, option
from cpembed.errors import ProgramError
from cpembed.files import write_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cpembed.blocks import Block
    from cpembed.targets.vta.timing import Timing
    from cpembed.targets.vta.tokens import Policy

# Modules of the target are imported inside of the commands: they take numpy and TVM with them.
_PATH = click.Path(path_type=Path)

# FILE may be a device, which never ends.
_MAX_TEXT_BYTES = 1 << 29
"""Maximum size of an assembly text in bytes, 512 MiB."""


def _program() -> Any:
    return argument(metavar="PROGRAM", type=_PATH)


def _output_option(text: str) -> Any:
    return option(None, text, flag="-o --output", metavar="FILE")


def _memory_option(default: int, text: str) -> Any:
    """Declare the option of one size of the memory system."""
    return option(default, text, metavar="N", type=int)


@click.group()
def command() -> None:
    """Assemble, disassemble, check, run and time programs for VTA.

    A PROGRAM is a directory or a zip of insns.bin, dram.bin and meta.json (docs/vta.md), as
    `cpembed run --save` and `cpembed vta asm` write it.

    \b
    cpembed run deepbench:11 --target vta_1x16x16 --save layer.zip
    cpembed vta cycles layer.zip
    """


@dataclass(frozen=True, kw_only=True)
class AssembleArguments:
    """Command line of ``cpembed vta asm``."""

    file: str = argument(metavar="FILE", type=click.Path(allow_dash=True))
    output: Path = option(
        REQUIRED,
        "Where the program goes: a directory, or a zip if the name ends in .zip.",
        flag="-o --output",
        metavar="PROGRAM",
    )
    as_json: bool = json_option()


@subcommand("asm", AssembleArguments, command, short_help="Assemble a text and save the program.")
def asm(arguments: AssembleArguments) -> int:
    """Assemble a text (- is the standard input) and save the program, replacing an existing one.

    \b
    cpembed vta asm product.s -o product.zip
    """
    from cpembed.targets.vta.assembler import assemble
    from cpembed.targets.vta.program import save_program

    file, output = arguments.file, arguments.output
    program = assemble(_read(file), "standard input" if file == "-" else file)
    save_program(program, output)
    count, size, tensors = len(program.instructions), len(program.dram), list(program.tensors)
    if arguments.as_json:
        counts = {"instructions": count, "dram_bytes": size, "tensors": tensors}
        print_json({"program": str(output), **counts})
    else:
        contents = f"{count:,} instructions, {size:,} bytes of DRAM"
        write(f"{output}: {contents}, tensors {', '.join(tensors) or 'none'}\n")
    return 0


@dataclass(frozen=True, kw_only=True)
class DisassembleArguments:
    """Command line of ``cpembed vta disasm``."""

    path: Path = _program()
    no_data: bool = option(False, "Leave out what tensors other than micro-ops hold.")
    output: Path | None = _output_option("Write the text to FILE instead of the standard output.")


@subcommand("disasm", DisassembleArguments, command)
def disasm(arguments: DisassembleArguments) -> int:
    """Print a saved program as text, which `cpembed vta asm` reads.

    \b
    cpembed vta disasm product.zip --no-data
    """
    from cpembed.targets.vta.assembly import disassemble
    from cpembed.targets.vta.program import load_program

    text = disassemble(load_program(arguments.path), data=not arguments.no_data)
    if arguments.output is None:
        write(text)
    else:
        write_whole(arguments.output, text)
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckArguments:
    """Command line of ``cpembed vta check``."""

    path: Path = _program()
    every: bool = option(False, "List every violation, not only the first.", flag="--all")
    as_json: bool = json_option()


@subcommand(
    "check", CheckArguments, command, short_help="Say whether a program is legal: exit code 0 or 2."
)
def check(arguments: CheckArguments) -> int:
    """Say whether a program is legal on every implementation of VTA: exit code 0, or 2 where not.

    \b
    cpembed vta check product.zip --all
    """
    from cpembed.targets.vta.checker import violations
    from cpembed.targets.vta.program import load_program

    path, every = arguments.path, arguments.every
    program = load_program(path)
    problems = violations(program, limit=None if every else 1)
    if arguments.as_json:
        rows = [{"instruction": v.instruction, "problem": v.line(program)} for v in problems]
        print_json({"legal": not problems, "violations": rows})
    elif not problems:
        write(f"{path}: legal, {len(program.instructions):,} instructions\n")
    elif every:
        for violation in problems:
            write(f"{violation.line(program)}\n")
    else:
        message(f"{path}: {problems[0].line(program)}")
    return ProgramError.exit_code if problems else 0


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Command line of ``cpembed vta run``."""

    path: Path = _program()
    output: Path | None = _output_option(
        "Save what was written: .npz, or .npy where it is one tensor."
    )
    order: Policy = option(
        "round_robin",
        "Which of the modules that can go on goes first; results do not depend on it.",
        choices=("round_robin", "load_first", "store_first", "random"),
    )
    seed: int = seed_option("Seed of --order random.")
    as_json: bool = json_option()


@subcommand(
    "run", RunArguments, command, short_help="Execute a program on the functional simulator."
)
def run(arguments: RunArguments) -> int:
    """Execute a program on the functional simulator and print the tensors that it wrote.

    \b
    cpembed vta run product.zip -o product.npz
    """
    from cpembed.targets.vta.program import load_program
    from cpembed.targets.vta.simulator import output_names, simulate

    program = load_program(arguments.path)
    # Before the simulation: a wrong name should not cost its time.
    names = output_names(program)
    _check_output(arguments.output, names)
    dram = simulate(program, policy=arguments.order, seed=arguments.seed)
    outputs = {name: program.tensor(name, dram) for name in names}
    if arguments.output is not None:
        _save(arguments.output, outputs)
    if arguments.as_json:
        print_json({"outputs": _output_rows(outputs)})
    else:
        print_text(*_outputs_report(outputs))
    return 0


@dataclass(frozen=True, kw_only=True)
class CyclesArguments:
    """Command line of ``cpembed vta cycles``."""

    path: Path = _program()
    delay: int = _memory_option(16, "Cycles until DRAM answers: dram_delay_cycles of a target.")
    bus_bits: int = _memory_option(
        64, "Bits that the bus moves in a cycle, one beat: bus_bits of a target."
    )
    burst: int = _memory_option(16, "Beats of a burst: burst_beats of a target.")
    trace: Path | None = file_option("Write a timeline for ui.perfetto.dev or chrome://tracing.")
    as_json: bool = json_option()


@subcommand("cycles", CyclesArguments, command)
def cycles(arguments: CyclesArguments) -> int:
    """Print how many cycles a program takes, and where they go.

    Saved programs do not say what memory their machine has; the defaults are the shipped targets'.

    \b
    cpembed vta cycles product.zip --delay 40 --trace product.json
    """
    from cpembed.targets.vta.program import load_program
    from cpembed.targets.vta.timing import MemorySystem, time_program, timeline

    program = load_program(arguments.path)
    memory = MemorySystem(arguments.delay, arguments.bus_bits, arguments.burst)
    timing = time_program(program, memory)
    if arguments.trace is not None:
        document = json.dumps(timeline(program, timing), separators=(",", ":"))
        write_whole(arguments.trace, document)
    if arguments.as_json:
        print_json(timing.to_json())
    else:
        print_text(*_cycles_report(timing))
    return 0


def _check_output(output: Path | None, names: Sequence[str]) -> None:
    if output is None:
        return
    if output.suffix not in (".npy", ".npz"):
        raise ProgramError(f"{output}: the name ends in neither .npy nor .npz; name it so")
    if output.suffix == ".npy" and len(names) != 1:
        listed = ", ".join(names) or "no tensor"
        raise ProgramError(f"{output}: .npy holds one tensor, written: {listed}; use .npz")


def _save(output: Path, outputs: Mapping[str, NDArray[Any]]) -> None:
    import numpy as np

    file = io.BytesIO()
    if output.suffix == ".npz":
        np.savez(file, allow_pickle=False, **outputs)
    else:
        np.save(file, *outputs.values(), allow_pickle=False)
    write_whole(output, file.getvalue())


def _read(file: str) -> str:
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
            data = source.read(_MAX_TEXT_BYTES + 1)
        if len(data) > _MAX_TEXT_BYTES:
            problem = f"has more than {_MAX_TEXT_BYTES:,} bytes; is it an assembly text?"
            raise ProgramError(f"{file}: {problem}")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProgramError(f"{file}: not a text file in UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise ProgramError(f"{file}: cannot be read: {reason}") from None


def _outputs_report(outputs: Mapping[str, NDArray[Any]]) -> Iterator[Block]:
    """Yield the table of the tensors that a program wrote."""
    from cpembed.blocks import Table

    rows = [tuple(str(value) for value in row.values()) for row in _output_rows(outputs)]
    yield Table(("tensor", "dtype", "shape", "minimum>", "maximum>", "crc32"), rows)


def _output_rows(outputs: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "minimum": int(array.min()) if array.size else None,
            "maximum": int(array.max()) if array.size else None,
            "crc32": f"{zlib.crc32(array.tobytes()):08x}",
        }
        for name, array in outputs.items()
    ]


def _cycles_report(timing: Timing) -> Iterator[Block]:
    """Yield the blocks on a program's cycles, its modules and the bytes it transferred."""
    from cpembed.blocks import Header, Table

    memory = timing.memory
    products = f"{timing.macs:,} multiplications in {timing.gemm_cycles:,} cycles"
    reads = f"{timing.read_beats:,} beats in {timing.bursts:,} bursts"
    bus = f"bus {memory.bus_bits} bits, bursts of {memory.burst_beats} beats"
    yield Header(
        [
            ("cycles", f"{timing.cycles:,}"),
            ("gemm", f"{timing.gemm_utilisation:.1%} of its peak: {products}"),
            ("reading", f"{timing.read_utilisation:.1%} of the bus: {reads}"),
            ("memory", f"delay {memory.dram_delay_cycles} cycles, {bus}"),
        ]
    )
    yield ""
    yield Table(
        ("module", "busy>", "stalled>", "idle>"),
        [
            (name, *(f"{part:,}" for part in (module.busy, module.stalled, module.idle)))
            for name, module in timing.modules.items()
        ],
    )
    yield ""
    yield Table(("moved", "bytes>"), [(name, f"{moved:,}") for name, moved in timing.bytes.items()])
