"""Words that nobody had thought of; thousands of random ones are in ``tests/fuzz``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from cpembed.embedding import domains
from cpembed.time_limit import within

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller

LIMIT = ("--timeout", "1")


@pytest.mark.parametrize(
    "words",
    [
        ("dot", f"k={10**30}"),
        ("gemm", f"m={2**31}", f"n={2**31}", "k=1"),
        ("C[i] += A[1000000000000000*i,k]*B[k]", "i=4096", "k=1"),
    ],
)
def test_sizes_that_nothing_can_count_are_refused(cpembed: Caller, words: tuple[str, ...]) -> None:
    cpembed("solve", *words, "--target", "gemv", *LIMIT).is_one_line_error(2, "2^53", "use smaller")


def test_an_operand_that_two_roles_share_has_a_program(cpembed: Caller) -> None:
    """As written and with the summands exchanged: the element of A is multiplied with itself."""
    for text in ("Y[j] += (I[2*t]+A[t])*A[t]", "Y[j] += (A[t]+I[2*t])*A[t]"):
        solved = cpembed(
            "solve", text, "t=64", "j=16", "--target", "pre_add_dot",
            "--constraints", "relaxed", "--json",
        )  # fmt: skip
        assert solved.code == 0, solved.err
        assert solved.json["embeddings"][0]["proven"]


def test_an_output_with_gaps_is_the_workloads_fault(cpembed: Caller) -> None:
    called = cpembed(
        "solve", "O[3*i] += A[s,y]*B[i+s,y]", "i=32", "s=2", "y=31",
        "--target", "avx512_vnni_dot", "--constraints", "fused",
    )  # fmt: skip
    called.is_one_line_error(2, "O[3*i] leaves elements of O unwritten", "without gaps")


def test_a_sum_without_end_is_refused(cpembed: Caller) -> None:
    text = "C[i] += " + "+".join(["A[i]"] * 2000)
    cpembed("solve", text, "i=4", "--target", "gemv").is_one_line_error(2, "more than 128 operat")


def test_a_workload_without_axes_fits_nothing(cpembed: Caller) -> None:
    assert cpembed("solve", "C[] += B[]*B[]", "--target", "gemm_16x16x16").code == 3


@pytest.mark.parametrize(
    "words",
    [
        # A million strides for each count of a digit.
        ("C[i] += A[3*x+k,j]*B[3*x+k+i,j]", "i=8", "x=1000000", "k=12", "j=8"),
        # Products of 64 factors: 2^63 orders.
        ("C[i] += " + "*".join(f"A{n}[i]" for n in range(64)), "i=4"),
    ],
)
@pytest.mark.parametrize("command", ["solve", "explain"])
def test_a_limit_holds_while_the_model_is_built(
    cpembed: Caller, command: str, words: tuple[str, ...]
) -> None:
    started = time.process_time()
    called = cpembed(command, *words, "--target", "amx_int8", *LIMIT)
    assert called.code in (3, 4), called.err
    assert "Traceback" not in called.err
    assert time.process_time() - started < 3


def test_a_set_that_leaves_any_stride_is_refused_before_memory_is_full(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(domains, "MOST_DIGITS", 1000)
    path = tmp_path / "free.toml"
    path.write_text("[hyper_rectangle]\n[fixed_origin]\n[dataflow]\n[all_different]\n")
    sizes = ("gemm", "m=300", "n=300", "k=300", "--target", "gemm_16x16x16")
    called = cpembed("solve", *sizes, "--constraints", str(path))
    called.is_one_line_error(2, "free leaves more than 1,000 digits", "allow fewer strides")


def test_a_reduction_axis_of_another_statement_is_refused(cpembed: Caller) -> None:
    called = cpembed(
        "solve", "C[i] = A[i]; D[i] += B[i,j]", "i=4", "j=4", "--target", "dot"
    )  # fmt: skip
    called.is_one_line_error(2, "'j': is not an index of C", "use +=")


def test_a_product_of_many_factors_is_not_tried_in_every_order(cpembed: Caller) -> None:
    """Without a limit of its own, it would be tried in 2^63."""
    text = "C[i] += " + "*".join(f"A{n}[i]" for n in range(64))
    called = within(30, lambda: cpembed("solve", text, "i=4", "--target", "amx_int8"))
    assert called.code == 3
