"""Cores of HASCO's kind: their intrinsics, parameters, area and energy, and a core as a target."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from cpembed.cost.machine.technology import Sram, technology
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import CpembedError, SpecError
from cpembed.exploration.described.silicon import MemorySilicon, Silicon
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.schema import close_match, joined
from cpembed.ir.dtypes import size_bytes
from cpembed.targets.family import Point, Value

SUMS = {"int8": "int32", "uint8": "int32", "float16": "float32", "float32": "float32"}
"""Element types of sums by those of the factors."""

DOUBLE, SINGLE = "double_buffered", "single_buffered"
"""Names of the machines of a core's target: with software that loads the next tile while one is
computed, for which each has half of the scratchpad, and with software that does not."""

WINDOW = 3
"""Number of rows and columns of the filter in the convolution's intrinsic (HASCO, VII-B)."""


@dataclass(frozen=True)
class Role:
    """An operand of an intrinsic with its axes."""

    name: str
    axes: tuple[str, ...]
    is_output: bool = False


@dataclass(frozen=True, kw_only=True)
class Intrinsic:
    """The computation of an array of processing elements, which takes ``cycles``.

    ``stationary`` is the operand whose tiles stay in the processing elements, and for which the
    local memories are; ``streams`` are factors of which each execution reads a new tile.
    """

    expression: str
    axes: Mapping[str, int]
    roles: tuple[Role, ...]
    stationary: str
    text: str
    cycles: int = 1
    streams: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of an execution."""
        return math.prod(self.axes.values())

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def tile_elements(self, name: str) -> int:
        """Return the elements of an operand's tile."""
        return math.prod(self.axes[axis] for axis in self.role(name).axes)


DATAFLOWS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("os", "ws"),
    "conv2d": ("os", "ws"),
    "gemv": ("os",),
    "dot": ("os",),
}
"""Dataflows by intrinsic: outputs (``os``) or weights (``ws``) are stationary. HASCO has one for
matrix-vector and dot products, because the matrix, or both vectors, are used once."""


def _intrinsic(name: str, dataflow: str, rows: int, columns: int) -> Intrinsic:
    """Return an intrinsic on an array of processing elements, with one of its :data:`DATAFLOWS`."""
    # The axes that an array unrolls are those of the instruction; everything else is a loop around
    # it. HASCO's generators do the same (generator_gemm.py: x, y and 1).
    a, b, c = "A", "B", "C"
    match name, dataflow:
        # Each cycle takes a column of one factor and a row of the other, and adds to all sums.
        case "gemm", "os":
            return Intrinsic(
                expression="C[x,y] += A[x] * B[y]",
                axes={"x": rows, "y": columns},
                roles=(Role(a, ("x",)), Role(b, ("y",)), Role(c, ("x", "y"), True)),
                stationary=c,
                text=f"matrix product of {rows} rows, {columns} columns and one step",
            )
        # Each cycle takes a row of the image against the weights that stay.
        case "gemm", _:
            return Intrinsic(
                expression="C[y] += A[z] * B[z,y]",
                axes={"y": columns, "z": rows},
                roles=(Role(a, ("z",)), Role(b, ("z", "y")), Role(c, ("y",), True)),
                stationary=b,
                text=f"matrix product of one row, {columns} columns and {rows} steps",
            )
        # One pixel an execution, over its window. The pixels are loops, so that no index of the
        # instruction is a sum of axes, which the digit model could not enumerate.
        case "conv2d", _:
            axes = ("c", "r", "s")
            return Intrinsic(
                expression="C[k] += A[c,r,s] * B[k,c,r,s]",
                axes={"k": rows, "c": columns, "r": WINDOW, "s": WINDOW},
                roles=(Role(a, axes), Role(b, ("k", *axes)), Role(c, ("k",), True)),
                stationary=b if dataflow == "ws" else c,
                cycles=WINDOW * WINDOW,
                text=f"{WINDOW} x {WINDOW} convolution of {rows} filters and {columns} channels",
            )
        # The matrix is used once, so each execution brings a new tile of it.
        case "gemv", _:
            return Intrinsic(
                expression="C[x] += A[x,z] * B[z]",
                axes={"x": rows, "z": columns},
                roles=(Role(a, ("x", "z")), Role(b, ("z",)), Role(c, ("x",), True)),
                stationary=c,
                text=f"product of a matrix of {rows} rows and {columns} columns with a vector",
                streams=(a,),
            )
        case _:
            return Intrinsic(
                expression="C[] += A[z] * B[z]",
                axes={"z": rows * columns},
                roles=(Role(a, ("z",)), Role(b, ("z",)), Role(c, (), True)),
                stationary=c,
                text=f"dot product of {rows * columns} elements",
                streams=(a, b),
            )


@dataclass(frozen=True, kw_only=True)
class Core:
    """The parameters of a point; ``local_bytes`` is the size of all local memories."""

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
    def at(point: Point) -> Core:
        """Return the core of a point that has no flaw."""
        rows = int(point["pe_rows"])
        return Core(
            intrinsic_name=str(point["intrinsic"]),
            rows=rows,
            columns=int(point["pe_columns"]) or rows,
            dataflow=str(point["dataflow"]),
            dtype=str(point["dtype"]),
            scratchpad_bytes=int(point["scratchpad_kib"]) * 1024,
            banks=int(point["banks"]),
            bank_bits=int(point["bank_bits"]),
            local_bytes=int(point["local_kib"]) * 1024,
            dma_bits=int(point["dma_bits"]),
            dma_burst_bytes=int(point["dma_burst_bytes"]),
            dram_latency_cycles=int(point["dram_latency_cycles"]),
            clock_mhz=float(point["clock_mhz"]),
            constraints=str(point["constraints"]),
            technology=str(point["technology"]),
        )

    @cached_property
    def intrinsic(self) -> Intrinsic:
        return _intrinsic(self.intrinsic_name, self.dataflow, self.rows, self.columns)

    @property
    def sums(self) -> str:
        """Element type of the outputs."""
        return SUMS[self.dtype]

    @property
    def elements(self) -> int:
        """Number of processing elements."""
        return self.rows * self.columns

    def type_of(self, operand: str) -> str:
        return self.sums if self.intrinsic.role(operand).is_output else self.dtype

    def tile_bytes(self, operand: str) -> int:
        """Return the bytes of an operand's tile of one execution."""
        return self.intrinsic.tile_elements(operand) * size_bytes(self.type_of(operand))

    @property
    def bytes_per_cycle(self) -> int:
        """Bytes that all banks of the scratchpad read or write in a cycle."""
        return self.banks * self.bank_bits // 8


def specification_text(core: Core) -> str:
    """Return the text of the TOML target: the instruction, and the memories around it."""
    array = f"{core.rows} x {core.columns} processing elements"
    name = f"{core.intrinsic_name}_core_{core.rows}x{core.columns}_{core.dataflow}"
    types = f"{core.dtype} x {core.dtype} -> {core.sums}"
    source = "the cores of HASCO (Xiao et al., ISCA 2021); the figures are a point's in a space of "
    lines = [
        f"# A core with {array}: {core.intrinsic.text}.",
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
        # A register holds the tile of one execution.
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


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _machine(core: Core, name: str, overlap: str) -> list[str]:
    """Return the lines of a machine; ``overlap`` is the scratchpad's."""
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
    """Return the core as a target."""
    # Through a file, so that a point has exactly what a user gets who saves and opens its target.
    with tempfile.TemporaryDirectory(prefix="cpembed-core-") as folder:
        path = Path(folder) / "core.toml"
        write_whole(path, specification_text(core))
        return load_hardware_spec(path)


# ------------------------------------------------------------------------------ points

_RANGES: dict[str, tuple[int, int]] = {
    "pe_rows": (1, 256),
    "pe_columns": (0, 256),
    "scratchpad_kib": (1, 1 << 16),
    "banks": (1, 64),
    "bank_bits": (8, 512),
    "local_kib": (0, 1 << 14),
    "dma_bits": (8, 4096),
    "dma_burst_bytes": (1, 4096),
    "dram_latency_cycles": (0, 10_000),
}
"""Minimum and maximum of the parameters that are integers."""

_MAX_CLOCK_MHZ = 10_000

PointKey = tuple[tuple[str, Value], ...]
"""A point as its sorted items, which can be hashed."""


@lru_cache(maxsize=1 << 14)
def read_core(key: PointKey) -> tuple[Core, Silicon]:
    """Return the core of a point; a :class:`SpecError` names the parameter, flaw and remedy."""
    point = dict(key)
    _check_names(point)
    for name, (least, most) in _RANGES.items():
        value = point[name]
        if not isinstance(value, int) or not least <= value <= most:
            raise SpecError(f"{name} = {value}; allowed: {least:,} to {most:,}")
    for name in ("bank_bits", "dma_bits"):
        if int(point[name]) % 8:
            raise SpecError(f"{name} = {point[name]} is no multiple of 8")
    clock = point["clock_mhz"]
    if isinstance(clock, str) or not 0 < clock <= _MAX_CLOCK_MHZ:
        raise SpecError(f"clock_mhz = {clock}; allowed: above 0, to {_MAX_CLOCK_MHZ:,}")
    # Only now, since it converts the values without checks.
    core = Core.at(point)
    costs = silicon(core)
    cycle = _scratchpad(core).cycle_ns
    # Nanoseconds times MHz: a cycle is 1000 / MHz ns.
    if cycle * core.clock_mhz > 1000:
        raise SpecError(
            f"clock_mhz = {core.clock_mhz:g}: a bank of the scratchpad takes {cycle:.2f} ns; "
            f"allowed: {1000 // cycle:g} and less, or more banks"
        )
    return core, costs


def _check_names(point: dict[str, Value]) -> None:
    allowed = {"intrinsic": tuple(DATAFLOWS), "dtype": tuple(SUMS)}
    for name, values in allowed.items():
        value = point[name]
        if value not in values:
            near = close_match(str(value), values)
            raise SpecError(f"{name} = {value}{near}; allowed: {joined(values)}")
    dataflows = DATAFLOWS[str(point["intrinsic"])]
    if point["dataflow"] not in dataflows:
        raise SpecError(
            f"dataflow = {point['dataflow']}; allowed for {point['intrinsic']}: {joined(dataflows)}"
        )
    try:
        load_constraint_set(str(point["constraints"]))
    except CpembedError as error:
        raise SpecError(f"constraints: {error}") from None


# ------------------------------------------------------------------------------ area and energy

_LOCAL_MACROS = 2
"""Number of macros of a local memory: one is read while the other is written."""


def silicon(core: Core) -> Silicon:
    """Return the areas and energies of a core.

    What no source has by parameter is not counted: the network between scratchpad and array, the
    DMA engine, the controller, and leakage of logic. Raises :class:`~cpembed.errors.SpecError`
    where the technology has no such memory or unit.
    """
    tables, elements = technology(core.technology), core.elements
    mac = tables.mac(core.dtype, core.sums)
    # Registers of a processing element: two factors and a sum.
    bits = 8 * (2 * size_bytes(core.dtype) + size_bytes(core.sums))
    memories = {
        "scratchpad": MemorySilicon.of_sram(_scratchpad(core)),
        "dram": MemorySilicon.of_dram(tables),
    }
    if core.local_bytes:
        width = 8 * size_bytes(core.type_of(core.intrinsic.stationary))
        size = core.local_bytes / elements
        memories["local"] = MemorySilicon.of_memory(tables, size, width, _LOCAL_MACROS, elements)
    return Silicon(
        memories,
        units_um2=elements * (mac.area_um2 + tables.register_area_um2(bits)),
        computed="macs",
        compute_pj=mac.energy_pj + tables.register_pj(bits),
    )


def _scratchpad(core: Core) -> Sram:
    return technology(core.technology).sram(core.scratchpad_bytes, core.bank_bits, core.banks)
