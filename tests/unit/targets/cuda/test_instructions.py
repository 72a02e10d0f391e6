"""Registers and device functions of the instructions, and which specification is which."""

from __future__ import annotations

import pytest

from cpembed.errors import InvariantError, LoweringError
from cpembed.hw.loader import available_targets, load_hardware_spec
from cpembed.targets.cuda import device
from cpembed.targets.cuda.instructions import INSTRUCTIONS, fragments, instruction_of

BY_NAME = {instruction.name: instruction for instruction in INSTRUCTIONS}


# PTX ISA, "Matrix Fragments for WMMA" and those for mma.m16n8k16 and mma.m16n8k32: registers of 32
# bits, counted from the vector expressions of A, B and C.
@pytest.mark.parametrize(
    "name, registers",
    [
        ("mma_m16n8k16_f32_f16_f16", (4, 2, 4)),
        ("mma_m16n8k16_f16_f16_f16", (4, 2, 2)),
        ("mma_m16n8k16_f32_bf16_bf16", (4, 2, 4)),
        ("mma_m16n8k32_s32_u8_s8", (4, 2, 4)),
        ("wmma_m16n16k16_f32_f16_f16", (8, 8, 8)),
        ("wmma_m16n16k16_f16_f16_f16", (8, 8, 4)),
        ("wmma_m32n8k16_f32_f16_f16", (8, 8, 8)),
        ("wmma_m16n16k16_f32_bf16_bf16", (4, 4, 8)),
        ("wmma_m8n32k16_f32_bf16_bf16", (2, 8, 8)),
        ("wmma_m32n8k16_f32_bf16_bf16", (8, 2, 8)),
        ("wmma_m16n16k16_s32_s8_s8", (2, 2, 8)),
        ("wmma_m8n32k16_s32_u8_u8", (1, 4, 8)),
        ("wmma_m32n8k16_s32_s8_s8", (4, 1, 8)),
    ],
)
def test_registers_are_those_of_the_isa(name: str, registers: tuple[int, int, int]) -> None:
    assert BY_NAME[name].registers == registers


def test_every_function_of_an_instruction_is_there() -> None:
    for instruction in INSTRUCTIONS:
        assert device.function(instruction.mma_function)
        if instruction.kind == "wmma":
            assert all(map(device.function, instruction.load_functions))
            assert device.function(instruction.store_function)
        else:
            assert all(name in fragments() for name in instruction.fragments)


def test_what_an_instruction_lacks_is_said() -> None:
    mma, wmma = BY_NAME["mma_m16n8k32_s32_s8_s8"], BY_NAME["wmma_m16n16k16_f32_f16_f16"]
    with pytest.raises(InvariantError, match="mma_m16n8k32_s32_s8_s8 has no loads of its own"):
        _ = mma.load_functions
    with pytest.raises(InvariantError, match="has no stores of its own"):
        _ = mma.store_function
    with pytest.raises(InvariantError, match="which lane holds which element is not specified"):
        _ = wmma.fragments


SPECIFICATIONS = [n for n in available_targets() if n.startswith(("mma_", "wmma_"))]


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_a_specification_is_known_by_its_extents_and_types(name: str) -> None:
    spec = load_hardware_spec(name)
    for types in spec.instruction.dtype_choices:
        found = instruction_of(spec, types)
        assert (found.m, found.n, found.k) == tuple(spec.instruction.extents.values())
        assert {"A": found.a, "B": found.b, "C": found.c} == types
        assert found.kind == name.partition("_")[0]


def test_a_shape_and_types_are_one_instruction() -> None:
    choices = [
        instruction_of(load_hardware_spec(name), types)
        for name in SPECIFICATIONS
        for types in load_hardware_spec(name).instruction.dtype_choices
    ]
    assert len(SPECIFICATIONS) == 18
    assert len(set(choices)) == len(choices)


def test_element_types_of_a_workload_choose_by_the_roles_of_its_operands() -> None:
    spec = load_hardware_spec("mma_s8")
    roles = {"A": "W", "B": "I", "C": "O"}
    types = {"I": "uint8", "W": "int8", "O": "int32"}
    assert instruction_of(spec, types, roles).name == "mma_m16n8k32_s32_s8_u8"
    assert instruction_of(spec).name == "mma_m16n8k32_s32_s8_s8"


def test_another_shape_or_machine_has_no_kernels() -> None:
    for name in ("vta_1x16x16", "requantize", "avx512_vnni", "amx_bf16"):
        with pytest.raises(LoweringError, match=f"{name}: "):
            instruction_of(load_hardware_spec(name))
