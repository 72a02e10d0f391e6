"""The shipped specifications against models of the instructions written from the manuals.

A model works on the flat memory of each tile, as the manual's pseudo-code does. The specification
is right when its computation, on operands packed by its own tiles, gives what the model gives.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpembed.hw.instruction import HardwareSpec, StrideRule
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.hw.machine import Evidence
from cpembed.ir.computation import AxisKind
from cpembed.ir.interpreter import interpret_all
from cpembed.ir.reference import random_inputs
from tests.unit.hw.shipped import FACTS, IRREGULAR, MODELS, PEAKS, WITHOUT_REDUCTION
from tests.unit.hw.shipped.checking import check_against_model, tile_positions


@pytest.fixture(params=MODELS)
def spec(request: pytest.FixtureRequest) -> HardwareSpec:
    return load_hardware_spec(request.param)


def test_every_shipped_target_has_a_model() -> None:
    assert {*MODELS, *IRREGULAR} == set(available_targets())


@pytest.mark.parametrize("name", IRREGULAR)
def test_the_irregular_computation_is_what_the_manual_says(name: str) -> None:
    computation = load_hardware_spec(name).instruction.computation
    inputs = random_inputs(computation, 11)
    expected = IRREGULAR[name](inputs)
    (found,) = interpret_all(computation, inputs).values()
    np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_a_target_is_named_as_its_file(spec: HardwareSpec) -> None:
    assert Path(spec.path).stem == spec.name == spec.instruction.name


def test_the_computation_is_what_the_manual_says(spec: HardwareSpec) -> None:
    for dtypes in spec.instruction.dtype_choices:
        check_against_model(spec.instruction, MODELS[spec.name], {}, dtypes)


def test_the_last_axis_is_the_reduction(spec: HardwareSpec) -> None:
    kinds = [axis.kind for axis in spec.instruction.computation.axes]
    reductions = 0 if spec.name in WITHOUT_REDUCTION else 1
    spatial = len(kinds) - reductions
    assert kinds == [AxisKind.SPATIAL] * spatial + [AxisKind.REDUCTION] * reductions


@pytest.mark.parametrize("name", FACTS)
def test_shape_backend_and_cpu_features(name: str) -> None:
    spec, facts = load_hardware_spec(name), FACTS[name]
    assert spec.instruction.extents == facts.extents
    assert (spec.backend, spec.cpu_features) == (facts.backend, facts.features)


@pytest.mark.parametrize("name", [name for name, facts in FACTS.items() if facts.types])
def test_element_types(name: str) -> None:
    found = load_hardware_spec(name).instruction.dtype_choices
    assert tuple(sorted(" ".join(c[o] for o in "ABC") for c in found)) == FACTS[name].types


@pytest.mark.parametrize("name", [n for n, facts in FACTS.items() if facts.free is not None])
def test_which_strides_are_free(name: str) -> None:
    found = {
        f"{operand}.{axis}"
        for operand, memory in load_hardware_spec(name).instruction.memory.items()
        for axis in memory.axes
        if memory.stride_rule(axis) is StrideRule.ANY
    }
    assert found == FACTS[name].free


@pytest.mark.parametrize("name, operand", [("axpy", "A"), ("dot", "C")])
def test_a_scalar_is_an_operand_without_dimensions(name: str, operand: str) -> None:
    instruction = load_hardware_spec(name).instruction
    assert instruction.computation.operand(operand).shape == ()
    assert instruction.memory[operand].axes == ()
    assert instruction.tile_shape(operand) == ()
    assert tile_positions(instruction, operand, instruction.extents) == [(0, ())]


def test_machines_are_described(spec: HardwareSpec) -> None:
    """What a machine multiplies at most is what its source says: a check of units and cycles."""
    for name, machine in spec.machines.items():
        assert len(machine.source) > 40
        units = machine.levels[0][0].units
        per_ns = units * machine.clock_mhz / 1e3 * spec.instruction.macs / machine.compute.cycles
        if (spec.name, name) in PEAKS:
            assert per_ns == pytest.approx(PEAKS[spec.name, name], rel=0.01)
        else:
            assert machine.evidence is Evidence.ASSUMED
    assert spec.machines.keys() >= {name for target, name in PEAKS if target == spec.name}
