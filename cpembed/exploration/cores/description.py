"""A point of the family as a machine: the text of its TOML target, and the target itself."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from cpembed.exploration.cores.intrinsics import Intrinsic, intrinsic
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.family import Point

SUMS = {"int8": "int32", "uint8": "int32", "float16": "float32", "float32": "float32"}
"""The element types that cores multiply, and those in which they add."""

DOUBLE, SINGLE = "double_buffered", "single_buffered"
"""The machines of a core's target: with software that loads the next tile while one is computed,
for which each has half of the scratchpad, and with software that does not."""


@dataclass(frozen=True)
class Core:
    """The figures of a point. ``local_bytes`` is of all processing elements together."""

    intrinsic_name: str
    rows: int
    columns: int
    dataflow: str
    dtype: str
    scratchpad_bytes: int
    banks: int
    bank_bits: int
    local_bytes: int
    dma_bits: int
    dma_burst_bytes: int
    dram_latency_cycles: int
    clock_mhz: float
    constraints: str
    technology: str

    @staticmethod
    def of(point: Point) -> Core:
        """Of a point that has no flaw."""
        return Core(
            str(point["intrinsic"]),
            int(point["pe_rows"]),
            int(point["pe_columns"]) or int(point["pe_rows"]),
            str(point["dataflow"]),
            str(point["dtype"]),
            int(point["scratchpad_kib"]) * 1024,
            int(point["banks"]),
            int(point["bank_bits"]),
            int(point["local_kib"]) * 1024,
            int(point["dma_bits"]),
            int(point["dma_burst_bytes"]),
            int(point["dram_latency_cycles"]),
            float(point["clock_mhz"]),
            str(point["constraints"]),
            str(point["technology"]),
        )

    @cached_property
    def intrinsic(self) -> Intrinsic:
        return intrinsic(self.intrinsic_name, self.dataflow, self.rows, self.columns)

    @property
    def sums(self) -> str:
        """The type of outputs."""
        return SUMS[self.dtype]

    @property
    def elements(self) -> int:
        """Processing elements."""
        return self.rows * self.columns

    def type_of(self, operand: str) -> str:
        return self.sums if self.intrinsic.role(operand).is_output else self.dtype

    def tile_bytes(self, operand: str) -> int:
        """Of an operand's tile of one execution."""
        return self.intrinsic.tile_elements(operand) * size_bytes(self.type_of(operand))

    @property
    def bytes_per_cycle(self) -> int:
        """Of the scratchpad: all banks."""
        return self.banks * self.bank_bits // 8


def specification_text(core: Core) -> str:
    """The TOML target: the instruction, and the memories around it."""
    array = f"{core.rows} x {core.columns} processing elements"
    name = f"{core.intrinsic_name}_core_{core.rows}x{core.columns}_{core.dataflow}"
    types = f"{core.dtype} x {core.dtype} -> {core.sums}"
    source = "the cores of HASCO (Xiao et al., ISCA 2021); the figures are a point's in a space of "
    lines = [
        f"# A core with {array}: {core.intrinsic.words}.",
        "",
        f'name = "{name}"',
        f'description = "{core.intrinsic_name} core, {array}, {core.dataflow}, {types}"',
        f'source = "{source}machines (docs/cores.md)"',
        f'constraints = "{core.constraints}"',
        "",
        "[instruction]",
        f'expression = "{core.intrinsic.expression}"',
        "",
        "[instruction.axes]",
        *(f"{axis} = {extent}" for axis, extent in core.intrinsic.axes.items()),
        "",
    ]
    for role in core.intrinsic.roles:
        lines += [
            f"[operands.{role.name}]",
            f'dtype = "{core.type_of(role.name)}"',
            f'scope = "{_scope(role.name)}"',
            f"tile = [{_quoted(role.axes)}]",
        ]
        if role.axes:
            # The DMA brings elements of any distance next to each other.
            strides = ", ".join(f'{axis} = "any"' for axis in role.axes)
            lines.append(f"stride = {{ {strides} }}")
        lines.append("")
    for role in core.intrinsic.roles:
        # A register for the tile of one execution.
        lines += [
            f'[memories."{_scope(role.name)}"]',
            f"capacity_bytes = {core.tile_bytes(role.name)}",
            "",
        ]
    for machine, overlap in ((DOUBLE, "double_buffer"), (SINGLE, "none")):
        lines += _machine(core, machine, overlap)
    return "\n".join(lines)


def _scope(operand: str) -> str:
    return f"core.{operand.lower()}"


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _machine(core: Core, name: str, overlap: str) -> list[str]:
    """The tables of a machine; ``overlap`` is the scratchpad's."""
    place = f"machines.{name}"
    software = f"{name.replace('_', '-')} software"
    lines = [
        f"[{place}]",
        f'source = "{core.intrinsic_name} core of HASCO\'s kind (docs/cores.md), {software}"',
        'known = "assumed"',
        f"clock_mhz = {core.clock_mhz:g}",
        'layouts = "original"',
        "",
        f"[{place}.compute]",
        f"cycles = {core.intrinsic.cycles}",
        "",
    ]
    stationary = core.intrinsic.stationary
    for role in core.intrinsic.roles:
        local = role.name == stationary and core.local_bytes
        lines += [
            f'[{place}.memories."{_scope(role.name)}"]',
            f'parent = "{"local" if local else "scratchpad"}"',
            f'moves = "{"execution" if role.name in core.intrinsic.streams else "tile"}"',
            "",
        ]
    if core.local_bytes:
        lines += [
            f"[{place}.memories.local]",
            'parent = "scratchpad"',
            f"capacity_bytes = {core.local_bytes}",
            f"read_bytes_per_cycle = {core.tile_bytes(stationary)}",
            f"write_bytes_per_cycle = {core.tile_bytes(stationary)}",
            "",
        ]
    return [
        *lines,
        f"[{place}.memories.scratchpad]",
        'parent = "dram"',
        f"capacity_bytes = {core.scratchpad_bytes}",
        f"banks = {core.banks}",
        f"read_bytes_per_cycle = {core.bytes_per_cycle}",
        f"write_bytes_per_cycle = {core.bytes_per_cycle}",
        "half_duplex = true",
        f"granule_bytes = {core.dma_burst_bytes}",
        'transfer = "load, store"',
        f'overlap = "{overlap}"',
        "",
        f"[{place}.memories.dram]",
        f"read_bytes_per_cycle = {core.dma_bits / 8:g}",
        f"write_bytes_per_cycle = {core.dma_bits / 8:g}",
        "half_duplex = true",
        f"latency_cycles = {core.dram_latency_cycles}",
        "",
    ]


@lru_cache(maxsize=256)
def target(core: Core) -> HardwareSpec:
    """The point as any target from a file."""
    with tempfile.TemporaryDirectory(prefix="cpembed-core-") as folder:
        path = Path(folder) / "core.toml"
        write_whole(path, specification_text(core))
        return load_hardware_spec(path)
