"""What only the specifications of processors have: rows that are configured, registers to spare."""

from __future__ import annotations

import pytest

from cpembed.hw.loader import available_targets, load_hardware_spec
from tests.unit.hw.shipped import MODELS
from tests.unit.hw.shipped.checking import check_against_model, tile_positions, tiles_held


@pytest.mark.parametrize("rows", [1, 5, 14])
@pytest.mark.parametrize("name", ["amx_int8", "amx_bf16"])
def test_amx_with_fewer_rows_is_what_the_manual_says(name: str, rows: int) -> None:
    instruction = load_hardware_spec(name).instruction
    check_against_model(instruction, MODELS[name], {"x": rows}, instruction.dtype_choices[0])


def test_only_the_rows_of_amx_are_configurable() -> None:
    configurable = {
        name: [axis.name for axis in load_hardware_spec(name).instruction.configurable_axes]
        for name in available_targets()
    }
    assert {name: axes for name, axes in configurable.items() if axes} == {
        "amx_int8": ["x"],
        "amx_bf16": ["x"],
    }
    assert load_hardware_spec("amx_int8").instruction.axis("x").allowed == tuple(range(1, 17))


@pytest.mark.parametrize(
    "name, tiles",
    [
        ("amx_int8", {"A": 8, "B": 8, "C": 8}),
        ("amx_bf16", {"A": 8, "B": 8, "C": 8}),
        ("avx512_vnni", {"B": 32, "C": 32}),
        ("avx_vnni", {"B": 16, "C": 16}),
        ("arm_sdot", {"B": 32, "C": 32}),
    ],
)
def test_registers_that_hold_tiles(name: str, tiles: dict[str, int]) -> None:
    held = tiles_held(load_hardware_spec(name).instruction)
    assert {operand: held[operand] for operand in tiles} == tiles


@pytest.mark.parametrize("name, order", [("amx_int8", 4), ("amx_bf16", 2)])
def test_amx_weights_interleave_groups_of_rows(name: str, order: int) -> None:
    instruction = load_hardware_spec(name).instruction
    positions = {
        element: position
        for position, element in tile_positions(instruction, "B", instruction.extents)
    }
    assert positions[(0, 1)] - positions[(0, 0)] == order
    assert positions[(1, 0)] - positions[(0, 0)] == 1
    assert positions[(order, 0)] - positions[(0, 0)] == 16 * order
