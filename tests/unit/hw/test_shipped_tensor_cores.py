"""What only the specifications of Tensor Cores have: machines that are described once for all."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cpembed.hw.loader import load_hardware_spec
from tests.unit.hw.shipped.tensor_cores import MACHINES, MODELS


@pytest.mark.parametrize("name", MODELS)
def test_machines_are_described_once(name: str) -> None:
    spec = load_hardware_spec(name)
    own = tomllib.loads(Path(spec.path).read_text())["machines"]
    assert {machine: list(tables) for machine, tables in own.items()} == {
        machine: ["compute"] for machine in MACHINES[name]
    }
    assert tuple(spec.machines) == MACHINES[name]
    first = load_hardware_spec("mma_f16").machines
    for machine, found in spec.machines.items():
        assert found.memories == first[machine].memories
        assert found.clock_mhz == first[machine].clock_mhz
