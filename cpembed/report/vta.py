"""Runs and timings of VTA programs, as text and as JSON."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray
from rich.console import RenderableType

from cpembed.api.run_vta import VtaRunResult
from cpembed.report import words
from cpembed.report.blocks import header, table
from cpembed.targets.vta.tail import Requantized, Tail, Truncated
from cpembed.targets.vta.timing import Timing

Outputs = Mapping[str, NDArray[Any]]


def checksum(array: NDArray[Any]) -> str:
    """CRC-32 of an array's bytes."""
    return f"{zlib.crc32(array.tobytes()):08x}"


def run_report(outputs: Outputs) -> Iterator[RenderableType]:
    """What a program wrote."""
    columns = ["tensor", "dtype", "shape", "minimum", "maximum", "crc32"]
    yield table(
        [(name, "right" if name.endswith("imum") else "left") for name in columns],
        [tuple(str(value) for value in row.values()) for row in run_json(outputs)["outputs"]],
    )


def run_json(outputs: Outputs) -> dict[str, Any]:
    return {
        "outputs": [
            {
                "name": name,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "minimum": int(array.min()) if array.size else None,
                "maximum": int(array.max()) if array.size else None,
                "crc32": checksum(array),
            }
            for name, array in outputs.items()
        ]
    }


def cycles_report(timing: Timing) -> Iterator[RenderableType]:
    """Cycles, what the modules did meanwhile, what was moved."""
    memory = timing.memory
    products = f"{timing.macs:,} multiplications in {timing.gemm_cycles:,} cycles"
    reads = f"{timing.read_beats:,} beats in {timing.bursts:,} bursts"
    bus = f"bus {memory.bus_bits} bits, bursts of {memory.burst_beats} beats"
    yield header(
        [
            ("cycles", f"{timing.cycles:,}"),
            ("gemm", f"{timing.gemm_utilisation:.1%} of its peak: {products}"),
            ("reading", f"{timing.read_utilisation:.1%} of the bus: {reads}"),
            ("memory", f"delay {memory.dram_delay_cycles} cycles, {bus}"),
        ]
    )
    yield ""
    yield table(
        [("module", "left"), ("busy", "right"), ("stalled", "right"), ("idle", "right")],
        [
            (name, *(f"{part:,}" for part in (module.busy, module.stalled, module.idle)))
            for name, module in timing.modules.items()
        ],
    )
    yield ""
    yield table(
        [("moved", "left"), ("bytes", "right")],
        [(name, f"{moved:,}") for name, moved in timing.bytes.items()],
    )


def simulated_rows(result: VtaRunResult) -> list[tuple[str, str]]:
    """What a generated program is, and how long it takes on the simulated machine."""
    timing, found = result.timing, result.bounds
    time = f"{words.duration(result.microseconds)} at {result.clock_mhz:g} MHz"
    size = f"{len(result.program.instructions):,} instructions"
    parts = f"GEMM {found.gemm:,}, reading {found.read:,}, writing {found.write:,}"
    least = f"{found.gemm_or_dma:,} cycles, the most of {parts}"
    moved = (f"{name} {words.data_size(size)}" for name, size in timing.bytes.items())
    return [
        ("output", _output(result.lowered.tail)),
        ("schedule", _schedule(result)),
        ("program", f"{size}, {len(result.lowered.uops):,} micro-ops"),
        ("simulated", f"{timing.cycles:,} cycles, {time}, {result.gops:.1f} GOPS"),
        ("", f"GEMM core busy {timing.gemm_utilisation:.1%} of them"),
        ("at least", f"{least}; the program takes {result.lower_bound_ratio:.3f} times that"),
        *_with_alu(result),
        ("moved", "  ".join(moved)),
    ]


def _with_alu(result: VtaRunResult) -> list[tuple[str, str]]:
    """The bound with the compute module's other work, where that is more."""
    found = result.bounds
    if found.busiest_module == found.gemm_or_dma:
        return []
    least = f"{found.busiest_module:,} cycles with GEMM's resets and the ALU, which share a module"
    return [("", f"{least}; {result.busiest_module_ratio:.3f} times")]


def _output(tail: Tail) -> str:
    if isinstance(tail, Requantized):
        return f"int8: sums shifted right by {tail.shift}, clipped to {tail.low}..{tail.high}"
    if isinstance(tail, Truncated):
        return "int8: the low eight bits of the sums"
    return "int32: all bits of the sums, stored byte by byte"


def _schedule(result: VtaRunResult) -> str:
    """``untuned: tiles k.o 2  p.o 14; two threads along q.o; 2 regions of INP, 2 of WGT``."""
    lowered, chosen = result.lowered, result.lowered.schedule
    how = "untuned"
    if result.tuned is not None:
        how = f"the best of {words.plural(result.tuned.trials, 'trial')}"
    sizes = {name: chosen.tiles[name] for name in chosen.order if lowered.nest.extents[name] > 1}
    tiles = f"tiles {words.sizes(sizes)}" if sizes else "one tile"
    along = f" along {chosen.thread_loop}" if chosen.thread_loop is not None else ""
    threads = f"two threads{along}" if chosen.threads == 2 else "one thread"
    regions = f"{words.plural(chosen.slots[0], 'region')} of INP, {chosen.slots[1]} of WGT"
    return f"{how}: {tiles}; {threads}; {regions}"
