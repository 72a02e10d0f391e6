"""Libraries of several variants: which one runs, how it is forced, and what is said of none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.host_cpu import built_for, cpu_features, is_x86
from cpembed.errors import BackendUnavailable, InvariantError, WorkloadError
from cpembed.export import variants
from cpembed.export.emulated import emulator_of
from cpembed.export.library import OPTIONS, Contents, compiler, has_compiler
from cpembed.export.loader import Library, LibraryError
from cpembed.export.program import Buffer, CompiledObject, Program, Role
from cpembed.export.texts import NATIVE
from cpembed.export.variants import VARIANT_VARIABLE, Variant, interface, ordered, write_variants
from cpembed.targets.processors import processor
from tests.unit.export.handwritten import ADD, NEGATE, SIZE, compiled, sums

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.skipif(not is_x86(), reason="features are those of x86 processors")

ABSENT = "amx_fp16"
"""Feature that a processor without tiles of float16 lacks, as nearly all do."""

X = np.random.default_rng(1).integers(-1000, 1000, (SIZE // 10, 10), dtype=np.int32)
W = np.random.default_rng(2).integers(-1000, 1000, SIZE, dtype=np.int32)

CALLED = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from net import Library, LibraryError
try:
    library = Library(threads=2)
except LibraryError as error:
    print(json.dumps(str(error)))
else:
    x, w = np.load(sys.argv[2]), np.load(sys.argv[3])
    library.pack(w)
    result = library.run(x)[0]
    border = int((-result - x.reshape(-1) - 2 * w)[0])
    print(json.dumps([library.variant, library.variants, library.steps, border]))
"""
"""Prints which variant ran, by its name and by the border that it adds."""


def program(border: int, features: tuple[str, ...]) -> Program:
    """The sums with another border and other symbols, as one compiled for another processor."""
    plain = sums("net")
    texts = {"add": ADD, "negate": NEGATE}
    symbols = {name: f"{name}_{abs(border)}" for name in texts}
    kernels: dict[str, CompiledObject] = {}
    for name, text in texts.items():
        own = symbols[name]
        kernels[own] = compiled(text.replace(f"KERNEL({name})", f"KERNEL({own})"), own)
    buffers = tuple(replace(b, fill=border) if b.fill is not None else b for b in plain.buffers)
    calls = [tuple(replace(c, kernel=symbols[c.kernel]) for c in part)
             for part in (plain.prepare, plain.run)]  # fmt: skip
    named = (*calls[1][:-1], replace(calls[1][-1], label=f"border {border}"))
    return Program("net", buffers, kernels, calls[0], named, features=features)


def in_order(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return variants in the order in which a library tries them."""
    by_name = {variant.name: variant for variant in variants}
    names = ordered({name: variant.program.features for name, variant in by_name.items()})
    return tuple(by_name[name] for name in names)


VARIANTS = (
    Variant("small", program(1, ("pni",))),
    Variant("large", program(3, ("pni", "ssse3", ABSENT))),
    Variant("middle", program(2, ("pni", "ssse3"))),
)


@pytest.fixture(scope="module", autouse=True)
def _quickly() -> Iterator[None]:
    """Link without optimisation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "OPTIONS", (*OPTIONS, "-O0"))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net")
    np.save(path / "x.npy", X)
    np.save(path / "w.npy", W)
    write_variants("net", in_order(VARIANTS), path, Contents(example=True))
    return path


def called(folder: Path, **variables: str) -> Any:
    """What a process of its own prints, with these variables."""
    command = [sys.executable, "-c", CALLED, folder, folder / "x.npy", folder / "w.npy"]
    environment = {**os.environ, **variables}
    process = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


NAMES = ["large", "middle", "small"]


@pytest.mark.skipif(ABSENT in cpu_features(), reason=f"has {ABSENT}")
def test_the_variant_with_the_most_features_that_there_are_runs(folder: Path) -> None:
    assert called(folder) == ["middle", NAMES, ["first sum", 'the "second"\\', "border 2"], 2]


def test_a_variable_forces_a_variant(folder: Path) -> None:
    name, _, steps, border = called(folder, **{VARIANT_VARIABLE: "small"})
    assert (name, steps[-1], border) == ("small", "border 1", 1)


@pytest.mark.skipif(ABSENT in cpu_features(), reason=f"has {ABSENT}")
@pytest.mark.parametrize(
    "forced, message",
    [
        ("large", f"net: no variant runs on this processor: large, needs {ABSENT}"),
        ("none", "net: CPEMBED_VARIANT=none is no variant of it: large, middle, small"),
    ],
)
def test_a_forced_variant_that_cannot_run_is_an_error(
    folder: Path, forced: str, message: str
) -> None:
    assert called(folder, **{VARIANT_VARIABLE: forced}) == message


@pytest.mark.skipif(ABSENT in cpu_features(), reason=f"has {ABSENT}")
def test_a_processor_without_the_baseline_is_told_what_it_lacks(tmp_path: Path) -> None:
    both = (
        Variant("larger", program(5, ("amx_tile", "amx_bf16", ABSENT))),
        Variant("least", program(4, ("amx_tile", ABSENT))),
    )
    write_variants("net", in_order(both), tmp_path, Contents())
    with pytest.raises(LibraryError, match="least, which needs the least, needs amx_"):
        Library(tmp_path / "libnet.so", "net")


@pytest.mark.parametrize(
    "name, larger, least, expected",
    [
        # A Cortex-A76 has dot products and no products of matrices; Nehalem has SSSE3 and no AVX.
        ("neoverse-n1", ("asimddp", "i8mm"), "asimd", {"max": "larger", "cortex-a76": "least"}),
        ("x86-64-v3", ("avx2", "fma"), "ssse3", {"max": "larger", "Nehalem": "least"}),
    ],
)
def test_an_emulated_processor_runs_the_variant_whose_features_it_has(
    tmp_path: Path, name: str, larger: tuple[str, ...], least: str, expected: dict[str, str]
) -> None:
    """By what Linux reports to a process on Arm, and by CPUID on x86."""
    each = processor(name)
    emulator = emulator_of(each.architecture)
    if emulator is None:
        pytest.skip(f"qemu-{each.architecture} is not installed")
    with built_for(each):
        if not has_compiler():
            pytest.skip(f"there is no C compiler for {each.architecture}")
        # Symbols of their own, since compiled kernels are cached by these.
        border = 10 * len(name)
        both = (
            Variant("least", program(border, (least,))),
            Variant("larger", program(border + 1, (least, *larger))),
        )
        write_variants("net", in_order(both), tmp_path, Contents(), linked=False)
        text = """
        #include <stdio.h>
        #include "net.h"
        int main(void) { puts(net_variant_name(net_variant())); return 0; }
        """
        (tmp_path / "ask.c").write_text(text)
        sources = [path.name for path in tmp_path.glob("variant_*.c")]
        sources += [path.name for path in tmp_path.glob("kernel_*.o")]
        options = ["-std=gnu11", "-static", "-pthread", "-w", "-I.", "-o", "ask"]
        command = [*compiler(), *options, "ask.c", "dispatch.c", *sources, "-lm"]
        subprocess.run(command, cwd=tmp_path, check=True)
    selected: dict[str, str] = {}
    for core in expected:
        command = [emulator, "-cpu", core, str(tmp_path / "ask")]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        selected[core] = ran.stdout.strip()
    assert selected == expected


def test_callers_in_c_ask_for_the_variant(folder: Path) -> None:
    text = """
    #include <stdio.h>
    #include "net.h"
    int main(void) {
      for (int k = 0; k < net_variant_count(); k++) printf("%s ", net_variant_name(k));
      printf("%s\\n", net_variant_name(net_variant()));
      return net_variant_name(net_variant_count()) != NULL;
    }
    """
    (folder / "ask.c").write_text(text)
    command = [*compiler(), "ask.c", "-o", "ask", "-L.", "-lnet", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(command, cwd=folder, check=True)
    environment = {**os.environ, VARIANT_VARIABLE: "small"}
    ran = subprocess.run(
        [folder / "ask"], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [*NAMES, "small"]


def test_the_description_has_the_variants(folder: Path) -> None:
    about = json.loads((folder / "net.json").read_text())
    assert [variant["name"] for variant in about["variants"]] == NAMES
    assert about["variants"][0]["cpu_features"] == ["pni", "ssse3", ABSENT]
    # What every processor needs is that of the baseline.
    assert about["cpu_features"] == ["pni"]


def test_only_the_functions_of_the_interface_are_visible(folder: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "libnet.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    declared = set(re.findall(r"\bnet_\w+(?=\()", (folder / "net.h").read_text()))
    assert names == declared


def test_equal_constants_of_variants_are_there_once(tmp_path: Path) -> None:
    def constant(border: int, features: tuple[str, ...]) -> Program:
        plain = program(border, features)
        data = np.arange(SIZE, dtype=np.int32)
        weights = Buffer("w", "int32", SIZE, Role.CONSTANT, data=data)
        return replace(plain, buffers=tuple(weights if b.name == "w" else b for b in plain.buffers))

    both = (Variant("a", constant(2, ("pni", "ssse3"))), Variant("b", constant(1, ("pni",))))
    write_variants("net", in_order(both), tmp_path, Contents())
    assert (tmp_path / "net.weights").stat().st_size == 64 + -(-4 * SIZE // 64) * 64
    with Library(tmp_path / "libnet.so", "net") as library:
        expected = -(X.reshape(-1) + 2 * np.arange(SIZE) + 2)
        assert np.array_equal(library.run(X)[0], expected)


def test_variants_need_a_baseline_and_differ() -> None:
    apart = (Variant("a", program(1, ("pni",))), Variant("b", program(2, ("ssse3",))))
    with pytest.raises(WorkloadError, match="none is a baseline for the others"):
        in_order(apart)
    alike = (Variant("a", program(1, ("pni",))), Variant("b", program(2, ("pni",))))
    with pytest.raises(WorkloadError, match="a and b have the same features"):
        in_order(alike)


def test_variants_have_one_interface(tmp_path: Path) -> None:
    other = replace(program(2, ("pni", "ssse3")), buffers=sums("net", size=SIZE * 2).buffers)
    with pytest.raises(InvariantError, match="different inputs"):
        write_variants("net", (Variant("a", other), VARIANTS[0]), tmp_path, Contents())
    assert not list(tmp_path.iterdir())


def test_every_function_of_the_interface_is_forwarded() -> None:
    text = (NATIVE / "interface.h").read_text()
    declared = set(re.findall(r"\bNAME_(\w+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
    assert set(interface("NAME", text)) == declared


def test_the_sources_of_a_library_link_elsewhere(tmp_path: Path) -> None:
    library = write_variants("net", in_order(VARIANTS), tmp_path, Contents(), linked=False)
    assert set(library.files) == {path.name for path in tmp_path.iterdir()}
    subprocess.run(["make", "libnet.so"], cwd=tmp_path, check=True, capture_output=True)
    with Library(tmp_path / "libnet.so", "net") as opened:
        assert opened.variants == tuple(NAMES)
