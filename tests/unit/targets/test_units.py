"""The set of targets on which the products of a network run."""

from __future__ import annotations

from itertools import product

import pytest

from cpembed.driver.matching import network_units
from cpembed.driver.named import NATIVE
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import INPUT_DTYPES
from cpembed.ir.reference import reference
from cpembed.targets.capabilities import least_us
from cpembed.targets.registry import executes_here, open_target, takes
from cpembed.targets.units import Units, native_units, with_alternatives, with_float_type
from cpembed.targets.x86.features import ASSUME_VARIABLE
from cpembed.workloads.naming import parse_workload

SAPPHIRE_RAPIDS = (
    "avx2,fma,avx512f,avx512bw,avx512_vnni,avx512_bf16,avx_vnni,amx_tile,amx_int8,amx_bf16"
)


@pytest.fixture
def sapphire_rapids(monkeypatch: pytest.MonkeyPatch) -> Units:
    """All units of a processor that this machine only plans for."""
    monkeypatch.setenv(ASSUME_VARIABLE, SAPPHIRE_RAPIDS)
    return native_units()


def group(spec: HardwareSpec) -> list[HardwareSpec]:
    return list(with_alternatives(spec))


def test_all_units_of_a_processor_are_searched_once(sapphire_rapids: Units) -> None:
    """Each is a leader or an alternative of one, and no leader is an earlier one's alternative."""
    executed = {
        spec.name
        for spec in map(load_hardware_spec, available_targets())
        if spec.backend and spec.cpu_features and executes_here(spec)
    }
    # Factors of 7 bits are declared by no tensor.
    assert executed - {*sapphire_rapids.members} == {"avx2_int7", "avx2_uint7"}
    searched = {each.name for spec in sapphire_rapids.leaders for each in group(spec)}
    assert searched == {*sapphire_rapids.members}
    earlier: set[str] = set()
    for spec in sapphire_rapids.leaders:
        assert spec.name not in earlier
        earlier |= {each.name for each in group(spec)}


def test_the_candidates_of_a_product_are_all_units_that_take_its_types(
    sapphire_rapids: Units,
) -> None:
    for types in product(INPUT_DTYPES, repeat=2):
        candidates = sapphire_rapids.candidates(types)
        taking = [s for s in sapphire_rapids.leaders if any(takes(e, types) for e in group(s))]
        assert candidates == taking
    assert sapphire_rapids.candidates(["float64", "float64"]) == []
    first = {
        types: sapphire_rapids.candidates([types, types])[0].name
        for types in ("int8", "bfloat16", "float32")
    }
    assert first == {"int8": "amx_int8", "bfloat16": "amx_bf16", "float32": "avx512_f32"}


def test_a_named_target_comes_first_and_the_processor_helps_it(sapphire_rapids: Units) -> None:
    units = network_units("avx512_vnni")
    assert units.leaders[0].name == "avx512_vnni"
    assert units.members == ("avx512_vnni",)
    assert [s.name for s in units.candidates(["float32", "float32"])] == [
        s.name for s in sapphire_rapids.candidates(["float32", "float32"])
    ]
    assert units.byte_types == ("uint8", "int8")


def test_the_signs_of_bytes_are_those_of_the_first_unit(sapphire_rapids: Units) -> None:
    signs = {(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")}
    assert sapphire_rapids.byte_pairs == signs
    assert network_units("avx512_vnni").byte_pairs == {("uint8", "int8")}
    assert network_units("vta_1x16x16").byte_pairs == {("int8", "int8")}
    assert network_units("sw26010").byte_pairs == frozenset()


def test_a_simulated_target_has_no_help() -> None:
    units = network_units("vta_1x16x16")
    assert [spec.name for spec in units.leaders] == ["vta_1x16x16"]
    assert units.byte_types == ("int8", "int8")
    assert units.candidates(["float32", "float32"]) == []


@pytest.mark.parametrize(
    "target, default",
    [("amx_bf16", "bfloat16"), ("amx_int8", "float32"), (NATIVE, "float32")],
)
def test_the_default_of_floats_is_what_the_named_target_multiplies(
    target: str, default: str, sapphire_rapids: Units
) -> None:
    assert network_units(target).float_type == default
    for float_type in ("float32", "bfloat16"):
        assert network_units(target, float_type).float_type == float_type


def test_a_float_type_that_no_unit_multiplies_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="vta_1x16x16: no unit multiplies bfloat16"):
        with_float_type(network_units("vta_1x16x16"), "bfloat16")


def test_a_processor_without_units_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpembed.targets.units.native_targets", lambda: ())
    with pytest.raises(BackendUnavailable, match="native: this processor executes no target"):
        network_units(NATIVE)


# -- the bound by which units are left out ---------------------------------------------------------

WORKLOADS = {
    "gemm": "gemm m=512 n=512 k=512",
    "row": "gemm m=1 n=512 k=2048",
    "padded": "conv2d n=1 k=256 c=256 h=7 w=7 r=3 s=3 pad=1",
    "depthwise": "depthwise n=1 c=256 h=58 w=58 r=3 s=3",
}
"""So large that what happens once in a call counts little."""

SMALL = {
    "gemm": "gemm m=6 n=5 k=7",
    "padded": "conv2d n=2 k=3 c=4 h=5 w=6 r=3 s=3 pad=1",
    "strided": "conv2d n=1 k=3 c=4 h=7 w=7 r=3 s=3 pad=1 stride=2",
    "depthwise": "depthwise n=1 c=5 h=6 w=6 r=3 s=3 pad=1",
}
TYPES = {
    "bytes": "uint8,int8,int32",
    "floats": "float32,float32,float32",
    "short": "bfloat16,bfloat16,float32",
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("words", WORKLOADS)
def test_no_estimate_is_below_the_bound(words: str, types: str, sapphire_rapids: Units) -> None:
    workload = parse_workload(f"{WORKLOADS[words]} dtype={TYPES[types]}".split())
    candidates = sapphire_rapids.candidates([o.dtype for o in workload.inputs])
    assert len(candidates) > 1
    for spec in candidates:
        bound = min(least_us(open_target(each), workload) for each in group(spec))
        assert bound > 0
        selection = choose(Request(workload, spec, KernelOptions(untuned=True), explains=False))
        if isinstance(selection, Selection) and selection.plan.native:
            estimate = selection.choice.estimated
            assert estimate is not None
            assert estimate >= bound


@pytest.mark.parametrize("words", SMALL.values(), ids=SMALL)
def test_reads_inside_are_counted(words: str) -> None:
    """The sum of products of ones, which padding leaves out, is the number of reads inside."""
    import numpy as np

    workload: Computation = parse_workload(f"{words} dtype=uint8,uint8,int32".split())
    ones = {o.name: np.ones(o.shape, np.uint8) for o in workload.inputs}
    assert workload.macs_inside == int(reference(workload, ones).sum())
