"""The shipped specifications against models of the instructions written from the manuals.

A model works on the flat memory of each tile, as the manual's pseudo-code does. The specification
is right when its computation, on operands packed by its own tiles, gives what the model gives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from cpembed.hw.instruction import HardwareSpec, Instruction, StrideRule
from cpembed.hw.level_tables import Known
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import dtype_info, size_bytes
from cpembed.ir.interpreter import interpret_all
from cpembed.ir.reference import random_inputs

Array = np.ndarray
Model = Callable[[Array, Array, Array], None]


def vta_gemm(batch: int, block: int) -> Model:
    """acc[b][o] += inp[b][i] * wgt[o][i] (VTA hardware guide)."""

    def model(inp: Array, wgt: Array, acc: Array) -> None:
        for b, o, i in itertools.product(range(batch), range(block), range(block)):
            acc[b * block + o] += inp[b * block + i] * wgt[o * block + i]

    return model


def vpdpbusd(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, VPDPBUSD: one group of four bytes per 32-bit lane."""
    for lane in range(len(sums)):
        for byte in range(4):
            sums[lane] += broadcast[byte] * register[4 * lane + byte]


def byte_pairs(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, PMADDWD on PMOVZXBW's and PMOVSXBW's: one pair per 32-bit lane."""
    for lane in range(len(sums)):
        for byte in range(2):
            sums[lane] += broadcast[byte] * register[2 * lane + byte]


def vdpbf16ps(broadcast: Array, register: Array, sums: Array) -> None:
    """SDM volume 2, VDPBF16PS: one pair per 32-bit lane."""
    for lane in range(16):
        for half in range(2):
            sums[lane] += broadcast[half] * register[2 * lane + half]


def byte_dots_by_element(element: Array, register: Array, sums: Array) -> None:
    """Arm ARM, SDOT and UDOT (by element): the same four bytes for every 32-bit lane."""
    for lane in range(4):
        for byte in range(4):
            sums[lane] += register[4 * lane + byte] * element[byte]


def smmla(first: Array, second: Array, sums: Array) -> None:
    """Arm ARM, SMMLA: rows of eight bytes by rows of eight bytes, a 2 x 2 tile row by row."""
    for row, column, byte in itertools.product(range(2), range(2), range(8)):
        sums[2 * row + column] += first[8 * row + byte] * second[8 * column + byte]


def amx(group: int) -> Model:
    """SDM volume 2, TDPBSSD (group 4) and TDPBF16PS (group 2): rows of 64 bytes."""

    def model(a: Array, b: Array, c: Array) -> None:
        row = 16 * group
        for m in range(len(a) // row):
            for k, n, i in itertools.product(range(16), range(16), range(group)):
                c[m * 16 + n] += a[m * row + group * k + i] * b[k * row + group * n + i]

    return model


def wmma(a: Array, b: Array, c: Array) -> None:
    """m16n16k16 with row_major fragments at leading dimension 16."""
    c += (a.reshape(16, 16) @ b.reshape(16, 16)).ravel()


def gemmini(a: Array, b: Array, c: Array) -> None:
    """Gemmini's README, weights stationary: B stays in the array, a row of A enters each cycle, and
    what comes out is added to a row of the accumulator."""
    for row in range(16):
        for column in range(16):
            c[row * 16 + column] += a[row * 16 : row * 16 + 16] @ b[column::16]


def lanes(left: Array, right: Array, sums: Array) -> None:
    """SDM volume 2, VPMULLD and VPADDD on widened bytes, or VFMADD231PS; Arm ARM, MLA (vector) on
    widened bytes: lane by lane."""
    for lane in range(len(sums)):
        sums[lane] += left[lane] * right[lane]


def axpy(scalar: Array, vector: Array, sums: Array) -> None:
    """BLAS level 1."""
    sums += scalar[0] * vector


def dot(left: Array, right: Array, total: Array) -> None:
    """BLAS level 1."""
    total[0] += left @ right


def gemv(matrix: Array, vector: Array, sums: Array) -> None:
    """BLAS level 2, rows one after the other."""
    for row in range(16):
        sums[row] += matrix[16 * row : 16 * row + 16] @ vector


def pointwise_conv(image: Array, filters: Array, output: Array) -> None:
    """A 1x1 convolution: every pixel by itself, its channels 16 elements apart."""
    for pixel in range(16):
        for k in range(4):
            output[16 * k + pixel] += image[pixel::16] @ filters[4 * k : 4 * k + 4]


MODELS: dict[str, Model] = {
    "amx_bf16": amx(2),
    "amx_int8": amx(4),
    "arm_int8": lanes,
    "arm_sdot": byte_dots_by_element,
    "arm_smmla": smmla,
    "arm_udot": byte_dots_by_element,
    "avx2_int7": vpdpbusd,
    "avx2_int8": byte_pairs,
    "avx2_lanes": lanes,
    "avx512_bf16": vdpbf16ps,
    "avx512_bf16_dot": dot,
    "avx512_bf16_fma": lanes,
    "avx512_int8": lanes,
    "avx512_vnni": vpdpbusd,
    "avx512_vnni_dot": dot,
    "avx_vnni": vpdpbusd,
    "avx_vnni_dot": dot,
    "axpy": axpy,
    "dot": dot,
    "gemm_16x16x16": wmma,
    "gemmini_16x16": gemmini,
    "gemv": gemv,
    "pointwise_conv": pointwise_conv,
    "vta_1x16x16": vta_gemm(1, 16),
    "vta_8x8x8": vta_gemm(8, 8),
    "wmma_f16": wmma,
}


def complex_mac(inputs: Mapping[str, Array]) -> Array:
    """Complex arithmetic on interleaved numbers; exact in float64, then wrapped at 32 bits."""
    a, b = (inputs[name].astype(np.float64) @ np.array([1, 1j]) for name in "AB")
    product = a @ b
    return np.stack([product.real, product.imag], axis=-1).astype(np.int64).astype(np.int32)


def pre_add_dot(inputs: Mapping[str, Array]) -> Array:
    """UG579: P = P + (A + D) * B, twice."""
    a, d, b = (inputs[name].astype(np.int64) for name in "ADB")
    return (a + d) @ b


def vpsadbw(inputs: Mapping[str, Array]) -> Array:
    """SDM volume 2, PSADBW: absolute differences of the eight bytes of each 64-bit lane."""
    a, b = inputs["A"], inputs["B"]
    return (np.maximum(a, b) - np.minimum(a, b)).astype(np.int64).sum(axis=1)


def vpmaddubsw(inputs: Mapping[str, Array]) -> Array:
    """SDM volume 2, PMADDUBSW: pairs of products, summed with signed saturation."""
    products = inputs["A"].astype(np.int64) * inputs["B"].astype(np.int64)
    return np.clip(products[:, 0] + products[:, 1], -(2**15), 2**15 - 1)


def requantize(inputs: Mapping[str, Array]) -> Array:
    """Fixed-point multiplication by M / 2^16, rounding towards minus infinity, then clipping."""
    a, m, b = (inputs[name].astype(np.int64) for name in "AMB")
    return np.clip((a * m + b) // 2**16, -128, 127)


IRREGULAR: dict[str, Callable[[Mapping[str, Array]], Array]] = {
    "avx2_maddubs": vpmaddubsw,
    "avx512_sad": vpsadbw,
    "complex_mac": complex_mac,
    "pre_add_dot": pre_add_dot,
    "requantize": requantize,
}


def evaluate(computation: Computation, values: Mapping[str, Array]) -> Array:
    """The sum-of-products computation on exact (64-bit) values."""
    points = np.indices(tuple(computation.extents.values())).reshape(len(computation.axes), -1)
    iterators = dict(zip(computation.extents, points, strict=True))

    def at(operand: str) -> tuple[Array, ...]:
        return tuple(i.evaluate(iterators) for i in computation.access(operand).index)

    output = values[computation.output.name].copy()
    product = math.prod(values[o.name][at(o.name)] for o in computation.inputs)
    # A scalar output has no index: its element is number 0 for every point.
    element = np.zeros_like(product)
    for position, size in zip(at(computation.output.name), output.shape, strict=True):
        element = element * size + position
    np.add.at(output.reshape(-1), element, product)
    return output


def tile_positions(
    instruction: Instruction, operand: str, extents: Mapping[str, int]
) -> list[tuple[int, tuple[int, ...]]]:
    """(position in the dense tile, element of the operand) of all elements."""
    memory = instruction.memory[operand]
    shape = instruction.tile_shape(operand, extents)
    found = []
    for point in itertools.product(*(range(extents[axis]) for axis in memory.axes)):
        values = dict(zip(memory.axes, point, strict=True))
        position = 0
        for dimension, size in zip(memory.tile, shape, strict=True):
            digit = values[dimension.axis] // dimension.divisor
            position = position * size + digit % (dimension.modulus or size)
        index = instruction.computation.access(operand).index
        found.append((position, tuple(i.evaluate(values) for i in index)))
    return found


def random_values(operand_dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if size_bytes(operand_dtype) == 1:
        low, high = dtype_info(operand_dtype).integer_range
        return rng.integers(low, high, shape, endpoint=True)
    return rng.integers(-1000, 1000, shape)


def check_against_model(
    instruction: Instruction, model: Model, extents: Mapping[str, int], dtypes: Mapping[str, str]
) -> None:
    computation = instruction.at(extents).with_dtypes(dict(dtypes))
    sizes = computation.extents
    rng = np.random.default_rng(7)
    values = {o.name: random_values(o.dtype, o.shape, rng) for o in computation.operands}
    tiles = {}
    for operand in computation.operands:
        positions = tile_positions(instruction, operand.name, sizes)
        tile = np.zeros(operand.elements, dtype=np.int64)
        assert sorted(position for position, _ in positions) == list(range(operand.elements))
        for position, element in positions:
            tile[position] = values[operand.name][element]
        tiles[operand.name] = tile
    model(tiles["A"], tiles["B"], tiles["C"])
    expected = evaluate(computation, values)
    for position, element in tile_positions(instruction, "C", sizes):
        assert tiles["C"][position] == expected[element]


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


@pytest.mark.parametrize("rows", [1, 5, 14])
@pytest.mark.parametrize("name", ["amx_int8", "amx_bf16"])
def test_amx_with_fewer_rows_is_what_the_manual_says(name: str, rows: int) -> None:
    instruction = load_hardware_spec(name).instruction
    check_against_model(instruction, MODELS[name], {"x": rows}, instruction.dtype_choices[0])


def test_the_last_axis_is_the_reduction(spec: HardwareSpec) -> None:
    kinds = [axis.kind for axis in spec.instruction.computation.axes]
    reductions = 0 if MODELS[spec.name] in (axpy, lanes) else 1
    spatial = len(kinds) - reductions
    assert kinds == [AxisKind.SPATIAL] * spatial + [AxisKind.REDUCTION] * reductions


@pytest.mark.parametrize(
    "name, extents, backend, features",
    [
        ("vta_1x16x16", {"x": 1, "y": 16, "z": 16}, "vta", ()),
        ("vta_8x8x8", {"x": 8, "y": 8, "z": 8}, "vta", ()),
        ("avx512_vnni", {"y": 16, "z": 4}, "x86", ("avx512f", "avx512_vnni")),
        ("avx512_vnni_dot", {"z": 64}, "x86", ("avx512f", "avx512_vnni")),
        ("amx_int8", {"x": 16, "y": 16, "z": 64}, "x86", ("amx_tile", "amx_int8")),
        ("amx_bf16", {"x": 16, "y": 16, "z": 32}, "x86", ("amx_tile", "amx_bf16")),
        ("wmma_f16", {"x": 16, "y": 16, "z": 16}, None, ()),
        ("arm_sdot", {"y": 4, "z": 4}, "arm", ("asimddp",)),
        ("arm_udot", {"y": 4, "z": 4}, "arm", ("asimddp",)),
        ("arm_smmla", {"x": 2, "y": 2, "z": 8}, "arm", ("i8mm",)),
        ("arm_int8", {"y": 4}, "arm", ("asimd",)),
        ("axpy", {"x": 16}, None, ()),
        ("dot", {"z": 16}, None, ()),
        ("gemm_16x16x16", {"x": 16, "y": 16, "z": 16}, None, ()),
        ("gemv", {"x": 16, "z": 16}, None, ()),
        ("pointwise_conv", {"k": 4, "p": 4, "q": 4, "c": 4}, None, ()),
    ],
)
def test_shape_backend_and_cpu_features(
    name: str, extents: dict[str, int], backend: str | None, features: tuple[str, ...]
) -> None:
    spec = load_hardware_spec(name)
    assert spec.instruction.extents == extents
    assert (spec.backend, spec.cpu_features) == (backend, features)


@pytest.mark.parametrize(
    "name, choices",
    [
        ("vta_1x16x16", ["int8 int8 int32", "int8 int8 int8"]),
        ("vta_8x8x8", ["int8 int8 int32", "int8 int8 int8"]),
        ("avx512_vnni", ["uint8 int8 int32"]),
        ("avx512_vnni_dot", ["uint8 int8 int32"]),
        (
            "avx512_int8",
            ["int8 int8 int32", "int8 uint8 int32", "uint8 int8 int32", "uint8 uint8 int32"],
        ),
        ("avx512_bf16", ["bfloat16 bfloat16 float32"]),
        ("avx512_bf16_dot", ["bfloat16 bfloat16 float32"]),
        ("avx512_bf16_fma", ["bfloat16 bfloat16 float32"]),
        (
            "amx_int8",
            ["int8 int8 int32", "int8 uint8 int32", "uint8 int8 int32", "uint8 uint8 int32"],
        ),
        ("amx_bf16", ["bfloat16 bfloat16 float32"]),
        ("wmma_f16", ["float16 float16 float32"]),
        ("arm_sdot", ["int8 int8 int32"]),
        ("arm_udot", ["uint8 uint8 int32"]),
        ("arm_smmla", ["int8 int8 int32"]),
        (
            "arm_int8",
            ["int8 int8 int32", "int8 uint8 int32", "uint8 int8 int32", "uint8 uint8 int32"],
        ),
        ("axpy", ["int8 int8 int32"]),
        ("dot", ["int8 int8 int32"]),
        ("gemm_16x16x16", ["int8 int8 int32"]),
        ("gemv", ["int8 int8 int32"]),
        ("pointwise_conv", ["int8 int8 int32"]),
    ],
)
def test_element_types(name: str, choices: list[str]) -> None:
    found = load_hardware_spec(name).instruction.dtype_choices
    assert sorted(" ".join(c[o] for o in "ABC") for c in found) == choices


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
    "name, free",
    [
        ("amx_int8", {("A", "x"), ("C", "x")}),
        ("amx_bf16", {("A", "x"), ("C", "x")}),
        ("wmma_f16", {("A", "x"), ("B", "z"), ("C", "x")}),
        ("vta_1x16x16", set()),
        ("vta_8x8x8", set()),
        ("avx512_vnni", set()),
        ("avx512_vnni_dot", set()),
        ("avx512_int8", set()),
        ("avx_vnni", set()),
        ("avx2_int8", set()),
        ("avx512_bf16", set()),
        ("avx512_bf16_dot", set()),
        ("avx512_bf16_fma", set()),
        ("arm_sdot", set()),
        ("arm_udot", set()),
        ("arm_smmla", set()),
        ("arm_int8", set()),
        ("axpy", set()),
        ("dot", set()),
        ("gemm_16x16x16", {("A", "x"), ("B", "z"), ("C", "x")}),
        ("gemv", {("A", "x")}),
        ("pointwise_conv", {("A", "c"), ("A", "p"), ("B", "k"), ("C", "k"), ("C", "p")}),
    ],
)
def test_which_strides_are_free(name: str, free: set[tuple[str, str]]) -> None:
    found = {
        (operand, axis)
        for operand, memory in load_hardware_spec(name).instruction.memory.items()
        for axis in memory.axes
        if memory.stride_rule(axis) is StrideRule.ANY
    }
    assert found == free


@pytest.mark.parametrize(
    "name, tiles",
    [
        # Tiles per buffer: LINP, LWGT and LACC of VTA's hardware specification, 2^11, 2^10, 2^11.
        ("vta_1x16x16", {"A": 2048, "B": 1024, "C": 2048}),
        ("vta_8x8x8", {"A": 512, "B": 4096, "C": 512}),
        ("amx_int8", {"A": 8, "B": 8, "C": 8}),
        ("amx_bf16", {"A": 8, "B": 8, "C": 8}),
        ("avx512_vnni", {"B": 32, "C": 32}),
        ("avx_vnni", {"B": 16, "C": 16}),
        ("arm_sdot", {"B": 32, "C": 32}),
    ],
)
def test_tiles_that_a_memory_holds(name: str, tiles: dict[str, int]) -> None:
    instruction = load_hardware_spec(name).instruction
    for operand, expected in tiles.items():
        dtype = instruction.dtypes[operand][0]
        tile_bytes = math.prod(instruction.tile_shape(operand)) * size_bytes(dtype)
        assert instruction.memory[operand].capacity_bytes == expected * tile_bytes


@pytest.mark.parametrize("name, operand", [("axpy", "A"), ("dot", "C")])
def test_a_scalar_is_an_operand_without_dimensions(name: str, operand: str) -> None:
    instruction = load_hardware_spec(name).instruction
    assert instruction.computation.operand(operand).shape == ()
    assert instruction.memory[operand].axes == ()
    assert instruction.tile_shape(operand) == ()
    assert tile_positions(instruction, operand, instruction.extents) == [(0, ())]


@pytest.mark.parametrize("name", ["vta_1x16x16", "vta_8x8x8"])
def test_vta_addresses_whole_tiles(name: str) -> None:
    instruction = load_hardware_spec(name).instruction
    for operand, memory in instruction.memory.items():
        tile_bytes = math.prod(instruction.tile_shape(operand)) * size_bytes(
            instruction.dtypes[operand][0]
        )
        assert memory.alignment_bytes == tile_bytes


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


def test_machines_are_described(spec: HardwareSpec) -> None:
    """What a machine multiplies at most is what its source says: a check of units and cycles."""
    peaks = {
        ("amx_int8", "xeon_8480"): 56 * 2.0 * 16 * 16 * 64 / 16,
        ("amx_bf16", "xeon_8480"): 56 * 2.0 * 16 * 16 * 32 / 16,
        ("avx512_vnni", "epyc_9755"): 128 * 2.7 * 128,
        ("avx512_vnni", "epyc_9654"): 96 * 2.4 * 64,
        ("avx512_vnni", "xeon_8480"): 56 * 2.0 * 128,
        ("avx_vnni", "epyc_9755"): 128 * 2.7 * 64,
        ("arm_sdot", "graviton2"): 64 * 2.5 * 32,
        ("arm_udot", "graviton2"): 64 * 2.5 * 32,
        # 312 TFLOPS; 989 TFLOPS of which mma reaches 62.9 %.
        ("wmma_f16", "a100"): 312e3 / 2,
        ("wmma_f16", "h100"): 0.629 * 989.4e3 / 2,
        ("gemmini_16x16", "rocket_soc"): 256.0,
        ("vta_1x16x16", "pynq_z1"): 25.6,
        ("vta_8x8x8", "pynq_z1"): 51.2,
    }
    for name, machine in spec.machines.items():
        assert len(machine.source) > 40
        units = machine.levels[0][0].units
        per_ns = units * machine.clock_mhz / 1e3 * spec.instruction.macs / machine.compute.cycles
        if (spec.name, name) in peaks:
            assert per_ns == pytest.approx(peaks[spec.name, name], rel=0.01)
        else:
            assert machine.known is Known.ASSUMED
    assert spec.machines.keys() >= {name for target, name in peaks if target == spec.name}
