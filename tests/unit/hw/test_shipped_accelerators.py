"""What only the specifications of VTA have: buffers of whole tiles, addressed tile by tile."""

from __future__ import annotations

import pytest

from cpembed.hw.loader import load_hardware_spec
from tests.unit.hw.shipped.checking import tile_bytes, tiles_held


@pytest.mark.parametrize(
    "name, tiles",
    [
        # Tiles per buffer: LINP, LWGT and LACC of VTA's hardware specification, 2^11, 2^10, 2^11.
        ("vta_1x16x16", {"A": 2048, "B": 1024, "C": 2048}),
        ("vta_8x8x8", {"A": 512, "B": 4096, "C": 512}),
    ],
)
def test_tiles_that_a_buffer_holds(name: str, tiles: dict[str, int]) -> None:
    assert tiles_held(load_hardware_spec(name).instruction) == tiles


@pytest.mark.parametrize("name", ["vta_1x16x16", "vta_8x8x8"])
def test_vta_addresses_whole_tiles(name: str) -> None:
    instruction = load_hardware_spec(name).instruction
    for operand, memory in instruction.memory.items():
        assert memory.alignment_bytes == tile_bytes(instruction, operand)
