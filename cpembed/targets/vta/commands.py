"""``cpembed vta``: programs for VTA as text and as files."""

from __future__ import annotations

import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cpembed.cli.options import Subcommand, file_option, json_option, seed_option
from cpembed.cli.output import message, print_json, print_text, write
from cpembed.errors import ProgramError
from cpembed.files import write_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cpembed.blocks import Block
    from cpembed.targets.vta.timing import Timing
    from cpembed.targets.vta.tokens import Policy

F = TypeVar("F", bound=Callable[..., Any])
# Modules of the target are imported inside of the commands: they take numpy and TVM with them.
_PATH = click.Path(path_type=Path)
_program = click.argument("path", metavar="PROGRAM", type=_PATH)


# FILE may be a device, which never ends.
_MAX_TEXT_BYTES = 1 << 29
"""Maximum size of an assembly text in bytes, 512 MiB."""


def _output_option(text: str) -> Callable[[F], F]:
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=kind, metavar="FILE", help=text)


def _memory_option(name: str, default: int, text: str) -> Callable[[F], F]:
    """Return the option of one size of the memory system."""
    return click.option(name, type=int, default=default, metavar="N", show_default=True, help=text)


@click.group()
def command() -> None:
    """Assemble, disassemble, check, run and time programs for VTA.

    A PROGRAM is a directory or a zip of insns.bin, dram.bin and meta.json (docs/vta.md), as
    `cpembed run --save` and `cpembed vta asm` write it.

    \b
    cpembed run deepbench:11 --target vta_1x16x16 --save layer.zip
    cpembed vta cycles layer.zip
    """


@command.command("asm", cls=Subcommand, short_help="Assemble a text and save the program.")
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
    """Assemble a text (- is the standard input) and save the program, replacing an existing one.

    \b
    cpembed vta asm product.s -o product.zip
    """
    from cpembed.targets.vta.assembler import assemble
    from cpembed.targets.vta.program import save_program

    program = assemble(_read(file), "standard input" if file == "-" else file)
    save_program(program, output)
    count, size, tensors = len(program.instructions), len(program.dram), list(program.tensors)
    if as_json:
        counts = {"instructions": count, "dram_bytes": size, "tensors": tensors}
        print_json({"program": str(output), **counts})
    else:
        contents = f"{count:,} instructions, {size:,} bytes of DRAM"
        write(f"{output}: {contents}, tensors {', '.join(tensors) or 'none'}\n")
    return 0


@command.command("disasm", cls=Subcommand)
@_program
@click.option("--no-data", is_flag=True, help="Leave out what tensors other than micro-ops hold.")
@_output_option("Write the text to FILE instead of the standard output.")
def disasm(*, path: Path, no_data: bool, output: Path | None) -> int:
    """Print a saved program as text, which `cpembed vta asm` reads.

    \b
    cpembed vta disasm product.zip --no-data
    """
    from cpembed.targets.vta.assembly import disassemble
    from cpembed.targets.vta.program import load_program

    text = disassemble(load_program(path), data=not no_data)
    if output is None:
        write(text)
    else:
        write_whole(output, text)
    return 0


@command.command(
    "check", cls=Subcommand, short_help="Say whether a program is legal: exit code 0 or 2."
)
@_program
@click.option("--all", "every", is_flag=True, help="List every violation, not only the first.")
@json_option
def check(*, path: Path, every: bool, as_json: bool) -> int:
    """Say whether a program is legal on every implementation of VTA: exit code 0, or 2 where not.

    \b
    cpembed vta check product.zip --all
    """
    from cpembed.targets.vta.checker import violations
    from cpembed.targets.vta.program import load_program

    program = load_program(path)
    problems = violations(program, limit=None if every else 1)
    if as_json:
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


@command.command("run", cls=Subcommand, short_help="Execute a program on the functional simulator.")
@_program
@_output_option("Save what was written: .npz, or .npy where it is one tensor.")
@click.option(
    "--order",
    type=click.Choice(["round_robin", "load_first", "store_first", "random"]),
    default="round_robin",
    show_default=True,
    help="Which of the modules that can go on goes first; results do not depend on it.",
)
@seed_option("Seed of --order random.")
@json_option
def run(*, path: Path, output: Path | None, order: Policy, seed: int, as_json: bool) -> int:
    """Execute a program on the functional simulator and print the tensors that it wrote.

    \b
    cpembed vta run product.zip -o product.npz
    """
    from cpembed.targets.vta.program import load_program
    from cpembed.targets.vta.simulator import output_names, simulate

    program = load_program(path)
    # Before the simulation: a wrong name should not cost its time.
    names = output_names(program)
    _check_output(output, names)
    dram = simulate(program, policy=order, seed=seed)
    outputs = {name: program.tensor(name, dram) for name in names}
    if output is not None:
        _save(output, outputs)
    if as_json:
        print_json({"outputs": _output_rows(outputs)})
    else:
        print_text(*_outputs_report(outputs))
    return 0


@command.command("cycles", cls=Subcommand)
@_program
@_memory_option("--delay", 16, "Cycles until DRAM answers: dram_delay_cycles of a target.")
@_memory_option(
    "--bus-bits", 64, "Bits that the bus moves in a cycle, one beat: bus_bits of a target."
)
@_memory_option("--burst", 16, "Beats of a burst: burst_beats of a target.")
@file_option("--trace", "Write a timeline for ui.perfetto.dev or chrome://tracing.")
@json_option
def cycles(
    *, path: Path, delay: int, bus_bits: int, burst: int, trace: Path | None, as_json: bool
) -> int:
    """Print how many cycles a program takes, and where they go.

    Saved programs do not say what memory their machine has; the defaults are the shipped targets'.

    \b
    cpembed vta cycles product.zip --delay 40 --trace product.json
    """
    from cpembed.targets.vta.program import load_program
    from cpembed.targets.vta.timing import MemorySystem, time_program, timeline

    program = load_program(path)
    timing = time_program(program, MemorySystem(delay, bus_bits, burst))
    if trace is not None:
        write_whole(trace, json.dumps(timeline(program, timing), separators=(",", ":")))
    if as_json:
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
