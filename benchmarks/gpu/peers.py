"""Compare the machine code of main loops with those of CUTLASS, Triton and TileLang.

    python -m benchmarks.gpu.peers -o peers.json --cutlass DIR --triton PYTHON --tilelang PYTHON
    python -m benchmarks.gpu.peers --table peers.json

Needs nvcc, nvdisasm and cuobjdump, and no GPU. DIR is a checkout of CUTLASS, PYTHON the interpreter
of an environment with the package; what is not there is named and left out. Nothing is timed but
compilation. Of each layer, architecture and compiler there are two kernels: one with the tile of
the compiler's defaults, one with the tile that all are compared at (:mod:`~.peer_layers`).

Counts are those of an iteration, for 32 products of m16n8k16 of one warp; a product of a warp group
counts as the products of a warp that it replaces. Of attention, which branches, they are those of a
usual turn, in which no sums are scaled. An interrupted call goes on when it is repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import peer_cutlass
from benchmarks.gpu.main_loop import (
    Instruction,
    kernels,
    kinds,
    listing,
    loops,
    tool,
    usual_turn,
)
from benchmarks.gpu.peer_layers import LAYERS, CompiledKernel, Layer, Tile, equal_tile
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import BackendUnavailable, CpembedError, LoweringError
from cpembed.files import write_whole
from cpembed.targets.cuda.chains.build import chain_text
from cpembed.targets.cuda.chains.pairs import find_pairs
from cpembed.targets.cuda.chains.plan import ChainSchedule, check
from cpembed.targets.cuda.chains.space import plan_of, ranked_plans
from cpembed.targets.cuda.model import gpu
from cpembed.targets.registry import open_target
from cpembed.workloads.chain_families import parse_chain

MACHINES = {
    "sm_80": ("mma_f16", "a100"),
    "sm_90a": ("wgmma_f16", "h100"),
    "sm_120a": ("mma_f16", "rtx_5090"),
}
"""Target of an architecture and the machine whose model chooses the schedule."""

# Triton's tutorial 3 has these first for CUDA; TileLang's first example has the other two.
TRITON_TILE = Tile(128, 256, 64, 3)
TRITON_CONVOLUTION = Tile(128, 64, 64, 4)
TRITON_ATTENTION = Tile(128, 0, 64, 3)
TILELANG_TILE = Tile(128, 128, 32, 3)
TILELANG_HOPPER = Tile(128, 256, 64, 3)

PRODUCT = r"[HIQ]G?MMA\."
_SHAPE = re.compile(r"[HIQ](G?)MMA\.(?:SP\.)?(\d+)(?:x(\d+)x(\d+))?")


def warp_products(instruction: Instruction) -> float:
    """Return how many products of m16n8k16 a warp computes by an instruction.

    Parameters
    ----------
    instruction : Instruction
        Product of 16-bit floats: ``HMMA.16816`` is one, ``HGMMA.64x256x16`` 32 of each warp.
    """
    shape = _SHAPE.match(instruction.opcode)
    if shape is None:
        raise ValueError(f"{instruction.opcode} is no product")
    if shape[1]:
        return int(shape[3]) / 8 * int(shape[4]) / 16
    return {"16816": 1.0, "1688": 0.5}[shape[2]]


@dataclass(frozen=True)
class LoopCounts:
    """Instructions of a main loop for 32 products of a warp, by kind."""

    products: float
    """Products of m16n8k16 in an iteration."""
    kinds: dict[str, float]
    slots: float
    """Instructions in all."""


def loop_counts(text: str, *, usual: bool = False) -> LoopCounts | None:
    """Return the counts of the loop with most products; None if there is none.

    Parameters
    ----------
    text : str
        Output of ``nvdisasm -c``.
    usual : bool
        True to count what a usual turn of the loop executes, not all of its code.
    """
    bodies = kernels(text)
    multiplying = [
        usual_turn(body, PRODUCT) if usual else loop
        for body in bodies.values()
        for loop in loops(body, PRODUCT)
    ]
    loop = max(multiplying, key=_products, default=None)
    if loop is None:
        return None
    products = _products(loop)
    scale = 32 / products
    counted: Counter[str] = kinds(loop)
    return LoopCounts(products, {k: n * scale for k, n in counted.items()}, len(loop) * scale)


def _products(loop: Sequence[Instruction]) -> float:
    return sum(warp_products(i) for i in loop if re.match(PRODUCT, i.opcode))


def resources(cubin: Path, text: str) -> tuple[int, int]:
    """Return the registers of a thread, and how many instructions access spilled ones.

    Parameters
    ----------
    cubin : Path
        Machine code; of several kernels the one with most registers counts.
    text : str
        Its listing.
    """
    command = [tool("cuobjdump"), "-res-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = max(int(number) for number in re.findall(r"REG:(\d+)", usage))
    return registers, len(re.findall(r"\b(?:LDL|STL)[. ]", text))


def our_kernel(layer: Layer, tile: Tile | None, architecture: str, folder: Path) -> CompiledKernel:
    """Compile this project's kernel for a layer.

    Parameters
    ----------
    layer : Layer
        Product or convolution.
    tile : Tile or None
        Tile of a block; None for the one that the model chooses.
    architecture : str
        Key of :data:`MACHINES`.
    folder : Path
        Folder of the text and the cubin.

    Raises
    ------
    LoweringError
        If no schedule has the tile.
    """
    name, machine = MACHINES[architecture]
    spec = hardware_spec(name, machine=machine)
    start = time.perf_counter()
    if layer.kind == "attention":
        return _our_attention(layer, tile, architecture, folder)
    computation = workload(layer.words, target=spec)
    best = solve(computation, spec, constraints="fused", top=1).embeddings[0].candidate
    target = open_target(spec)
    epilogue = target.epilogue(computation, EpilogueRequest("float16"))
    lowered = target.lower(best.program, epilogue)
    space = target.space(lowered)
    if tile is None:
        schedule = space.best().schedule
    else:
        equal = [item.schedule for item in space.ranked() if _comparable(item.schedule, tile)]
        if not equal:
            raise LoweringError(f"no schedule has a tile of {tile.name}")
        schedule = equal[0]
    built = target.build(lowered, schedule)
    stem = folder / f"cpembed_{layer.stem}_{architecture}_{'own' if tile is None else 'equal'}"
    cubin = nvcc(built.text.source, stem, architecture)
    seconds = time.perf_counter() - start
    return CompiledKernel(cubin, seconds, built.plan.shared_bytes, tile_of(schedule))


def _our_attention(
    layer: Layer, tile: Tile | None, architecture: str, folder: Path
) -> CompiledKernel:
    name, machine = MACHINES[architecture]
    spec = hardware_spec(name, machine=machine)
    start = time.perf_counter()
    chain = parse_chain(layer.words.split())
    pairs = find_pairs(chain, spec)
    plan = ranked_plans(pairs, gpu(spec, machine))[0].plan
    if tile is not None:
        warps, rows = (8, 1) if layer.sizes["d"] > 64 else (4, 2)
        groups = plan.first.instruction.kind == "wgmma"
        schedule = ChainSchedule(
            "registers",
            (2 if groups else warps, 1),
            1 if groups else rows,
            tile.depth // 16,
            tile.columns // 8,
            tile.stages,
        )
        plan = plan_of(chain, plan.pair, schedule)
        check(plan, gpu(spec, machine).shared_bytes)
    stem = folder / f"cpembed_{layer.stem}_{architecture}_{'own' if tile is None else 'equal'}"
    source = chain_text(plan, architecture.rstrip("a")).source
    cubin = nvcc(source, stem, architecture)
    schedule = plan.schedule
    size = (plan.block_rows * plan.first.instruction.m, schedule.columns * 8, schedule.chunk * 16)
    seconds = time.perf_counter() - start
    return CompiledKernel(cubin, seconds, plan.shared_bytes, Tile(*size, schedule.stages))


def nvcc(text: str, stem: Path, architecture: str) -> Path:
    """Compile a text into a cubin and return its path.

    Parameters
    ----------
    text : str
        CUDA C++.
    stem : Path
        Path of both files without their suffixes.
    architecture : str
        Architecture as nvcc names it, ``sm_90a`` for instance.
    """
    source, cubin = stem.with_suffix(".cu"), stem.with_suffix(".cubin")
    source.write_text(text)
    command = ["nvcc", "-cubin", "-std=c++17", "-O3", f"-arch={architecture}"]
    subprocess.run([*command, "-o", str(cubin), str(source)], capture_output=True, check=True)
    return cubin


def tile_of(schedule: Any) -> Tile:
    """Return the tile of a schedule of instructions of 16 or 64 rows and 8 columns."""
    rows = 64 if hasattr(schedule, "groups") and not getattr(schedule, "warps", None) else 16
    first, second = schedule.block
    return Tile(first * rows, second * 8, schedule.depth * 16, schedule.stages)


def _comparable(schedule: Any, tile: Tile) -> bool:
    # Four warps of 64 x 64 results, as all others have.
    square = getattr(schedule, "warps", None) in (None, (2, 2))
    plain = schedule.splits == 1 and not getattr(schedule, "in_registers", False)
    # A ring of warp groups holds as many stages as there is room for.
    stages = schedule.stages if hasattr(schedule, "groups") else tile.stages
    return square and plain and tile_of(schedule) == replace(tile, stages=stages)


Row = dict[str, Any]
_KEY = ("layer", "architecture", "compiler", "tile")

Compiler = Callable[[Layer, Tile | None, str, Path], CompiledKernel]


def cutlass_kernels(checkout: Path) -> Compiler:
    """Return the function that compiles CUTLASS's kernels."""

    def compile_kernel(
        layer: Layer, tile: Tile | None, architecture: str, folder: Path
    ) -> CompiledKernel:
        tile = tile or peer_cutlass.DEFAULTS[layer.kind, architecture]
        return peer_cutlass.compile_kernel(checkout, layer, tile, architecture, folder)

    return compile_kernel


def script_kernels(script: str, python: str, *, tma: bool = False) -> Compiler:
    """Return the function that compiles by a script in an interpreter of its own.

    Parameters
    ----------
    script : str
        ``peer_triton`` or ``peer_tilelang``.
    python : str
        Interpreter that has the package.
    tma : bool
        True for the kernel whose author asks for TMA.
    """

    def compile_kernel(
        layer: Layer, tile: Tile | None, architecture: str, folder: Path
    ) -> CompiledKernel:
        example, warps = _script_tile(script, layer.kind, architecture)
        warps = warps if tile is None else 8 if architecture == "sm_90a" else 4
        tile = tile or (replace(example, columns=example.columns or layer.sizes.get("d", 0)))
        flavour = "tma" if tma else "plain"
        request = {
            "kind": layer.kind,
            "sizes": dict(layer.sizes),
            "tile": [tile.rows, tile.columns, tile.depth, tile.stages],
            "warps": warps if layer.kind != "attention" else _attention_warps(layer, architecture),
            "tma": tma,
            "architecture": architecture,
            "capability": int(architecture.strip("sm_a")),
            "stem": f"{layer.stem}_{architecture}_{tile.name}_{flavour}",
        }
        path = folder / f"{script}.json"
        path.write_text(json.dumps(request))
        file = Path(__file__).with_name(f"{script}.py")
        command = [python, str(file), str(path), str(folder)]
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        if process.returncode:
            lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
            raise BackendUnavailable(lines[-1])
        answer = json.loads(process.stdout.splitlines()[-1])
        return CompiledKernel(Path(answer["cubin"]), answer["seconds"], answer["shared"], tile)

    return compile_kernel


def _attention_warps(layer: Layer, architecture: str) -> int:
    return 8 if layer.sizes["d"] > 64 or architecture == "sm_90a" else 4


def _script_tile(script: str, kind: str, architecture: str) -> tuple[Tile, int]:
    """Return the tile and the warps of a package's own example."""
    if kind == "attention":
        return TRITON_ATTENTION, 4
    if script == "peer_triton":
        return (TRITON_TILE, 8) if kind == "gemm" else (TRITON_CONVOLUTION, 4)
    if architecture == "sm_90a" and kind == "gemm":
        return TILELANG_HOPPER, 8
    return TILELANG_TILE, 4


def rows(
    compilers: dict[str, Compiler], folder: Path, only: str | None, earlier: Sequence[Row] = ()
) -> Iterator[Row]:
    """Yield a row for each layer, architecture, compiler and tile.

    Parameters
    ----------
    compilers : dict
        Functions that compile, by name.
    folder : Path
        Folder of texts and machine code.
    only : str, optional
        Part of the names of the layers and architectures that count.
    earlier : sequence of dict
        Rows that are there, and are not computed again.
    """
    counted_keys = [[row[name] for name in _KEY] for row in earlier if "failed" not in row]
    for layer in LAYERS:
        for architecture in MACHINES:
            if only is not None and only not in f"{layer.name} {architecture}":
                continue
            for name, compiler in compilers.items():
                if not _differs(name, layer.kind, architecture):
                    continue
                for kind in ("own", "equal"):
                    tile = None if kind == "own" else equal_tile(layer, architecture)
                    row = {"layer": layer.name, "kind": layer.kind, "architecture": architecture}
                    row |= {"compiler": name, "tile": kind}
                    if [row[name] for name in _KEY] in counted_keys:
                        continue
                    try:
                        kernel = compiler(layer, tile, architecture, folder)
                        row |= counted(kernel, usual=layer.kind == "attention")
                    except (CpembedError, subprocess.CalledProcessError) as error:
                        row["failed"] = str(error).splitlines()[0]
                    yield row


def _differs(compiler: str, kind: str, architecture: str) -> bool:
    """Return False where the kernel that asks for TMA is the other one, and for other kinds."""
    if kind == "attention":
        return compiler in ("cpembed", "Triton")
    kinds_with_tma = {"Triton, TMA": "gemm", "TileLang, TMA": "conv"}
    if compiler not in kinds_with_tma:
        return True
    return architecture != "sm_80" and kind == kinds_with_tma[compiler]


def counted(kernel: CompiledKernel, *, usual: bool) -> Row:
    """Return the entries of a row that follow from machine code.

    ``usual`` is that of :func:`loop_counts`.
    """
    text = listing(kernel.cubin)
    registers, spills = resources(kernel.cubin, text)
    loop = loop_counts(text, usual=usual)
    return {
        "block": kernel.tile.name,
        "registers": registers,
        "spills": spills,
        "shared_bytes": kernel.shared_bytes,
        "seconds": round(kernel.seconds, 1),
        "loop": None if loop is None else asdict(loop),
    }


def table(entries: Sequence[Row]) -> str:
    """Return a table of rows for each architecture."""
    order = {layer.name: number for number, layer in enumerate(LAYERS)}
    entries = sorted(entries, key=lambda row: order[row["layer"]])
    head = ("layer", "compiler", "tile", "block", "integer", "loads", "barriers", "slots")
    lines: list[str] = []
    for architecture in MACHINES:
        names = (*head, "registers", "spills", "shared", "seconds")
        lines += [f"### {architecture}", "", f"| {' | '.join(names)} |"]
        lines += [f"|{' --- |' * len(names)}"]
        lines += [_line(row) for row in entries if row["architecture"] == architecture]
        lines.append("")
    return "\n".join(lines)


def _line(row: Row) -> str:
    cells = [row["layer"], row["compiler"], row["tile"]]
    if "failed" in row:
        return f"| {' | '.join(cells)} | {row['failed'][:80]} |{' |' * 8}"
    loop = row["loop"]
    cells.append(row["block"])
    if loop is None:
        cells += ["unrolled", "", "", ""]
    else:
        counts = Counter[str](loop["kinds"])
        loads = counts["fragments"] + counts["copies"] + counts["memory"]
        barriers = counts["barriers"] + counts["control"]
        cells += [f"{n:.1f}" for n in (counts["integer"], loads, barriers, loop["slots"])]
    cells += [str(row["registers"]), str(row["spills"])]
    cells += [f"{row['shared_bytes'] / 1024:.0f} KiB", f"{row['seconds']:.1f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Compare main loops in machine code.")
    parser.add_argument("-o", "--output", type=Path, default=Path("peers.json"))
    parser.add_argument("--cutlass", type=Path, help="checkout of CUTLASS")
    parser.add_argument("--triton", help="interpreter that has Triton")
    parser.add_argument("--tilelang", help="interpreter that has TileLang")
    parser.add_argument("--only", help="layers or architectures whose names contain this")
    parser.add_argument("--folder", type=Path, help="keep texts and machine code here")
    parser.add_argument("--table", type=Path, help="rows of an earlier call: print a table")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())), end="")
        return
    compilers: dict[str, Compiler] = {"cpembed": our_kernel}
    if arguments.cutlass:
        peer_cutlass.version(arguments.cutlass)
        compilers["CUTLASS"] = cutlass_kernels(arguments.cutlass)
    if arguments.triton:
        compilers["Triton"] = script_kernels("peer_triton", arguments.triton)
        compilers["Triton, TMA"] = script_kernels("peer_triton", arguments.triton, tma=True)
    if arguments.tilelang:
        compilers["TileLang"] = script_kernels("peer_tilelang", arguments.tilelang)
        compilers["TileLang, TMA"] = script_kernels("peer_tilelang", arguments.tilelang, tma=True)
    for option in ("cutlass", "triton", "tilelang"):
        if not getattr(arguments, option):
            print(f"{option} is left out: --{option} names it", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        entries: list[Row] = []
        if arguments.output.is_file():
            entries = [e for e in json.loads(arguments.output.read_text()) if "failed" not in e]
        for row in rows(compilers, folder, arguments.only, tuple(entries)):
            entries.append(row)
            print(_line(row), flush=True)
            write_whole(arguments.output, json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
