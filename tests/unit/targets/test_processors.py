"""Processors that kernels are built for: their names, features, figures, and what they change."""

from __future__ import annotations

import os
import re

import pytest

from cpembed.codegen.host_cpu import (
    PROCESSOR_VARIABLE,
    architecture,
    built_for,
    cache_by_processor,
    cpu_features,
    exported_attributes,
    feature_table,
    named_processor,
    needed_features,
)
from cpembed.codegen.runtime import compile_host_object, compiled_for
from cpembed.errors import BackendUnavailable, SpecError, WorkloadError
from cpembed.export.texts import NATIVE
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.processors import processors_named
from cpembed.targets.cpu import calibration as constants
from cpembed.targets.processors import (
    ALIASES,
    built_for_name,
    described,
    instructions_of,
    processor,
    processors,
)
from cpembed.targets.registry import native_target, open_target
from cpembed.targets.units import native_units, units_of

COMMON = {
    "x86-64-v3": ({"avx2", "fma"}, "avx2_int8", None),
    "x86-64-v4": ({"avx512f", "avx512bw", "avx512vl"}, "avx512_f32", "avx512_vnni"),
    "skylake-avx512": ({"avx512f", "avx512bw"}, "avx512_int8", "avx512_vnni"),
    "icelake-server": ({"avx512_vnni"}, "avx512_vnni", "avx512_bf16"),
    "sapphirerapids": ({"amx_tile", "amx_int8", "avx512_bf16"}, "amx_int8", None),
    "graniterapids": ({"amx_bf16", "amx_fp16"}, "amx_bf16", None),
    "alderlake": ({"avx_vnni"}, "avx_vnni", "avx512_f32"),
    "znver3": ({"avx2", "fma"}, "avx2_f32", "avx_vnni"),
    "znver4": ({"avx512_vnni", "avx512_bf16"}, "avx512_bf16", "amx_int8"),
    "znver5": ({"avx512_vnni", "avx_vnni"}, "avx_vnni", "amx_int8"),
    "neoverse-n1": ({"asimddp", "atomics"}, "arm_sdot", "arm_smmla"),
    "neoverse-v1": ({"asimddp", "i8mm", "bf16"}, "arm_smmla", None),
    "neoverse-v2": ({"asimddp", "i8mm"}, "arm_smmla", None),
    "cortex-a76": ({"asimddp"}, "arm_udot", "arm_smmla"),
    "cortex-a53": ({"asimd"}, "arm_int8", "arm_sdot"),
    "apple-m1": ({"asimddp"}, "arm_sdot", "arm_smmla"),
}
"""Features that manuals list, a target that there is, and one that there is not."""


@pytest.mark.parametrize("name", COMMON)
def test_a_common_name_has_the_features_and_instructions_of_its_manual(name: str) -> None:
    features, present, absent = COMMON[name]
    each = processor(name)
    assert each.features >= features
    names = {spec.name for spec in instructions_of(each)}
    assert present in names
    assert absent not in names
    with built_for(each):
        assert set(native_units().members) <= names
        assert present in native_units().members
        assert not open_target(load_hardware_spec(present)).missing()


def test_spellings_of_a_name_do_not_matter() -> None:
    for text in ("granite-rapids", "GraniteRapids", "granite_rapids"):
        assert processor(text).name == "graniterapids"
    assert processor("apple-m1") == processor(ALIASES["apple-m1"])


@pytest.mark.parametrize(
    "name, near",
    [("sapphire-rapid", "sapphirerapids"), ("neoverse-v9", "neoverse-v"), ("znver7", "znver")],
)
def test_an_unknown_name_is_an_error_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(SpecError, match=rf"unknown processor '{name}' \(did you mean {near}"):
        processor(name)


@pytest.mark.parametrize("name", ["", "generic", "i686", "pentium4m", "native"])
def test_names_of_no_64_bit_processor_are_unknown(name: str) -> None:
    with pytest.raises(SpecError, match=f"unknown processor '{name}'"):
        processor(name)


def test_a_processor_without_an_instruction_that_is_a_target_is_an_error() -> None:
    message = "x86-64-v2: none of its instructions is a target"
    with built_for_name("x86-64-v2"), pytest.raises(BackendUnavailable, match=message):
        native_units()


def test_the_processor_stands_for_this_machine_only_inside() -> None:
    before = cpu_features(), compiled_for(), architecture(), constants.calibration()
    with built_for_name("neoverse-v1"):
        assert architecture() == "aarch64"
        assert compiled_for().name == "neoverse-v1"
        assert constants.calibration().cpu == "none: published figures of neoverse_v1"
        with built_for_name("znver5"):
            assert architecture() == "x86_64"
            assert native_target().name == "avx512_vnni"
        assert compiled_for().name == "neoverse-v1"
        with built_for_name(None):
            assert named_processor() is None
    assert PROCESSOR_VARIABLE not in os.environ
    assert (cpu_features(), compiled_for(), architecture(), constants.calibration()) == before


def test_results_are_cached_for_each_processor() -> None:
    calls: list[int] = []

    @cache_by_processor
    def counted(number: int) -> int:
        calls.append(number)
        return len(calls)

    assert [counted(1), counted(1), counted(2)] == [1, 1, 2]
    with built_for_name("znver4"):
        assert [counted(1), counted(1)] == [3, 3]
    assert counted(1) == 1


def test_a_named_target_has_the_other_units_of_the_processor() -> None:
    with built_for_name("sapphirerapids"):
        units = units_of(load_hardware_spec("avx512_vnni"))
        assert units.name == "avx512_vnni"
        assert "amx_int8" in [spec.name for spec in units.processor]
    with built_for_name("znver3"):
        assert units_of(load_hardware_spec("avx512_vnni")).processor == ()


def test_figures_belong_to_processors_and_name_instructions_of_theirs() -> None:
    known = {each.name: each for each in processors()}
    assert set(constants._figures()) <= set(known)
    for name, (_, figures) in constants._figures().items():
        instructions = " ".join(spec.name for spec in instructions_of(known[name]))
        assert figures.product_cycles.keys() == figures.latency_cycles.keys()
        assert ("tdpbusd" in figures.product_cycles) == ("amx" in instructions)
        # Cores of one table may lack an instruction of others.
        if "arm_smmla" in instructions:
            assert "smmla" in figures.product_cycles, name
        if "vfmadd231ps" in figures.product_cycles:
            assert "avx512" in instructions, name
        assert list(figures.cache_bytes[:2]) == sorted(figures.cache_bytes[:2])


def test_estimates_follow_the_figures() -> None:
    """One unit of 512 bits takes twice the time of two, at the clocks of the tables."""
    times: dict[str, float] = {}
    for name in ("znver4", "znver5"):
        with built_for_name(name):
            times[name] = constants.calibration().product_ns["vfmadd231ps"]
    assert times == {"znver4": pytest.approx(1 / 3.7), "znver5": pytest.approx(0.5 / 4.0)}


def test_no_code_for_arm_uses_scalable_vectors() -> None:
    with built_for_name("neoverse-v2"):
        assert exported_attributes() == ("-sve", "-sme")
        assert not [name for name in needed_features() if "sve" in name]


@pytest.mark.parametrize(
    "names, message",
    [
        (("znver4", "neoverse-n1"), "one instruction set, not aarch64 and x86_64"),
        (("znver3", "x86-64-v3"), "znver3 and x86-64-v3 have the same features"),
        (("gracemont", "skylake-avx512"), "none is a baseline for the others"),
    ],
)
def test_variants_of_one_library_need_a_baseline(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        processors_named(names)


def test_the_most_demanding_variant_comes_first() -> None:
    names = ("x86-64-v3", "sapphirerapids", "znver4", "x86-64-v3")
    ordered = [each.name for each in processors_named(names)]
    assert ordered == ["sapphirerapids", "znver4", "x86-64-v3"]


def test_libraries_check_every_feature_by_name() -> None:
    text = (NATIVE / "processor.h").read_text()
    for name in (*feature_table().names, *feature_table().arm):
        assert f'{{"{name}", ' in text, name


def test_features_of_arm_have_the_bits_that_the_kernel_gives_them() -> None:
    """Linux's arch/arm64/include/uapi/asm/hwcap.h."""
    bits = {
        "fp": (0, 0), "asimd": (0, 1), "crc32": (0, 7), "atomics": (0, 8), "asimdhp": (0, 10),
        "asimdrdm": (0, 12), "jscvt": (0, 13), "fcma": (0, 14), "lrcpc": (0, 15), "sha3": (0, 17),
        "asimddp": (0, 20), "asimdfhm": (0, 23), "ilrcpc": (0, 26), "flagm": (0, 27),
        "i8mm": (1, 13), "bf16": (1, 14), "cssc": (1, 34), "mops": (1, 43),
    }  # fmt: skip
    text = (NATIVE / "processor.h").read_text()
    table = text[text.index("AT_HWCAP2. */") :]
    rows = re.findall(r'\{"(\w+)", (\d), (\d+)\}', table)
    assert {name: (int(word), int(bit)) for name, word, bit in rows} == bits
    assert set(bits) == set(feature_table().arm)


@pytest.mark.parametrize("name, machine", [("znver5", 62), ("neoverse-n1", 183)])
def test_objects_are_those_of_the_instruction_set(name: str, machine: int) -> None:
    """The field e_machine of an ELF header."""
    from cpembed.codegen.plan import KernelPlan, Script, buffer

    script = Script()
    with script.function([buffer("A", 64, "float32")]), script.nested("for i in T.serial(64):"):
        script.line("A[i] = A[i] + T.float32(1)")
    with built_for_name(name):
        contents = compile_host_object(KernelPlan("add", script.text()), "add").contents
    assert contents[:4] == b"\x7fELF"
    assert int.from_bytes(contents[18:20], "little") == machine


def test_a_description_names_the_figures() -> None:
    assert described(processor("znver4"))["figures"] == "zen4"
    assert described(processor("a64fx"))["figures"] is None
