"""What only the specifications of Tensor Cores have: machines that are described once for all."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.hw.loader import load_hardware_spec
from tests.unit.hw.shipped.tensor_cores import MACHINES, MODELS, WARP_GROUPS


@pytest.mark.parametrize("name", MODELS)
def test_machines_are_described_once(name: str) -> None:
    spec = load_hardware_spec(name)
    own = tomllib.loads(Path(spec.path).read_text())["machines"]
    assert {machine: list(tables) for machine, tables in own.items()} == {
        machine: ["compute"] for machine in MACHINES[name]
    }
    assert tuple(spec.machines) == MACHINES[name]
    first = load_hardware_spec("wgmma_f16" if name in WARP_GROUPS else "mma_f16").machines
    for machine, found in spec.machines.items():
        assert found.memories == first[machine].memories
        assert found.clock_mhz == first[machine].clock_mhz


@pytest.mark.parametrize("machine", ["h100", "h200"])
@pytest.mark.parametrize("name", WARP_GROUPS)
def test_machines_of_warp_groups_are_those_of_warps(name: str, machine: str) -> None:
    """All but where sums and factors live, and which unit executes."""
    spec, warps = load_hardware_spec(name), load_hardware_spec("mma_f16")
    found, expected = spec.machines[machine], warps.machines[machine]
    assert found.clock_mhz == expected.clock_mhz
    for level in ("shared", "l2", "dram"):
        # Factors of a warp come through memories of their own, one level above.
        memory = replace(expected.memories[level], level=expected.memories[level].level - 1)
        assert found.memories[level] == memory
