"""Damaged program files and assembly texts for VTA: each is a program, or a line that says why not.

The mutants have a fixed seed. They are read in a process of their own, whose memory is limited, by
the functions that ``cpembed vta`` calls, and every fiftieth one by the commands themselves. To see
one alone: ``python -m tests.fuzz.test_vta_files files 1234 /tmp/mutant``.
"""

from __future__ import annotations

import faulthandler
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cpembed.cli import main
from cpembed.errors import CpembedError, InvariantError
from cpembed.targets.vta.assembler import assemble
from cpembed.targets.vta.assembly import disassemble
from cpembed.targets.vta.checker import violations
from cpembed.targets.vta.encoding import columns_of
from cpembed.targets.vta.isa import Finish, Load, Memory, VtaConfig
from cpembed.targets.vta.program import VtaProgram, load_program, save_program
from cpembed.targets.vta.simulator import output_names, simulate
from cpembed.targets.vta.timing import MemorySystem, executed_uops, time_program
from tests.fuzz.vta_damage import Contents, damaged_file, damaged_text
from tests.unit.targets.vta.convolution import Convolution

FILES, TEXTS = 2500, 1000
MEMORY = 2 << 30
"""Bytes that the process may take."""
HANG = 30
"""Seconds after which a mutant ends the process, with the place where it was."""
EVERY = 50
"""Of so many mutants one also goes through the commands."""
MOST_PRODUCTS = 10_000_000
"""Micro-ops that a mutant may execute to be simulated: a legal program may take hours."""
LONGEST = 1000
"""Characters of a message."""


def sources() -> list[VtaProgram]:
    cube = VtaConfig(log_batch=3, log_block=3)
    nothing = VtaProgram(VtaConfig(), (Finish(),), np.zeros(0, np.uint8), {})
    load = Load(Memory.INP, 0, 0x1000, 2, 3, 4, 1, 2, 3, 4)
    base = VtaProgram(VtaConfig(), (load, Finish()), np.ones(256, np.uint8), {}, 0x10000)
    return [
        Convolution(4, 16, 16, rows=2).program(),
        Convolution(4, 16, 16, rows=4, threads=1, config=cube).program(),
        Convolution(5, 32, 16, kernel=1, rows=5, shift=None).program(),
        nothing,
        base,
    ]


def contents(program: VtaProgram, folder: Path) -> Contents:
    save_program(program, folder)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def used(program: VtaProgram, folder: Path) -> None:
    """As ``check``, ``disasm``, ``asm``, ``cycles`` and ``run`` do."""
    again = assemble(disassemble(program))
    assert again.instructions == program.instructions
    assert again.tensors == dict(program.tensors)
    np.testing.assert_array_equal(again.dram, program.dram)
    save_program(program, folder / "saved.zip")
    found = violations(program, limit=1)
    if found:
        assert "\n" not in found[0].line(program)
        return
    for bits in (64, 128):
        assert time_program(program, MemorySystem(bus_bits=bits)).cycles > 0
    if executed_uops(columns_of(program.instructions, program.config)).sum() < MOST_PRODUCTS:
        dram = simulate(program)
        for name in output_names(program):
            program.tensor(name, dram)


def fault(action: Callable[[], None]) -> str | None:
    """What went wrong where an action should be done or say why not, in one line."""
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        action()
    except InvariantError as error:
        return f"InvariantError: {error}"
    except CpembedError as error:
        text = str(error)
        return (
            None if text and "\n" not in text and len(text) < 1000 else f"message: {text[:2000]!r}"
        )
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:500]}"
    finally:
        faulthandler.cancel_dump_traceback_later()
    return None


def commands(path: Path, folder: Path) -> Iterator[str]:
    """Faults of the commands on a program's file or a text."""
    calls = [["asm", str(path), "-o", str(folder / "out.zip")]]
    if path.suffix != ".s":
        calls = [["check", str(path)], ["disasm", str(path)], ["cycles", str(path), "--json"]]
    for arguments in calls:
        code = main(["vta", *arguments])
        if code not in (0, 2):
            yield f"vta {' '.join(arguments)}: exit code {code}"


def search(kind: str, numbers: list[int], folder: Path) -> Iterator[str]:
    """Faults of the mutants of some numbers."""
    programs = sources()
    members = [contents(program, folder / f"source{k}") for k, program in enumerate(programs)]
    texts = [disassemble(program) for program in programs[:-1]]
    for number in numbers:
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if kind == "files":
            path = damaged_file(number, members, place)
            found = fault(lambda path=path, place=place: used(load_program(path), place))
        else:
            path = place / "mutant.s"
            text = damaged_text(number, texts)
            path.write_text(text, encoding="utf-8")
            found = fault(lambda text=text, place=place: used(assemble(text, "mutant.s"), place))
        if found:
            yield f"{kind} {number}: {found}"
        elif number % EVERY == 0:
            yield from (f"{kind} {number}: {found}" for found in commands(path, place))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    asked, counts = sys.argv[1], [*map(int, sys.argv[2].split(":"))]
    chosen = [*range(*counts)] if len(counts) > 1 else counts
    for line in search(asked, chosen, Path(sys.argv[3])):
        print(f"FAULT {line}", flush=True)
    print("DONE", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@pytest.mark.slow
@pytest.mark.parametrize("kind, count", [("files", FILES), ("texts", TEXTS)])
def test_what_is_damaged_is_named_in_one_line(kind: str, count: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.test_vta_files", kind, f"0:{count}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
    faults = [line for line in done.stdout.splitlines() if line.startswith("FAULT")]
    assert not faults, "\n".join(faults[:20])
    *_, last = done.stdout.splitlines() or [""]
    assert last.startswith("DONE"), done.stderr[-3000:]
    assert int(last.split()[1]) * 1024 < MEMORY
    assert "Traceback" not in done.stderr
