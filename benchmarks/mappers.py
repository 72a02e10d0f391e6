"""Machines, layers and our side of the comparisons with other mappers.

A *unit* multiplies a block of x by z with one of z by y in a cycle; its operands are in one buffer,
which is filled from main memory while it works. Several units have a buffer each. There may be a
buffer that all of them share. A layer is compared execution by execution of the unit: what another
mapper calls an element is a block here, so that both search the same loops over the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.commits import commit
from cpembed.cost.machine.estimate import Estimate, estimate_program, machine_of
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.hw.loader import load_hardware_spec

ROOT = Path(__file__).resolve().parent.parent
OBJECTIVES = ("bytes", "cycles", "energy")


@dataclass(frozen=True)
class Unit:
    """A machine: extents of the unit, buffer of each unit, bytes a cycle to memory, energies.

    Energies are in pJ: of a byte of main memory and of a buffer, and of an execution. One read of
    memories with ``multicast`` serves several units. Operands may pass by a shared buffer with
    ``bypass``; without a capacity there is none.
    """

    rows: int
    buffer_bytes: int
    units: int = 1
    memory_bytes: float = 16.0
    memory_pj: float = 160.0
    buffer_pj: float = 2.0
    execution_pj: float = 800.0
    multicast: bool = False
    shared_bytes: int = 0
    shared_pj: float = 10.0
    bypass: bool = False

    @property
    def name(self) -> str:
        """Name of the machine in tables."""
        several = f"{self.units} of " if self.units > 1 else ""
        words = [f"{several}{self.rows}x16x16, {self.buffer_bytes // 1024} KiB"]
        if self.shared_bytes:
            words.append(f"{self.shared_bytes // 1024} KiB shared")
        words += ["multicast"] * self.multicast + ["bypass"] * self.bypass
        return ", ".join(words)


@dataclass(frozen=True)
class Case:
    """A layer on a machine: words of ``cpembed solve``, and its loops over executions."""

    words: str
    unit: Unit
    loops: dict[str, int]

    @property
    def kind(self) -> str:
        return self.words.split()[0]


def gemm(m: int, n: int, k: int, unit: Unit) -> Case:
    """Return a product in multiples of the unit.

    Parameters
    ----------
    m, n, k : int
        Rows, columns and depth, in elements.
    unit : Unit
        Machine.
    """
    loops = {"m": m // unit.rows, "n": n // 16, "k": k // 16}
    return Case(f"gemm m={m} n={n} k={k}", unit, loops)


def conv(c: int, size: int, k: int, window: int, unit: Unit) -> Case:
    """Return a convolution of a square image without padding.

    Parameters
    ----------
    c, k : int
        Channels of the image and of the output.
    size : int
        Rows and columns of the output.
    window : int
        Rows and columns of the window.
    unit : Unit
        Machine.
    """
    image = size + window - 1
    words = f"conv2d n=1 c={c} h={image} w={image} k={k} r={window} s={window}"
    loops = {"k": k // 16, "p": size, "q": size, "c": c // 16, "r": window, "s": window}
    return Case(words, unit, loops)


CUBE = Unit(16, 32 * 1024)
ROW = Unit(1, 32 * 1024)
FOUR = Unit(16, 32 * 1024, units=4, memory_bytes=64.0)
CAST = replace(FOUR, multicast=True)
SHARED = replace(FOUR, buffer_bytes=16 * 1024, shared_bytes=128 * 1024)
PASSED = replace(SHARED, bypass=True)
SHARED_CAST = replace(SHARED, multicast=True)
ROWS = replace(FOUR, rows=1)
ROWS_CAST = replace(ROWS, multicast=True)
CASES = (
    gemm(256, 256, 256, CUBE),
    gemm(512, 512, 512, CUBE),
    gemm(1024, 64, 256, CUBE),
    gemm(208, 336, 176, CUBE),
    gemm(512, 1024, 256, CUBE),
    gemm(512, 512, 512, Unit(16, 128 * 1024)),
    gemm(512, 512, 512, FOUR),
    gemm(208, 336, 176, FOUR),
    gemm(512, 512, 512, CAST),
    gemm(1024, 64, 256, CAST),
    gemm(512, 512, 512, replace(CAST, units=16)),
    gemm(512, 512, 512, SHARED),
    gemm(512, 512, 512, PASSED),
    gemm(512, 512, 512, SHARED_CAST),
    conv(64, 28, 64, 3, ROWS),
    conv(64, 28, 64, 3, ROWS_CAST),
    conv(256, 14, 256, 3, ROWS_CAST),
    conv(64, 28, 64, 3, ROW),
    conv(256, 14, 256, 3, ROW),
    conv(64, 56, 64, 1, ROW),
)

_TARGET = """
name = "unit"
description = "A unit beside which other mappers are compared"
source = "Made up"
constraints = "in_place_padded"

[instruction]
expression = "C[x,y] += A[x,z] * B[z,y]"

[instruction.axes]
x = {rows}
y = 16
z = 16

[operands.A]
dtype = "int8"
scope = "unit.buffer"
tile = ["x", "z"]

[operands.B]
dtype = "int8"
scope = "unit.buffer"
tile = ["z", "y"]

[operands.C]
dtype = "int32"
scope = "unit.buffer"
tile = ["x", "y"]

[memories."unit.buffer"]
capacity_bytes = {buffer_bytes}

[machines.unit]
source = "Made up"
known = "assumed"
clock_mhz = 1000

[machines.unit.compute]
cycles = 1
latency_cycles = 0
energy_pj = {execution_pj}

[machines.unit.memories."unit.buffer"]
parent = "{parent}"
units = {units}
read_pj_per_byte = {buffer_pj}
write_pj_per_byte = {buffer_pj}

[machines.unit.memories.dram]
read_bytes_per_cycle = {memory_bytes}
write_bytes_per_cycle = {memory_bytes}
half_duplex = true
read_pj_per_byte = {memory_pj}
write_pj_per_byte = {memory_pj}
multicast = {multicast}
"""

_SHARED = """
[machines.unit.memories.shared]
parent = "dram"
capacity_bytes = {shared_bytes}
read_bytes_per_cycle = 1e12
write_bytes_per_cycle = 1e12
read_pj_per_byte = {shared_pj}
write_pj_per_byte = {shared_pj}
multicast = {multicast}
bypass = {bypass}
"""


def target(unit: Unit) -> str:
    """Return the target with a machine, as TOML.

    Parameters
    ----------
    unit : Unit
        Machine.
    """
    values = {name: str(value).lower() for name, value in asdict(unit).items()}
    if not unit.shared_bytes:
        return _TARGET.format(**values, parent="dram")
    return (_TARGET + _SHARED).format(**values, parent="shared")


def figures_of_case(case: Case) -> dict[str, dict[str, Any]]:
    """Return our figures by objective: bytes, cycles, energy, seconds, and the gap.

    Parameters
    ----------
    case : Case
        Layer on a machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "unit.toml"
        path.write_text(target(case.unit), encoding="utf-8")
        spec = load_hardware_spec(path)
    computation = workload(case.words.split(), target=spec)
    solved = solve(computation, spec, constraints="in_place_padded", top=1)
    program, machine = solved.embeddings[0].candidate.program, machine_of(spec)
    results: dict[str, dict[str, Any]] = {}
    for objective in OBJECTIVES:
        begin = time.process_time()
        estimate = estimate_program(program, machine, objective=objective)
        seconds = time.process_time() - begin
        results[objective] = {**figures(estimate), "seconds": seconds, "gap": estimate.gap}
    return results


def figures(estimate: Estimate) -> dict[str, float]:
    """Return the quantities that are compared.

    Parameters
    ----------
    estimate : Estimate
        Estimate of a layer.
    """
    outermost = estimate.levels[-1]
    return {
        "bytes": outermost.read_bytes + outermost.written_bytes,
        "cycles": estimate.cycles,
        "energy": sum(estimate.energy_pj.values()),
    }


def peer_python(folder: Path, python: str, requirements: tuple[str, ...]) -> Path:
    """Return the Python of an environment with packages, which is made if there is none.

    Parameters
    ----------
    folder : Path
        Folder of the environment.
    python : str
        Python that makes it; empty for this one.
    requirements : tuple of str
        Packages with their versions.
    """
    executable = folder / "bin" / "python"
    if not executable.exists():
        if python:
            subprocess.run([python, "-m", "venv", folder], check=True)
        else:
            venv.create(folder, with_pip=True)
        subprocess.run([executable, "-m", "pip", "install", "-q", *requirements], check=True)
    return executable


def peer(executable: Path, script: Path, request: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return a peer's answer to a request, or why there is none.

    Parameters
    ----------
    executable : Path
        Python of the peer's environment.
    script : Path
        Script that answers requests on standard input.
    request : dict
        Layer, machine and objective.
    limit : int
        Seconds of processor time after which the script is ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [executable, script],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
    if result.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"problem": f"did not finish in {limit} s"}
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no message"]
        return {"problem": lines[-1][:120]}
    return json.loads(result.stdout.splitlines()[-1])


def request(case: Case, objective: str) -> dict[str, Any]:
    """Return what a peer needs to know of a layer on a machine.

    Parameters
    ----------
    case : Case
        Layer on a machine.
    objective : str
        ``bytes``, ``cycles`` or ``energy``.
    """
    return {
        "kind": case.kind,
        "loops": case.loops,
        "unit": asdict(case.unit),
        "objective": objective,
        # Bytes of an element of each operand: a block of the unit.
        "sizes": {"A": case.unit.rows * 16, "B": 256, "C": case.unit.rows * 64},
    }


def rows(results: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table: a row for each layer and objective.

    Parameters
    ----------
    results : list of dict
        Figures of both sides.
    """
    lines = [
        "| layer | machine | objective | ours | theirs | ratio | bound | ours, s | theirs, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        objective, mine, peer_figures = result["objective"], result["ours"], result["theirs"]
        place = f"`{result['words']}` | {result['machine']} | {objective}"
        head = f"| {place} | {mine[objective]:,.0f} |"
        gap = "optimal" if mine["gap"] <= 1e-9 else f"{mine['gap']:.2%}"
        if "problem" in peer_figures:
            tail = f" {peer_figures['problem']} | · | {gap} | {mine['seconds']:.2f} | · |"
        else:
            ratio = mine[objective] / peer_figures[objective]
            tail = (
                f" {peer_figures[objective]:,.0f} | {ratio:.3f} | {gap} | {mine['seconds']:.2f} | "
                f"{peer_figures['seconds']:.1f} |"
            )
        lines.append(head + tail)
    return lines


def environment(versions: dict[str, str]) -> list[str]:
    """Return the lines on commit, versions and processor.

    Parameters
    ----------
    versions : dict of str to str
        Version of each peer, by its package.
    """
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    machine = f"{platform.machine()}, {os.cpu_count()} processors, one process on each side"
    return [f"Commit {commit(ROOT)}; {names}; Python {platform.python_version()}; {machine}."]


@dataclass(frozen=True)
class Peer:
    """Another mapper: its package, the script that runs it, and what is to be said of it.

    ``most_units`` is the largest number of units that the script describes.
    """

    name: str
    package: str
    version: str
    requirements: tuple[str, ...]
    script: Path
    objectives: tuple[str, ...]
    most_units: int
    notes: str


def compare(side: Peer, description: str | None) -> None:
    """Compare all layers as the command line says; write a document and a page after each.

    Parameters
    ----------
    side : Peer
        Other mapper, whose name is that of the files.
    description : str or None
        Text of the help.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", type=Path, required=True, help="folder of the environment")
    parser.add_argument("--python", default="", help="Python that makes it, by default this one")
    parser.add_argument("--only", default="", help="word in the layers that are compared")
    parser.add_argument("--limit", type=int, default=300, help="seconds of a layer's search")
    options = parser.parse_args()
    output = Path(__file__).with_name(side.name.lower())
    executable = peer_python(
        options.peers.absolute() / f"{side.package}-{side.version}",
        options.python,
        side.requirements,
    )
    document = output.with_suffix(".json")
    results = list[dict[str, Any]]()
    if document.exists():
        results = json.loads(document.read_text(encoding="utf-8"))["results"]
    for case in CASES:
        if options.only not in f"{case.words} {case.unit.name}" or (
            case.unit.units > side.most_units
        ):
            continue
        mine = figures_of_case(case)
        for objective in side.objectives:
            key = {"words": case.words, "machine": case.unit.name, "objective": objective}
            before = next((r for r in results if key.items() <= r.items()), None)
            if before is not None:
                before["ours"] = mine[objective]
                peer_figures = before["theirs"]
            else:
                peer_figures = peer(
                    executable, side.script, request(case, objective), options.limit
                )
                results.append({**key, "ours": mine[objective], "theirs": peer_figures})
            line = f"{case.words} {case.unit.name} {objective}: {mine[objective]} {peer_figures}"
            print(line, file=sys.stderr, flush=True)
            document.write_text(json.dumps({"results": results}, indent=1) + "\n", "utf-8")
            lines = [
                f"# Our mappings beside {side.name}'s",
                "",
                *environment({side.package: side.version}),
                "",
                side.notes.strip(),
                "",
                *rows(results),
                "",
            ]
            output.with_suffix(".md").write_text("\n".join(lines), "utf-8")
