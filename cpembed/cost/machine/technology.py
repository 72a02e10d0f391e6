"""Energy and area of arithmetic units and memories, from committed tables with their sources.

A technology is one process node: multipliers and adders, registers, main memory (a TOML file), and
SRAM by capacity and width: a second table, of CACTI 7 (``experiments/studies/technology``),
between whose rows values are interpolated linearly in logarithms. Outside of that table, and for an
operation without a source, an error is raised.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from cpembed.errors import SpecError
from cpembed.hw.schema import close_match, joined, read_table

_FOLDER = Path(__file__).parent / "technologies"
_WIDTH_BITS = 64
"""Width of the accesses to a bank whose width is not stated."""


class Unit(msgspec.Struct, frozen=True):
    """Arithmetic unit: energy of an operation in pJ, area in um2."""

    energy_pj: float
    area_um2: float

    def __add__(self, addend: Unit) -> Unit:
        return Unit(self.energy_pj + addend.energy_pj, self.area_um2 + addend.area_um2)


class _Registers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Registers: energy of an access of ``bits``, and area of one bit."""

    bits: int
    energy_pj: float
    area_um2_per_bit: float


class _Dram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Main memory: energy of ``bits`` read or written."""

    bits: int
    energy_pj: float


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a technology's TOML file."""

    name: str
    node_nm: int
    sources: dict[str, str]
    multiply: dict[str, Unit]
    add: dict[str, Unit]
    register: _Registers
    dram: _Dram


@dataclass(frozen=True)
class Sram:
    """Memory of one or several banks.

    Energies are those of an access of ``width_bits`` to one bank, area and leakage those of all.
    ``cycle_ns`` is the time between two accesses to a bank.
    """

    capacity_bytes: float
    width_bits: float
    banks: int
    read_pj: float
    write_pj: float
    area_um2: float
    leakage_w: float
    cycle_ns: float

    @property
    def read_pj_per_byte(self) -> float:
        return self.read_pj * 8 / self.width_bits

    @property
    def write_pj_per_byte(self) -> float:
        return self.write_pj * 8 / self.width_bits


_Bank = tuple[float, float, float, float, float]
"""Read energy (pJ), write energy (pJ), area (um2), leakage (W) and cycle time (ns) of one bank."""


@dataclass(frozen=True, eq=False)
class Technology:
    """Process node, with its SRAM banks by width in bits and capacity in bytes.

    ``sources`` has the sources by kind of value.
    """

    tables: _Tables
    sram_rows: Mapping[tuple[int, int], _Bank]

    @property
    def name(self) -> str:
        return self.tables.name

    def mac(self, dtype_in: str, dtype_out: str) -> Unit:
        """Return the unit of a multiplication of ``dtype_in`` with an addition of ``dtype_out``.

        Raises :class:`SpecError` if no source has the operation.
        """
        return self._operation("multiply", dtype_in) + self._operation("add", dtype_out)

    def add(self, dtype: str) -> Unit:
        """Return the unit of an addition; raise as :meth:`mac`."""
        return self._operation("add", dtype)

    def _operation(self, operation: str, dtype: str) -> Unit:
        units: Mapping[str, Unit] = getattr(self.tables, operation)
        # An unsigned type has the unit of the signed one.
        unit = units.get(dtype.removeprefix("u"))
        if unit is None:
            problem = f"technology {self.name} has no figures to {operation} {dtype}"
            raise SpecError(f"{problem}; it has {joined(units)}")
        return unit

    def register_pj(self, bits: float) -> float:
        """Return the energy of an access to a register."""
        return self.tables.register.energy_pj * bits / self.tables.register.bits

    def register_area_um2(self, bits: float) -> float:
        """Return the area of a register."""
        return self.tables.register.area_um2_per_bit * bits

    def dram_pj(self, count: float) -> float:
        """Return the energy of bytes read from main memory, or written there."""
        return self.tables.dram.energy_pj * count * 8 / self.tables.dram.bits

    def sram(self, capacity_bytes: float, width_bits: float, banks: int = 1) -> Sram:
        """Return a memory of equal banks, each with a port that reads or writes once a cycle.

        The network that connects banks is not included.

        Raises
        ------
        SpecError
            The banks lie outside of the table.
        """
        if banks < 1:
            raise SpecError(f"an SRAM of {banks} banks is none; give at least 1")
        read, write, area, leakage, cycle = self._bank(capacity_bytes / banks, width_bits)
        return Sram(
            capacity_bytes=capacity_bytes,
            width_bits=width_bits,
            banks=banks,
            read_pj=read,
            write_pj=write,
            area_um2=area * banks,
            leakage_w=leakage * banks,
            cycle_ns=cycle,
        )

    def nearest_sram(self, capacity_bytes: float) -> Sram:
        """Return the bank of the table's nearest capacity, interpolated inside of the table."""
        sizes = self._capacities[_WIDTH_BITS]
        return self.sram(min(max(capacity_bytes, sizes[0]), sizes[-1]), _WIDTH_BITS)

    def _bank(self, capacity: float, width: float) -> _Bank:
        """Return a bank, interpolated between up to four rows of the table."""
        widths = sorted({row[0] for row in self.sram_rows})
        rows = [
            (of_width * of_size, self.sram_rows[row_width, size])
            for row_width, of_width in _neighbours(widths, width)
            for size, of_size in _neighbours(self._capacities[row_width], capacity)
        ]
        # Weights of a capacity outside of the table are missing, so that they do not add up to 1.
        if not rows or not math.isclose(sum(weight for weight, _ in rows), 1):
            raise SpecError(self._outside(capacity, width, widths))
        return tuple(  # pyright: ignore[reportReturnType]
            # Rows double in capacity and width, so values are interpolated in logarithms.
            math.exp(sum(weight * math.log(bank[i]) for weight, bank in rows))
            for i in range(len(rows[0][1]))
        )

    @cached_property
    def _capacities(self) -> Mapping[int, list[int]]:
        """Capacities of the table's rows by width, ascending."""
        capacities: dict[int, list[int]] = {}
        for width, capacity in sorted(self.sram_rows):
            capacities.setdefault(width, []).append(capacity)
        return capacities

    def _outside(self, capacity: float, width: float, widths: list[int]) -> str:
        bank = f"an SRAM bank of {capacity:g} bytes with accesses of {width:g} bits"
        problem = f"{bank} is outside of the table of technology {self.name}"
        if not widths[0] <= width <= widths[-1]:
            return f"{problem}; its accesses are of {widths[0]} to {widths[-1]} bits"
        sizes = self._capacities[widths[bisect_left(widths, width)]]
        return f"{problem}; its banks of this width have {sizes[0]:,} to {sizes[-1]:,} bytes"


def _neighbours(grid: list[int], value: float) -> Iterator[tuple[int, float]]:
    """Yield the points of a grid on both sides of a value, with their weights in logarithms.

    There are none outside of the grid.
    """
    place = bisect_left(grid, value)
    if place < len(grid) and grid[place] == value:
        yield grid[place], 1.0
    elif 0 < place < len(grid):
        low, high = grid[place - 1], grid[place]
        part = math.log(value / low) / math.log(high / low)
        yield low, 1.0 - part
        yield high, part


def technologies() -> tuple[str, ...]:
    """Return the names of all technologies."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@lru_cache
def technology(name: str = "45nm") -> Technology:
    """Return a technology by its name; raise :class:`SpecError` if there is none."""
    if name not in technologies():
        near = close_match(name, technologies())
        raise SpecError(f"unknown technology {name!r}{near}; allowed: {joined(technologies())}")
    tables = read_table(_FOLDER / f"{name}.toml", _Tables)
    return Technology(tables, _sram_rows(_FOLDER / f"{name}_sram.csv"))


def _sram_rows(path: Path) -> dict[tuple[int, int], _Bank]:
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (int(row["width_bits"]), int(row["capacity_bytes"])): (
                float(row["read_pj"]),
                float(row["write_pj"]),
                float(row["area_um2"]),
                float(row["leakage_w"]),
                float(row["cycle_ns"]),
            )
            for row in csv.DictReader(file)
        }
