"""``cpembed run`` on VTA: verified bit for bit, simulated cycles, measured packing, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.resources import hardware_spec_files
from cpembed.targets.vta import target, tuning
from cpembed.targets.vta.target import VtaTarget
from tests.cli.calling import Caller
from tests.cli.schema import SIMULATED, assert_matches

GEMM = ("gemm", "m=9", "n=40", "k=48")
CONV = ("conv2d", "n=1", "c=20", "h=9", "w=7", "k=24", "r=3", "s=3", "pad=1", "stride=2")
VTA = ("--target", "vta_1x16x16")


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", ["vta_1x16x16", "vta_8x8x8"])
@pytest.mark.parametrize("layer", [GEMM, CONV], ids=lambda layer: layer[0])
@pytest.mark.parametrize("form", ["requantized", "int32", "int8"])
def test_a_run_is_verified_and_simulated(
    cpembed: Caller, layer: tuple[str, ...], target: str, form: str
) -> None:
    called = cpembed("run", *layer, "--target", target, "--output", form, "--seed", "5", "--json")
    assert (called.code, called.err) == (0, "")
    document = called.json
    assert_matches(document, SIMULATED)
    assert (document["verified"], document["max_error"], document["tolerance"]) == (True, 0, 0)
    assert (document["backend"], document["seed"]) == ("vta.simulator", 5)
    assert document["output"]["form"] == form
    assert document["output"]["dtype"] == ("int32" if form == "int32" else "int8")
    assert document["simulated_us"] == document["simulated_cycles"] / 100
    assert document["lower_bound_cycles"] <= document["busiest_module_cycles"]
    assert document["busiest_module_cycles"] <= document["simulated_cycles"]
    assert document["memory"]["dram_delay_cycles"] == 16
    # A measured latency would be the machine's, and there is none.
    assert not {"latency_us", "gops", "generic_latency_us", "missing"} & document.keys()


@pytest.mark.slow
def test_all_bits_are_four_times_the_stores(cpembed: Caller) -> None:
    low, all_bits = (
        cpembed("run", *GEMM, *VTA, "--output", form, "--json").json for form in ("int8", "int32")
    )
    assert all_bits["bytes"]["OUT"] == 4 * low["bytes"]["OUT"]
    assert low["bytes"]["OUT"] == 9 * 48


@pytest.mark.slow
def test_the_shift_is_reported_and_can_be_chosen(cpembed: Caller) -> None:
    chosen = cpembed("run", *GEMM, *VTA, "--json").json["output"]
    # 7 bits and half those of 48 products, rounded up: docs/vta.md.
    assert (chosen["shift"], chosen["low"], chosen["high"]) == (10, -128, 127)
    given = cpembed("run", *GEMM, *VTA, "--shift", "4", "--json").json
    assert (given["output"]["shift"], given["verified"]) == (4, True)
    assert "shifted right by 4" in cpembed("run", *GEMM, *VTA, "--shift", "4").out


def test_an_output_of_int8_is_cut_off(cpembed: Caller) -> None:
    cut = ("C[m,n] += A[m,k] * B[k,n]", "m=9", "n=40", "k=48", "dtype=int8,int8,int8", *VTA)
    document = cpembed("run", *cut, "--json").json
    assert (document["output"]["form"], document["verified"]) == ("int8", True)
    for form in ("requantized", "int32"):
        refused = cpembed("run", *cut, "--output", form)
        refused.is_one_line_error(2, f"cannot be {form}", "give it the type int32")


@pytest.mark.slow
def test_a_machine_of_ones_own(cpembed: Caller, tmp_path: Path) -> None:
    text = hardware_spec_files()["vta_1x16x16"].read_text(encoding="utf-8")
    for old, new in (
        ("y = 16", "y = 32"),
        ("z = 16", "z = 32"),
        ("clock_mhz = 100", "clock_mhz = 333"),
    ):
        assert old in text
        text = text.replace(old, new)
    for name, replaced in (("bus", "bus_bits = 128"), ("slow", "dram_delay_cycles = 90")):
        key = replaced.partition(" ")[0]
        lines = [replaced if line.startswith(key) else line for line in text.splitlines()]
        (tmp_path / f"{name}.toml").write_text("\n".join(lines), encoding="utf-8")
    fast, slow = (
        cpembed("run", *CONV, "--target", str(tmp_path / name), "--json").json
        for name in ("bus.toml", "slow.toml")
    )
    for document in (fast, slow):
        assert document["verified"] is True
        assert document["simulated_us"] == document["simulated_cycles"] / 333
    assert (fast["memory"]["bus_bits"], slow["memory"]["dram_delay_cycles"]) == (128, 90)
    assert slow["simulated_cycles"] > fast["simulated_cycles"]


def test_a_machine_without_a_clock_is_refused(cpembed: Caller, tmp_path: Path) -> None:
    text = hardware_spec_files()["vta_1x16x16"].read_text(encoding="utf-8")
    own = tmp_path / "own.toml"
    own.write_text(text[: text.index("[machine]")], encoding="utf-8")
    called = cpembed("run", *GEMM, "--target", str(own))
    called.is_one_line_error(2, "own.toml: machine: is missing", "clock")


@pytest.mark.slow
def test_the_program_is_saved_and_drawn(cpembed: Caller, tmp_path: Path) -> None:
    saved, drawn = tmp_path / "program.zip", tmp_path / "timeline.json"
    files = ("--save", str(saved), "--trace", str(drawn))
    document = cpembed("run", *CONV, *VTA, *files, "--json", "--seed", "3").json
    assert cpembed("vta", "check", str(saved)).code == 0
    again = cpembed("vta", "cycles", str(saved), "--json").json
    assert again["cycles"] == document["simulated_cycles"]
    assert json.loads(drawn.read_text(encoding="utf-8"))["otherData"]["cycles"] == again["cycles"]
    # Its inputs are in it: it computes the same result again.
    written = cpembed("vta", "run", str(saved), "-o", str(tmp_path / "o.npy"))
    assert written.code == 0
    assert np.load(tmp_path / "o.npy").any()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words, inputs",
    [
        ("O[n,k] += I[n,c] * W[k,c]", {"I": "input", "W": "weight"}),
        ("O[n,k] += uops[n,c] * W[k,c]", {"uops": "input", "W": "weight"}),
        ("O[n,k] += A[n,c] * A[k,c]", {"A@1": "input", "A@0": "weight"}),
    ],
)
@pytest.mark.parametrize(
    "form, stored", [("int8", ["O"]), ("int32", [f"O.byte{k}" for k in "0123"])]
)
def test_a_saved_program_says_what_its_tensors_are(
    cpembed: Caller,
    tmp_path: Path,
    words: str,
    inputs: dict[str, str],
    form: str,
    stored: list[str],
) -> None:
    saved = tmp_path / "program"
    sizes = ("n=16", "k=16", "c=32")
    called = cpembed("run", words, *sizes, *VTA, "--output", form, "--save", str(saved), "--json")
    assert called.code == 0
    tensors = json.loads((saved / "meta.json").read_text(encoding="utf-8"))["tensors"]
    roles = {name: tensor["role"] for name, tensor in tensors.items()}
    uops = {name: roles.pop(name) for name in list(roles) if roles[name] == "uops"}
    assert len(uops) == 1
    assert roles == inputs | dict.fromkeys(stored, "output")
    assert [n for n, role in inputs.items() if role == "weight"] == called.json["packed_ahead"]
    # As text the program is the same, and every reader takes the names.
    text, again = tmp_path / "program.s", tmp_path / "again"
    assert cpembed("vta", "disasm", str(saved), "-o", str(text)).code == 0
    assert cpembed("vta", "asm", str(text), "-o", str(again)).code == 0
    for name in ("insns.bin", "dram.bin", "meta.json"):
        assert (saved / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.parametrize(
    "options, words",
    [
        (("--output", "int32", "--shift", "3"), "output int32 has no shift"),
        (("--shift", "32"), "32"),
        (("--output", "uint8"), "stores requantized, int32, int8, not uint8: name one"),
        (("--relu",), "is simulated and stores requantized, int32, int8, not relu"),
        (("--backend", "generic", "--output", "requantized"), "not requantized: choose one"),
        (("--backend", "generic", "--trace", "t.json"), "--trace: vta_1x16x16 with the generic"),
        (("--rank", "99"), "no candidate of rank 99"),
    ],
)
def test_wrong_options_are_refused(cpembed: Caller, options: tuple[str, ...], words: str) -> None:
    cpembed("run", *GEMM, *VTA, *options).is_one_line_error(2, words)


def test_files_are_for_targets_that_have_such(cpembed: Caller) -> None:
    other = ("run", *GEMM, "--target", "gemm_16x16x16")
    cpembed(*other, "--save", "p").is_one_line_error(
        2, "--save: gemm_16x16x16", "name a target that has"
    )


@pytest.mark.slow
def test_a_cpu_shifts_too(cpembed: Caller) -> None:
    found = cpembed("run", *GEMM, *VTA, "--backend", "generic", "--shift", "3", "--relu", "--json")
    assert (found.code, found.json["stored"], found.json["shift"]) == (0, "int8", 3)
    assert found.json["verified"]


def test_portable_code_that_was_asked_for_lacks_nothing(cpembed: Caller) -> None:
    called = cpembed("run", *GEMM, *VTA, "--backend", "generic", "--json")
    assert (called.code, called.err) == (0, "")
    assert (called.json["backend"], called.json["missing"]) == ("generic", [])


def test_what_cannot_be_lowered_is_said(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise LoweringError("single tiles exceed the buffers")

    monkeypatch.setattr(VtaTarget, "build", refuse)
    called = cpembed("run", *GEMM, *VTA, "--json")
    assert called.code == 5
    assert called.json["missing"] == ["single tiles exceed the buffers"]
    assert called.err.count("\n") == 1
    native = cpembed("run", *GEMM, *VTA, "--backend", "native")
    native.is_one_line_error(5, "single tiles exceed the buffers")


def test_wrong_numbers_are_never_a_result(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = target.simulate

    def wrong(program: Any, **options: Any) -> Any:
        memory = honest(program, **options)
        memory[program.tensors["C"].offset] ^= 1
        return memory

    monkeypatch.setattr(target, "simulate", wrong)
    called = cpembed("run", *GEMM, *VTA, "--seed", "3")
    called.is_one_line_error(1, "is wrong by up to 1", "seed 3", "report")


def test_an_illegal_program_of_ours_is_a_bug(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = tuning.lower

    def broken(*arguments: Any) -> Any:
        lowered = honest(*arguments)
        object.__setattr__(lowered, "instructions", lowered.instructions[:-1])
        return lowered

    monkeypatch.setattr(tuning, "lower", broken)
    called = cpembed("run", *GEMM, *VTA)
    called.is_one_line_error(1, "is illegal: ", "FINISH", "report")
