"""``native``: the target of this processor whose instruction has the most operations."""

from __future__ import annotations

import json

import pytest

from cpembed.cli import main
from cpembed.driver.named import NATIVE, hardware_spec, workload
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.ir.dtypes import INPUT_DTYPES
from cpembed.provenance import Provenance
from cpembed.targets.registry import missing_for, native_target, open_target


def executed() -> list[HardwareSpec]:
    """Return the targets that this processor executes without an emulator."""
    specs = [load_hardware_spec(name) for name in available_targets()]
    specs = [spec for spec in specs if spec.backend and spec.cpu_features and not missing_for(spec)]
    return [spec for spec in specs if open_target(spec).provenance is Provenance.MEASURED]


TARGETS = executed()


def takes(spec: HardwareSpec, first: str, second: str) -> bool:
    names = [operand.name for operand in spec.instruction.computation.inputs]
    if len(names) != 2:
        return False
    a, b = (spec.instruction.dtypes[name] for name in names)
    return (first in a and second in b) or (first in b and second in a)


def is_for_seven_bits(spec: HardwareSpec) -> bool:
    return any("int7" in operand.dtype for operand in spec.instruction.computation.inputs)


@pytest.mark.parametrize("first", INPUT_DTYPES)
@pytest.mark.parametrize("second", INPUT_DTYPES)
def test_the_instruction_takes_the_types_and_none_that_does_has_more_operations(
    first: str, second: str
) -> None:
    fitting = [spec for spec in TARGETS if takes(spec, first, second)]
    if not fitting:
        with pytest.raises(BackendUnavailable, match=f"multiplies {first} by {second}"):
            native_target([first, second])
        return
    if not {first, second} & {"int7", "uint7"}:
        # One factor of 7 bits must be declared: two of 8 bits would saturate.
        fitting = [spec for spec in fitting if not is_for_seven_bits(spec)]
    spec = native_target([first, second])
    assert takes(spec, first, second)
    if not {first, second} & {"int7", "uint7"}:
        macs = [spec.instruction.computation.macs for spec in fitting]
        assert spec.instruction.computation.macs == max(macs)


@pytest.mark.skipif(not TARGETS, reason="this processor executes no target")
def test_a_workload_without_types_gets_those_of_the_native_target() -> None:
    spec = hardware_spec(NATIVE)
    layer = workload("gemm m=8 n=16 k=16", target=NATIVE)
    for operand, port in zip(layer.inputs, spec.instruction.computation.inputs, strict=True):
        assert operand.dtype in spec.instruction.dtypes[port.name]
    assert hardware_spec(NATIVE, layer).name == spec.name


def test_named_types_choose_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        spec = native_target(["float32", "float32"])
    except BackendUnavailable as error:
        pytest.skip(str(error))
    words = ["gemm", "m=8", "n=16", "k=16", "dtype=float32"]
    assert main(["solve", *words, "--target", NATIVE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"] == spec.name


def test_types_that_nothing_multiplies_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gemm", "m=8", "n=16", "k=16", "dtype=int64"]
    assert main(["solve", *words, "--target", NATIVE]) != 0
    assert capsys.readouterr().err.count("\n") == 1
