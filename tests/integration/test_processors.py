"""Libraries for other processors through the command line and from Python."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import cpembed as package
from cpembed.codegen.host_cpu import host_architecture
from cpembed.export.emulated import emulator_of
from cpembed.export.library import CROSS_COMPILER_VARIABLE, has_compiler
from cpembed.export.loader import Library
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Apply, Elementwise, Input, Product, TensorType
from cpembed.network import family_variants
from cpembed.network.family import Ranges
from cpembed.network.match import match
from cpembed.network.processors import ProcessorsResult
from cpembed.report.family import library_lines
from cpembed.targets.processors import built_for_name, processor
from cpembed.workloads.naming import parse_workload
from tests.cli.calling import Caller
from tests.unit.graph.test_size_relation import recurrent

HERE = "x86-64-v3"
"""Processor whose code this machine executes."""

runs = pytest.mark.skipif(not processor(HERE).runs_here, reason=f"this machine is no {HERE}")


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def multiplied(dtype: str = "uint8,int8,int32") -> Graph:
    """A product with constant weights, and its absolute values."""
    workload = parse_workload(["gemm", "m=4", "n=32", "k=64", f"dtype={dtype}"])
    first, second, result = dtype.split(",")
    weights = np.random.default_rng(1).integers(-3, 4, workload.inputs[1].shape)
    absolute = Elementwise(Apply("max", (Input(0), Apply("neg", (Input(0),)))), result)
    return Graph(
        "multiplied",
        {"x": TensorType((4, 64), first)},
        ("z",),
        {"w": weights.astype(second)},
        (
            Operator("product", Product(workload, (4, 32)), ("x", "w"), ("y",)),
            Operator("absolute", absolute, ("y",), ("z",)),
        ),
    )


@runs
@pytest.mark.parametrize("dtype", ["uint8,int8,int32", "float32,float32,float32"])
def test_a_library_of_two_variants_runs_the_one_that_this_machine_has(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = multiplied(dtype)
    result = package.build_model(graph, tmp_path, ("sapphirerapids", HERE))
    larger, smaller = result.document["variants"]
    assert (larger["cpu"]["name"], smaller["cpu"]["name"]) == ("sapphirerapids", HERE)
    assert smaller["cpu"]["executed"] == "here"
    assert all(o["verified"] for o in smaller["operators"])
    # Each variant's products are on units of its processor.
    for document in (larger, smaller):
        embedded = [o["embedded_on"] for o in document["operators"] if o["workload"]]
        assert set(embedded) <= set(document["cpu"]["instructions"])
    assert larger["operators"][0]["embedded_on"] not in smaller["cpu"]["instructions"]
    assert result.library is not None
    x = np.random.default_rng(2).integers(0, 9, (4, 64)).astype(dtype.split(",", maxsplit=1)[0])
    expected = np.abs(x.astype(np.float64) @ graph.constants["w"].astype(np.float64))
    with Library(result.library.path, result.library.name) as library:
        assert library.variants == ("sapphirerapids", HERE)
        large_runs = processor("sapphirerapids").runs_here
        assert library.variant == ("sapphirerapids" if large_runs else HERE)
        assert np.array_equal(library.run(x)[0], expected)
    about = json.loads((tmp_path / "multiplied.json").read_text())
    assert [each["name"] for each in about["variants"]] == ["sapphirerapids", HERE]
    if not large_runs:
        assert about["cpu"][0]["reason"].startswith("this machine is no sapphirerapids, and qemu")
        assert "sapphirerapids was not executed" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "dtype, units",
    [
        ("int8,int8,int32", ("arm_sdot", "arm_int8")),
        ("float32,float32,float32", ("arm_f32", "arm_f32_lanes")),
    ],
)
def test_a_library_for_a_core_of_arm_is_emulated(
    tmp_path: Path, dtype: str, units: tuple[str, ...]
) -> None:
    with built_for_name("neoverse-n1"):
        if emulator_of("aarch64") is None or not has_compiler():
            pytest.skip("needs qemu-aarch64 and a C compiler for AArch64")
    result = package.build_model(multiplied(dtype), tmp_path, "neoverse-n1")
    cpu = result.document["cpu"]
    if host_architecture() != "aarch64":
        assert (cpu["executed"], cpu["reason"]) == ("emulated", None)
    assert all(o["verified"] for o in result.document["operators"])
    assert all(o["verified_with_special_values"] for o in result.document["operators"])
    assert result.document["operators"][0]["embedded_on"] in units
    # The field e_machine of an ELF header.
    contents = (tmp_path / "libmultiplied.so").read_bytes()
    assert int.from_bytes(contents[18:20], "little") == 183


def check_family(result: ProcessorsResult, family: Family) -> None:
    """Run the library that was written at every size, beside the definitions."""
    assert result.library is not None
    random = np.random.default_rng(4)
    with Library(result.library.path, result.library.name) as library:
        for sizes in itertools.product(*family.ranges.values()):
            graph = family.graph(sizes)
            x = random.normal(size=graph.inputs["x"].shape).astype(np.float32)
            expected = evaluate(graph, {"x": x}, lambda name: False)
            for name, array in zip(graph.outputs, library.run(x), strict=True):
                np.testing.assert_allclose(array, expected[name], rtol=2e-4, atol=2e-5)


@runs
def test_variants_for_ranges_of_sizes_and_their_loops(tmp_path: Path) -> None:
    ranges = {"b": range(1, 4), "s": range(2, 12)}
    family = Family("recurrent", ranges, partial(recurrent, backwards=True))
    result = package.build_model(family, tmp_path, ("sapphirerapids", HERE), ranges=Ranges(1.5, 3))
    larger, smaller = result.document["variants"]
    assert smaller["cpu"]["executed"] == "here"
    operators = [o for i in smaller["instances"] for o in i["network"]["operators"]]
    assert all(o["verified"] for o in operators)
    assert all(check["verified"] for check in smaller["checks"])
    assert larger["ranges"] == smaller["ranges"] == {"b": [1, 3], "s": [2, 11]}
    check_family(result, family)
    about = json.loads((tmp_path / "recurrent.json").read_text())
    assert about["ranges"]["symbols"] == {"b": [1, 3], "s": [2, 11]}
    assert [each["name"] for each in about["variants"]] == ["sapphirerapids", HERE]


@pytest.mark.parametrize("limit", [None, 1_000])
def test_ranges_of_sizes_are_emulated_as_far_as_there_is_time(
    limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with built_for_name("neoverse-n1"):
        if emulator_of("aarch64") is None or not has_compiler():
            pytest.skip("needs qemu-aarch64 and a C compiler for AArch64")
    if limit is not None:
        monkeypatch.setattr(family_variants, "EMULATED", limit)
    ranges = {"b": range(1, 4), "s": range(2, 40)}
    family = Family("recurrent", ranges, partial(recurrent, backwards=True))
    result = package.build_model(family, tmp_path, "neoverse-n1", ranges=Ranges(1.2, 3))
    document = result.document
    if host_architecture() != "aarch64":
        assert document["cpu"]["executed"] == "emulated"
    left_out = document["cpu"]["left_out"]
    sizes = [instance["sizes"] for instance in document["instances"]]
    for instance in document["instances"]:
        states = {o["verified"] for o in instance["network"]["operators"]}
        assert states == ({None} if instance["sizes"] in left_out else {True})
    assert document["checks"]
    assert all(check["verified"] for check in document["checks"])
    (verified,) = [t for t in library_lines(document, "lib") if t.startswith("verified")]
    if limit is None:
        assert not left_out
        assert not document["cpu"]["unchecked"]
        assert "too long" not in verified
    else:
        assert {"b": 3, "s": 39} in document["cpu"]["unchecked"]
        assert len([at for at in sizes if at not in left_out]) >= 1
        assert "outputs at b=3, s=39" in verified


@pytest.mark.skipif(host_architecture() == "aarch64", reason="the compiler here is one for it")
def test_without_a_compiler_for_it_the_sources_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CROSS_COMPILER_VARIABLE, "no-such-compiler")
    names = ("neoverse-v1", "neoverse-n1")
    result = package.build_model(multiplied("int8,int8,int32"), tmp_path, names)
    for variant in result.document["variants"]:
        assert variant["cpu"]["executed"] is None
        assert variant["cpu"]["reason"]
        assert not [o for o in variant["operators"] if o["verified"] is not None]
    files = {path.name for path in tmp_path.iterdir()}
    assert {"Makefile", "runtime.c", "dispatch.c", "program_0.h", "multiplied.weights"} <= files
    assert "libmultiplied.so" not in files


def test_match_plans_for_a_processor() -> None:
    graph = multiplied()
    with built_for_name("sapphirerapids"):
        (matched,) = match(graph, ["native"]).targets
        selected = matched.operators[0].match
        assert selected is not None
        assert str(selected.embedded_on).startswith(("amx", "avx512", "avx_vnni"))


GEMM = ("gemm", "m=4", "n=32", "k=64", "--target", "native")


@pytest.mark.parametrize(
    "arguments, code, parts",
    [
        ((*GEMM, "--cpu", "sapphire-rapid"), 2, ("unknown processor", "sapphirerapids")),
        ((*GEMM, "--cpu", "x86-64-v2"), 5, ("x86-64-v2", "none of its instructions is a target")),
        ((*GEMM, "--cpu", "znver4,znver5"), 2, ("one processor",)),
        ((*GEMM, "--cpu", "znver4,"), 2, ("a name is missing",)),
    ],
)
def test_a_wrong_processor_is_one_line(
    cpembed: Caller, tmp_path: Path, arguments: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    called = cpembed("build", *arguments, "-o", str(tmp_path / "o"))
    assert called.code == code, called
    for part in parts:
        assert part in called.err
    assert not (tmp_path / "o").exists()


def test_a_model_for_wrong_processors_is_refused_before_it_is_read(
    cpembed: Caller, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model")
    for names, part in (("znver4,neoverse-n1", "instruction set"), ("none", "unknown processor")):
        called = cpembed("build", str(model), "--cpu", names, "-o", str(tmp_path / "o"))
        called.is_one_line_error(2, part)
    called = cpembed("network", str(model), "--cpu", "neoverse-n1")
    if host_architecture() != "aarch64":
        called.is_one_line_error(5, "does not execute code for neoverse-n1", "--plan-only")


def test_processors_are_listed(cpembed: Caller) -> None:
    document = cpembed("processors", "--json").json
    rows = {row["name"]: row for row in document["processors"]}
    assert "amx_int8" in rows["sapphirerapids"]["instructions"]
    assert "asimddp" in rows["neoverse-n1"]["features"]
    assert "x86-64-v2" not in rows
    assert "znver4" in cpembed("processors").out


@runs
def test_a_kernel_is_built_for_a_processor(cpembed: Caller, tmp_path: Path) -> None:
    called = cpembed("build", *GEMM, "--cpu", HERE, "-o", str(tmp_path), "--json")
    assert called.code == 0, called.err
    assert called.json["verified"]
    assert "avx2" in called.json["cpu_features"]
    assert not [name for name in called.json["cpu_features"] if name.startswith("avx512")]


def test_a_kernel_that_this_machine_lacks_is_built_and_not_executed(
    cpembed: Caller, tmp_path: Path
) -> None:
    if processor("graniterapids").runs_here:
        pytest.skip("this machine executes it")
    called = cpembed("build", *GEMM, "--cpu", "graniterapids", "-o", str(tmp_path), "--json")
    assert called.code == 0, called.err
    assert (called.json["verified"], called.json["linked"]) == (None, True)
    assert called.json["executed"].startswith(("amx", "avx512"))
    assert (tmp_path / "libkernel.so").exists()
