"""Reports of the commands on VTA programs: what they wrote, their cycles."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray
from rich.console import RenderableType

from cpembed.report.blocks import header, table
from cpembed.targets.vta.timing import Timing

Outputs = Mapping[str, NDArray[Any]]


def checksum(array: NDArray[Any]) -> str:
    """CRC-32 of an array's bytes."""
    return f"{zlib.crc32(array.tobytes()):08x}"


def run_report(outputs: Outputs) -> Iterator[RenderableType]:
    """What a program wrote."""
    yield table(
        ("tensor", "dtype", "shape", "minimum>", "maximum>", "crc32"),
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
        ("module", "busy>", "stalled>", "idle>"),
        [
            (name, *(f"{part:,}" for part in (module.busy, module.stalled, module.idle)))
            for name, module in timing.modules.items()
        ],
    )
    yield ""
    yield table(
        ("moved", "bytes>"),
        [(name, f"{moved:,}") for name, moved in timing.bytes.items()],
    )
