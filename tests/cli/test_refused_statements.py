"""Workloads that can be embedded and not executed, and nests with digits of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller

COMPLEX = (
    "R[m,0] += A[m,k,0]*B[k,0] - A[m,k,1]*B[k,1]; R[m,1] += A[m,k,0]*B[k,1] + A[m,k,1]*B[k,0]",
    "m=64",
    "k=32",
)


@pytest.mark.parametrize("command", [("run",), ("explain", "--chosen"), ("build", "-o")])
def test_several_statements_are_not_executed(
    cpembed: Caller, tmp_path: Path, command: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    words = (*command, str(out)) if command[-1] == "-o" else command
    called = cpembed(*words, *COMPLEX, "--target", "complex_mac")
    called.is_one_line_error(5, "nothing executes expression, which has 2 statements")
    assert not out.exists()


TWICE = ("C[m,n,0] += A[m,k]*B[k,n]; C[m,n,1] += A[m,k]*D[k,n]", "m=4", "n=8", "k=8")


@pytest.mark.parametrize("words", [COMPLEX, TWICE])
@pytest.mark.parametrize("target", ["avx2_int8", "vta_1x16x16"])
def test_several_statements_are_not_tuned(
    cpembed: Caller, target: str, words: tuple[str, ...]
) -> None:
    called = cpembed("tune", *words, "--target", target, "--trials", "1")
    assert called.code == 3, called
    assert "computes one result at a point, the workload 2 results" in called.out


@pytest.mark.parametrize("command", [("run",), ("explain", "--chosen")])
def test_that_they_do_not_fit_comes_first(cpembed: Caller, command: tuple[str, ...]) -> None:
    called = cpembed(*command, *COMPLEX, "--target", "gemm_16x16x16")
    assert called.code == 3, called
    assert "computes one result at a point, the workload 2 results" in called.out


def test_a_loop_of_a_digit_of_a_sum_is_written(cpembed: Caller) -> None:
    words = ("O[j,i] += A[i,0] * B[j,i,y]", "j=15", "i=1", "y=17")
    called = cpembed("explain", "--chosen", *words, "--target", "avx2_f32")
    assert (called.code, called.err) == (0, ""), called
