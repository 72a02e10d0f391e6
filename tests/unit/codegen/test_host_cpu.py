"""The compiler's target follows from the features that the processor reports."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from cpembed.codegen import host_cpu as module
from cpembed.codegen import runtime
from cpembed.codegen.host_cpu import HIDE_VARIABLE, NAME_VARIABLE, feature_table, host_cpu
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compiled_for

LLVM_FEATURES = feature_table().names
OLD = {"sse3", "ssse3", "sse4.1", "sse4.2", "avx"}
WIDE = {*OLD, "avx2", "fma", "f16c", "avx512f"}
TILES = {*WIDE, "amx-tile"}
NAMES = {"old": OLD, "wide": WIDE, "tiles": TILES, "ti_les": TILES, "zen": {*WIDE, "sse4a"}}
_AVX = "pni ssse3 sse4_1 sse4_2 avx"
REPORTED = {
    "old": _AVX,
    "wide": f"{_AVX} avx2 fma f16c avx512f",
    "tiles": f"{_AVX} avx2 fma f16c avx512f amx_tile",
}

needs_x86 = pytest.mark.skipif(not module.is_x86(), reason="for x86 processors")


def host_of(monkeypatch: pytest.MonkeyPatch, recognised: str, flags: str) -> module.HostCpu:
    monkeypatch.setattr(module, "reported_features", lambda: frozenset(flags.split()))
    monkeypatch.setattr(module, "is_x86", lambda: True)
    return host_cpu(recognised, lambda: NAMES, lambda name: {*NAMES[name], "prefer-256-bit"})


def test_what_rests_on_an_absent_feature_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM switches it off as well, and could not compile for it."""
    every = "pni ssse3 sse4_1 sse4_2 avx avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16"
    monkeypatch.setattr(module, "reported_features", lambda: frozenset(every.split()))
    assert module.cpu_features() == frozenset(every.split())
    for hidden, left in (
        ("fma", "pni ssse3 sse4_1 sse4_2 avx avx2 f16c"),
        ("avx512bw", "pni ssse3 sse4_1 sse4_2 avx avx2 fma f16c avx512f avx512_vnni"),
        ("ssse3", "pni"),
    ):
        monkeypatch.setenv(HIDE_VARIABLE, hidden)
        assert module.cpu_features() == frozenset(left.split())


@needs_x86
@pytest.mark.parametrize("flag", sorted({*LLVM_FEATURES} - {"amx_tile"}))
def test_what_a_feature_rests_on_is_llvms(flag: str) -> None:
    """LLVM adds what a feature rests on with it."""
    from tvm.target import codegen

    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
    target |= {"mattr": [f"+{LLVM_FEATURES[flag]}"]}
    implied = set(codegen.llvm_get_cpu_features(runtime.tvm().target.Target(target)))
    needed = {LLVM_FEATURES[name] for name in feature_table().basis(flag)}
    assert needed <= implied


@pytest.mark.parametrize("name", REPORTED)
def test_a_right_name_stands(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cpu = host_of(monkeypatch, name, REPORTED[name] + " vmx")
    assert (cpu.name, cpu.attributes) == (name, ())
    assert cpu.why == f"LLVM recognises {name}"


def test_a_masked_model_number_is_compiled_for_what_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = host_of(monkeypatch, "old", REPORTED["tiles"])
    assert (cpu.name, cpu.attributes) == ("tiles", ())
    assert {"amx-tile", "avx512f"} <= set(cpu.lacking)
    assert "LLVM recognises old" in cpu.why
    assert "compiled for tiles" in cpu.why


def test_what_no_known_name_has_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = host_of(monkeypatch, "wide", REPORTED["wide"] + " avx512_vnni")
    assert (cpu.name, cpu.attributes) == ("wide", ("+avx512vnni",))
    assert "added: avx512vnni" in cpu.why


def test_what_a_hypervisor_switched_off_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = host_of(monkeypatch, "tiles", REPORTED["old"] + " avx2 fma f16c")
    assert (cpu.name, cpu.attributes) == ("tiles", ("-amx-tile", "-avx512f"))
    assert "not reported, so not used: amx-tile, avx512f" in cpu.why


def test_another_vendors_name_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_of(monkeypatch, "old", REPORTED["wide"] + " sse4a").name == "zen"


def test_hidden_features_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE_VARIABLE, "amx_tile, avx512f")
    assert host_of(monkeypatch, "tiles", REPORTED["tiles"]).absent == ("amx-tile", "avx512f")


def test_llvm_knows_every_feature_by_the_name_that_is_used() -> None:
    """LLVM ignores an attribute that it does not know, with a warning that nobody reads."""
    from tvm.target import codegen

    library = runtime.tvm()
    triple = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
    names = codegen.llvm_get_cpu_archlist(library.target.Target(triple))
    features: set[str] = set()
    for name in names:
        features |= set(
            codegen.llvm_get_cpu_features(library.target.Target({**triple, "mcpu": name}))
        )
    # Of a feature without a processor: what adding it makes of a target.
    for feature in set(LLVM_FEATURES.values()) - features:
        target = library.target.Target({**triple, "mcpu": "x86-64", "mattr": [f"+{feature}"]})
        assert feature in codegen.llvm_get_cpu_features(target)


@needs_x86
@pytest.mark.skipif("avx512f" not in module.reported_features(), reason="CPU feature avx512f")
@pytest.mark.parametrize("hidden, used", [("", True), ("avx512f", False)])
def test_code_has_no_instruction_of_a_feature_that_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, hidden: str, used: bool
) -> None:
    monkeypatch.setenv(HIDE_VARIABLE, hidden)
    runtime.compiled_for.cache_clear()
    runtime.host_target.cache_clear()
    try:
        text = (
            "@T.prim_func(s_tir=True)\n"
            'def main(A: T.Buffer((1024,), "float32"), B: T.Buffer((1024,), "float32")):\n'
            '    T.func_attr({"tirx.noalias": True, "global_symbol": "main"})\n'
            "    for i in T.serial(64):\n"
            "        B[T.ramp(i * 16, 1, 16)] = A[T.ramp(i * 16, 1, 16)] * A[0]\n"
        )
        assert ("zmm" in runtime.compile_plan(KernelPlan("copy", text)).assembly()) == used
    finally:
        runtime.compiled_for.cache_clear()
        runtime.host_target.cache_clear()


def on_a_machine(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line where LLVM takes the processor for another one, or features are missing."""
    return subprocess.run(
        [sys.executable, "-m", "cpembed", *words.split()],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def layer_of(target: str) -> str:
    """One that a target executes: vectors multiply element by element."""
    from cpembed.hw.loader import load_hardware_spec

    words = "gemm m=16 n=32 k=64"
    computation = load_hardware_spec(target).instruction.computation
    if len({computation.access(operand.name).iterators for operand in computation.operands}) == 1:
        words = "depthwise n=1 c=32 h=8 w=8 r=3 s=3 pad=1 layout=NHWC"
    return f"{words} --target {target} --json"


def test_functions_that_are_cached_by_processor_are_pickled_by_name() -> None:
    """Workers are asked for them; a pickle of a copy would run them in this process instead."""
    assert pickle.loads(pickle.dumps(compiled_for)) is compiled_for


@needs_x86
def test_targets_say_what_was_recognised() -> None:
    process = on_a_machine("targets", **{NAME_VARIABLE: "x86-64"})
    assert process.returncode == 0
    assert "LLVM recognises x86-64; the processor also reports" in process.stdout


@needs_x86
@pytest.mark.slow
@pytest.mark.parametrize("name", ["x86-64", "rocketlake", "znver1"])
def test_every_target_of_the_processor_runs_whatever_llvm_recognises(name: str) -> None:
    from cpembed.hw.loader import available_targets, load_hardware_spec
    from cpembed.targets.x86.features import missing_features

    specs = [load_hardware_spec(target) for target in available_targets()]
    for spec in specs:
        if spec.backend != "x86" or missing_features(spec):
            continue
        process = on_a_machine(f"run {layer_of(spec.name)}", **{NAME_VARIABLE: name})
        assert process.returncode == 0, (spec.name, process.stderr)


@needs_x86
@pytest.mark.slow
def test_any_feature_can_be_switched_off() -> None:
    """Each in turn: the kernels that need it say so, others run."""
    for flag in sorted(set(LLVM_FEATURES) & module.reported_features()):
        for target in ("avx512_vnni", "avx512_int8", "vta_1x16x16"):
            process = on_a_machine(f"run {layer_of(target)}", **{HIDE_VARIABLE: flag})
            assert process.returncode in (0, 5), (flag, target, process.stderr)
            assert process.stderr.count("\n") == (process.returncode == 5), (
                flag,
                target,
                process.stderr,
            )
