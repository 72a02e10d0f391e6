"""Tables of energy and area: their figures, and what lies between and outside of them."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest

import cpembed.cost.machine.technology as module
from cpembed.cost.machine.technology import technologies, technology
from cpembed.errors import SpecError

_ROWS = [
    {name: float(value) for name, value in row.items()}
    for row in csv.DictReader(
        (Path(module.__file__).parent / "technologies" / "45nm_sram.csv").open(encoding="utf-8")
    )
]


def test_a_memory_of_the_table_has_the_tables_figures() -> None:
    for row in _ROWS:
        sram = technology().sram(row["capacity_bytes"], row["width_bits"])
        for name in ("read_pj", "write_pj", "area_um2", "leakage_w", "cycle_ns"):
            assert getattr(sram, name) == pytest.approx(row[name], rel=1e-12), row


def test_banks_are_macros_of_their_part_of_the_capacity() -> None:
    banked, macro = technology().sram(2**18, 64, 8), technology().sram(2**15, 64)
    assert banked.area_um2 == pytest.approx(8 * macro.area_um2)
    assert banked.leakage_w == pytest.approx(8 * macro.leakage_w)
    assert banked.read_pj == macro.read_pj
    assert banked.read_pj_per_byte == pytest.approx(macro.read_pj / 8)


def test_area_and_leakage_and_writing_grow_with_capacity() -> None:
    for low, high in pairwise(_ROWS):
        if low["width_bits"] == high["width_bits"]:
            for name in ("area_um2", "leakage_w", "write_pj"):
                assert low[name] < high[name], high


def test_figures_between_rows_lie_between_theirs() -> None:
    for width, capacity in ((64, 3 * 2**14), (48, 2**16), (100, 5 * 2**15)):
        low, high = (2 ** ((n - 1).bit_length() - 1) for n in (width, capacity))
        corners = [technology().sram(c, w) for c in (high, 2 * high) for w in (low, 2 * low)]
        sram = technology().sram(capacity, width)
        for name in ("read_pj", "area_um2", "leakage_w"):
            values = [getattr(corner, name) for corner in corners]
            assert min(values) < getattr(sram, name) < max(values)


def test_a_point_halfway_in_logarithms_is_the_geometric_mean() -> None:
    sram = technology().sram(2**16 * 2**0.5, 64)
    ends = [technology().sram(2**power, 64).area_um2 for power in (16, 17)]
    assert sram.area_um2 == pytest.approx((ends[0] * ends[1]) ** 0.5)


@pytest.mark.parametrize(
    "capacity, width, banks, message",
    [
        (2**23, 64, 1, "64 bits is outside of the table of technology 45nm; its banks of this"),
        (32, 8, 1, "have 64 to 4,194,304 bytes"),
        (2**10, 64, 16, "have 256 to 4,194,304 bytes"),
        (2**16, 4, 1, "its accesses are of 8 to 512 bits"),
        (2**16, 1024, 1, "its accesses are of 8 to 512 bits"),
        (2**16, 64, 0, "give at least 1"),
    ],
)
def test_a_memory_outside_of_the_table_is_refused(
    capacity: int, width: int, banks: int, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        technology().sram(capacity, width, banks)


def test_arithmetic_is_that_of_the_publications() -> None:
    # Horowitz, ISSCC 2014, figure 1.1.9; Dally, NIPS 2015.
    assert technology().mac("int8", "int32").energy_pj == pytest.approx(0.3)
    assert technology().mac("uint8", "int32").area_um2 == 282 + 137
    assert technology().mac("float32", "float32").energy_pj == pytest.approx(4.6)
    assert technology().mac("float16", "float32").area_um2 == 1640 + 4184
    # Han et al., ISCA 2016, table I: 1 pJ for 32 bits; Jouppi et al.: 1300 pJ for 64.
    assert technology().register_pj(8) == 0.25
    assert technology().dram_pj(8) == 1300


def test_what_no_source_has_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no figures to multiply bfloat16; it has int8, int32"):
        technology().mac("bfloat16", "float32")
    with pytest.raises(SpecError, match=r"no figures to add int64"):
        technology().mac("int8", "int64")


def test_every_technology_names_its_sources() -> None:
    assert technologies() == ("45nm",)
    assert technology().name == "45nm"
    for kind in ("energy", "area", "register_energy", "register_area", "dram", "sram"):
        assert len(technology().tables.sources[kind]) > 20


def test_an_unknown_technology_is_one_line_with_those_that_there_are() -> None:
    with pytest.raises(SpecError, match=r"unknown technology '45mn' \(did you mean 45nm\?\)"):
        technology("45mn")
