"""Energy and area of what machines are made of, from committed tables with their sources.

A technology is one process node: multipliers and adders, registers, main memory (a TOML file), and
SRAM by capacity and width (a table beside it, computed by CACTI 7: ``experiments/technology``).
Between the rows of that table figures are interpolated, linearly in logarithms; outside of it, and
for an operation that no source has, they are refused.
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
from cpembed.hw.schema import close_match, one_of, read_table

_FOLDER = Path(__file__).parent / "technologies"


class Unit(msgspec.Struct, frozen=True):
    """An arithmetic unit: the energy of an operation, in pJ, and its area, in um2."""

    energy_pj: float
    area_um2: float

    def __add__(self, other: Unit) -> Unit:
        return Unit(self.energy_pj + other.energy_pj, self.area_um2 + other.area_um2)


class _Registers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an access of ``bits``; the area is that of one bit."""

    bits: int
    energy_pj: float
    area_um2_per_bit: float


class _Dram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of ``bits`` read or written."""

    bits: int
    energy_pj: float


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The TOML file of a technology."""

    name: str
    node_nm: int
    sources: dict[str, str]
    multiply: dict[str, Unit]
    add: dict[str, Unit]
    register: _Registers
    dram: _Dram


@dataclass(frozen=True)
class Sram:
    """A memory of one or several banks: energies of an access of ``width_bits`` to one of them, and
    area and leakage of all. ``cycle_ns`` lie between two accesses to a bank."""

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


_Figures = tuple[float, float, float, float, float]
"""Read pJ, write pJ, um2, W and ns of one bank."""


@dataclass(frozen=True, eq=False)
class Technology:
    """A process node. ``sources`` says, by kind of figure, where it is from."""

    tables: _Tables
    sram_rows: Mapping[tuple[int, int], _Figures]
    """By width in bits and capacity in bytes."""

    @property
    def name(self) -> str:
        return self.tables.name

    @property
    def node_nm(self) -> int:
        return self.tables.node_nm

    @property
    def sources(self) -> Mapping[str, str]:
        return self.tables.sources

    def mac(self, dtype_in: str, dtype_out: str) -> Unit:
        """A multiplication of two of ``dtype_in`` with an addition of ``dtype_out``. An unsigned
        type takes the figures of the signed one.

        Raises :class:`SpecError` where no source has it.
        """
        return self._operation("multiply", dtype_in) + self._operation("add", dtype_out)

    def add(self, dtype: str) -> Unit:
        """An addition of two of ``dtype``; raises as :meth:`mac`."""
        return self._operation("add", dtype)

    def _operation(self, operation: str, dtype: str) -> Unit:
        known: Mapping[str, Unit] = getattr(self.tables, operation)
        found = known.get(dtype.removeprefix("u"))
        if found is None:
            problem = f"technology {self.name} has no figures to {operation} {dtype}"
            raise SpecError(f"{problem}; it has {one_of(known)}")
        return found

    def register_pj(self, bits: float) -> float:
        """Of an access to a register of so many bits."""
        return self.tables.register.energy_pj * bits / self.tables.register.bits

    def register_area_um2(self, bits: float) -> float:
        return self.tables.register.area_um2_per_bit * bits

    def dram_pj(self, count: float) -> float:
        """Of so many bytes read from main memory, or written there."""
        return self.tables.dram.energy_pj * count * 8 / self.tables.dram.bits

    def sram(self, capacity_bytes: float, width_bits: float, banks: int = 1) -> Sram:
        """A memory of ``banks`` equal macros, each with a port of ``width_bits`` that reads or
        writes once a cycle; what connects them is not counted.

        Raises :class:`SpecError` where one bank lies outside of the table.
        """
        if banks < 1:
            raise SpecError(f"an SRAM of {banks} banks is none; give at least 1")
        read, write, area, leakage, cycle = self._bank(capacity_bytes / banks, width_bits)
        return Sram(
            capacity_bytes, width_bits, banks, read, write, area * banks, leakage * banks, cycle
        )

    def _bank(self, capacity: float, width: float) -> _Figures:
        widths = sorted({row[0] for row in self.sram_rows})
        found: list[tuple[float, _Figures]] = []
        for own, weight in _around(widths, width):
            for size, other in _around(self._capacities[own], capacity):
                found.append((weight * other, self.sram_rows[own, size]))
        if not found or not math.isclose(sum(weight for weight, _ in found), 1):
            raise SpecError(self._outside(capacity, width, widths))
        return tuple(  # pyright: ignore[reportReturnType]
            math.exp(sum(weight * math.log(figures[i]) for weight, figures in found))
            for i in range(len(found[0][1]))
        )

    @cached_property
    def _capacities(self) -> Mapping[int, list[int]]:
        """Of the table's rows by width, ascending."""
        found: dict[int, list[int]] = {}
        for width, capacity in sorted(self.sram_rows):
            found.setdefault(width, []).append(capacity)
        return found

    def _outside(self, capacity: float, width: float, widths: list[int]) -> str:
        asked = f"an SRAM bank of {capacity:g} bytes with accesses of {width:g} bits"
        said = f"{asked} is outside of the table of technology {self.name}"
        if not widths[0] <= width <= widths[-1]:
            return f"{said}; its accesses are of {widths[0]} to {widths[-1]} bits"
        own = self._capacities[widths[bisect_left(widths, width)]]
        return f"{said}; its banks of this width have {own[0]:,} to {own[-1]:,} bytes"


def _around(grid: list[int], value: float) -> Iterator[tuple[int, float]]:
    """The points of a grid to either side of a value, with their weights in logarithms; nothing
    outside of the grid."""
    place = bisect_left(grid, value)
    if place < len(grid) and grid[place] == value:
        yield grid[place], 1.0
    elif 0 < place < len(grid):
        low, high = grid[place - 1], grid[place]
        part = math.log(value / low) / math.log(high / low)
        yield low, 1.0 - part
        yield high, part


def technologies() -> tuple[str, ...]:
    """The names of those that there are."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@lru_cache
def technology(name: str = "45nm") -> Technology:
    """A technology by its name; raises :class:`SpecError` for a name that there is not."""
    if name not in technologies():
        near = close_match(name, technologies())
        raise SpecError(f"unknown technology {name!r}{near}; allowed: {one_of(technologies())}")
    tables = read_table(_FOLDER / f"{name}.toml", _Tables)
    return Technology(tables, _sram_rows(_FOLDER / f"{name}_sram.csv"))


def _sram_rows(path: Path) -> dict[tuple[int, int], _Figures]:
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
