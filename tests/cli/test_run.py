"""``cpembed run`` through the front door: what is verified, what is measured, what is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpembed.codegen import instruction
from cpembed.driver import pipeline
from cpembed.errors import LoweringError
from cpembed.targets import choice, verification
from cpembed.targets.choice import ModelChoice
from cpembed.targets.x86.target import X86Target
from tests.cli.calling import Caller
from tests.cli.schema import QUANTILES, RUN, assert_matches
from tests.features import needs

GEMM = ("gemm", "m=4", "n=32", "k=64")
VTA = ("--target", "vta_1x16x16")
NO_BACK_END = ("--target", "gemm_16x16x16")
needs_vnni = needs("avx512_vnni")


@needs_vnni
def test_a_native_run_is_verified_and_timed(cpembed: Caller) -> None:
    called = cpembed("run", *GEMM, "--target", "avx512_vnni", "--json", "--seed", "7")
    assert (called.code, called.err) == (0, "")
    document = called.json
    assert_matches(document, {**RUN, "latency_us": QUANTILES, "gops": (int, float)})
    assert (document["verified"], document["max_error"]) == (True, 0)
    assert (document["backend"], document["seed"]) == ("x86.vnni", 7)
    assert 0 < document["latency_us"]["p10"] <= document["latency_us"]["p90"]
    assert "missing" not in document
    assert "generic_latency_us" not in document


def test_without_a_back_end_portable_code_verifies_and_the_exit_code_says_so(
    cpembed: Caller,
) -> None:
    called = cpembed("run", *GEMM, *NO_BACK_END, "--json")
    assert called.code == 5
    assert called.err.count("\n") == 1
    for part in ("no back end executes gemm_16x16x16", "portable code", "no time"):
        assert part in called.err
    document = called.json
    assert_matches(document, {**RUN, "generic_latency_us": QUANTILES, "missing": [str]})
    assert (document["verified"], document["backend"]) == (True, "generic")
    assert not {"latency_us", "gops"} & document.keys()


def test_portable_code_that_was_asked_for_is_a_result(cpembed: Caller) -> None:
    called = cpembed("run", *GEMM, *NO_BACK_END, "--backend", "generic", "--json")
    assert (called.code, called.err) == (0, "")
    assert called.json["missing"] == ["no back end executes gemm_16x16x16 yet"]
    assert "latency_us" not in called.json


@pytest.mark.slow
@pytest.mark.usefixtures("bare_cpu")
def test_a_machine_without_the_feature_verifies_with_portable_code(cpembed: Caller) -> None:
    called = cpembed("run", *GEMM, "--target", "amx_int8", "--json")
    assert called.code == 5
    assert "amx_tile" in called.err
    assert (called.json["verified"], called.json["backend"]) == (True, "generic")
    text = cpembed("run", *GEMM, "--target", "amx_int8")
    assert text.code == 5
    assert "amx_tile" in text.out
    assert "latency" not in text.out
    assert "GOPS" not in text.out


@pytest.mark.usefixtures("bare_cpu")
def test_native_where_there_is_none_runs_nothing(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "candidate_searches", None)
    for target in ("amx_int8", "gemm_16x16x16"):
        called = cpembed("run", *GEMM, "--target", target, "--backend", "native", "--json")
        called.is_one_line_error(5, target)


def test_operands_too_large_for_a_kernel_are_one_line(cpembed: Caller) -> None:
    huge = ("gemm", "m=3000000", "n=1000", "k=16", "--target", "vta_1x16x16")
    called = cpembed("run", *huge, "--backend", "generic")
    called.is_one_line_error(5, "operand C has 3,024,000,000 elements", "run a part", "solve")
    assert cpembed("solve", *huge, "--top", "1").code == 0


@pytest.mark.slow
def test_a_program_that_the_back_end_cannot_express_is_said(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refusing(*arguments: Any, **named: Any) -> Any:
        raise LoweringError("the instruction does not match the program")

    monkeypatch.setattr(X86Target, "build", refusing)
    monkeypatch.setattr(X86Target, "missing", lambda self: ())
    called = cpembed("run", *GEMM, "--target", "amx_int8", "--json")
    assert called.code == 5
    assert called.json["missing"] == ["the instruction does not match the program"]
    assert "does not match the program" in called.err
    native = cpembed("run", *GEMM, "--target", "amx_int8", "--backend", "native")
    native.is_one_line_error(5, "does not match the program")


def test_wrong_numbers_are_never_a_result(cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    random_inputs = verification.random_inputs
    expected = verification.Expected

    def other_data(workload: Any, inputs: Any) -> Any:
        return expected(workload, random_inputs(workload, 99))

    monkeypatch.setattr(verification, "Expected", other_data)
    called = cpembed("run", *GEMM, *VTA, "--backend", "generic", "--json", "--seed", "3")
    called.is_one_line_error(1, "generic kernel", "seed 3", "report")


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", [(), ("--relu",)])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32", "bfloat16", None])
def test_results_are_stored_as_asked(
    cpembed: Caller, dtype: str | None, how: tuple[str, ...]
) -> None:
    """By portable code, which every machine runs; native code is compared in the integration
    tests."""
    asked = (*how, *(() if dtype is None else ("--output", dtype)))
    target = ("--target", "avx512_vnni", "--backend", "generic")
    called = cpembed("run", *GEMM, *target, "--seed", "3", "--json", *asked)
    assert (called.code, called.json["verified"], called.json["max_error"]) == (0, True, 0)
    assert called.json["stored"] == (dtype or "int32")
    assert called.json["relu"] == bool(how)
    if asked:
        words = f"{dtype or 'int32'}{', negative results as 0' if how else ''}"
        assert words in cpembed("run", *GEMM, *target, *asked).out


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float32", "bfloat16"])
def test_sums_are_requantized_as_asked(cpembed: Caller, dtype: str) -> None:
    target = ("--target", "avx512_vnni", "--backend", "generic", "--output", dtype)
    for steps in (("--bias", "--relu"), ("--scale",)):
        called = cpembed("run", *GEMM, *target, *steps, "--json")
        assert (called.code, called.json["verified"]) == (0, True)
        taken = [f"--{name}" for name in ("bias", "scale", "relu") if called.json[name]]
        assert taken == list(steps)
    report = cpembed("run", *GEMM, *target, "--bias", "--scale", "--relu").out
    assert f"{dtype}, a bias added, scaled, negative results as 0" in report


def test_a_vta_has_no_bias_of_its_own(cpembed: Caller) -> None:
    cpembed("run", *GEMM, *VTA, "--bias").is_one_line_error(2, "a bias", "requantized")


def test_a_stored_result_that_is_wrong_is_none(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction, "result_text", lambda *_: "T.uint8(3)")
    called = cpembed(
        "run", *GEMM, "--target", "avx512_vnni", "--backend", "generic", "--output", "uint8"
    )
    called.is_one_line_error(1, "generic kernel", "report")


@pytest.mark.slow
def test_data_are_fresh_unless_a_seed_is_given(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    random_inputs = verification.random_inputs

    def recording(workload: Any, seed: int) -> Any:
        seeds.append(seed)
        return random_inputs(workload, seed)

    monkeypatch.setattr(verification, "random_inputs", recording)
    call = ("run", *GEMM, *VTA, "--backend", "generic", "--json")
    printed = [cpembed(*call, *seed).json["seed"] for seed in ((), (), ("--seed", "5"))]
    assert printed == seeds
    assert seeds[0] != seeds[1]
    assert seeds[2] == 5


@pytest.mark.slow
def test_rank_chooses_the_candidate(cpembed: Caller) -> None:
    layer = ("conv2d", "n=1", "c=4", "h=6", "w=6", "k=16", "r=3", "s=3")
    target = ("--target", "avx512_vnni", "--json")
    solved = cpembed("solve", *layer, *target).json["embeddings"]
    second = cpembed("run", *layer, *target, "--rank", "2", "--backend", "generic").json
    assert second["embedding"] == solved[1]["id"] != solved[0]["id"]
    assert second["verified"] is True


def test_a_workload_that_does_not_fit_is_not_run(cpembed: Caller) -> None:
    call = ("run", "gemm", "m=4", "n=8", "k=16", *VTA, "--constraints", "strict")
    called = cpembed(*call, "--json")
    assert (called.code, called.json["status"]) == (3, "infeasible")
    assert "Why nothing fits" in cpembed(*call).out


def test_a_measurement_of_floats_says_how_far_it_is_off(cpembed: Caller) -> None:
    call = ("run", "gemm", "m=16", "n=16", "k=16", "--target", "wmma_f16", "--backend", "generic")
    document = cpembed(*call, "--json").json
    assert document["verified"] is True
    assert 0 < document["tolerance"] < 1e-3
    assert "within rounding" in cpembed(*call).out


@needs_vnni
def test_the_model_chooses_unless_a_rank_is_asked_for(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = ("conv2d", "n=1", "c=4", "h=6", "w=6", "k=16", "r=3", "s=3")
    target = ("--target", "avx512_vnni", "--json")
    solved = cpembed("solve", *layer, *target).json["embeddings"]
    compared = choice.compared

    def reversed_choice(*arguments: Any, **named: Any) -> ModelChoice:
        found = compared(*arguments, **named)
        # What a search lists is what an identifier is compared with below: variants last.
        slowest_first = found.estimates[::-1]
        listed = sorted(slowest_first, key=lambda e: bool(e.ranked.candidate.variant))
        return replace(found, estimates=tuple(listed))

    monkeypatch.setattr(choice, "compared", reversed_choice)
    document = cpembed("run", *layer, *target).json
    # One over whole windows is considered beside them.
    assert document["model"]["considered"] == len(solved) + 1 == 4
    assert document["rank"] > 1
    assert document["embedding"] == solved[document["rank"] - 1]["id"]
    assert document["model"]["constraints"] == "in_place_padded"
    assert document["verified"] is True
    for rank in (1, 2):
        asked = cpembed("run", *layer, *target, "--rank", str(rank)).json
        assert (asked["rank"], asked["embedding"]) == (rank, solved[rank - 1]["id"])
        assert asked["model"]["considered"] == 1
    text = cpembed("run", *layer, *target[:2]).out
    # The slowest was put first, as where the faster ones cannot be built: it is not called fastest.
    assert "ahead: of the 4 candidates that were estimated, the fastest, " in text
    assert ", was rejected (rank 1: " in text
