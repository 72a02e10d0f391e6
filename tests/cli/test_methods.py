"""``--method``: what is printed, what documents say, and what is refused in one line."""

from __future__ import annotations

import pytest

from tests.cli.calling import Caller
from tests.cli.schema import NUMBER, Map, assert_matches
from tests.features import needs

TARGET = "avx2_f32"
needs_fma = needs(TARGET)
LAYER = ("conv2d", "n=1", "c=16", "h=8", "w=8", "k=16", "r=3", "s=3", "pad=1", "dtype=float32")
METHOD = {
    "name": str,
    "estimates_us": Map(NUMBER),
    "refused": Map(str),
    "product": str,
    "extents": Map(int),
    "products": int,
    "relative_multiplications": NUMBER,
    "exact": bool,
    "estimated_us": NUMBER,
}
ERROR = {"largest": NUMBER, "rms": NUMBER, "largest_output": NUMBER, "bound": NUMBER}


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.mark.slow
@needs_fma
def test_the_document_says_which_method(cpembed: Caller) -> None:
    asked = ("run", *LAYER, "--target", TARGET, "--threads", "1", "--json")
    called = cpembed(*asked, "--method", "winograd_4x4")
    assert called.code == 0
    document = called.json
    assert_matches(document["method"], {**METHOD, "error": ERROR})
    assert document["method"]["name"] == "winograd_4x4"
    assert document["method"]["extents"] == {"e": 36, "x": 4, "k": 16, "c": 16}
    assert document["method"]["relative_multiplications"] == 0.25
    assert not document["method"]["exact"]
    assert document["workload"]["name"] == "conv2d"
    assert "method" not in cpembed(*asked, "--method", "implicit").json


@needs_fma
def test_reports_name_the_method(cpembed: Caller) -> None:
    called = cpembed(
        *("explain", *LAYER, "--target", TARGET, "--threads", "1"),
        *("--chosen", "--method", "winograd_2x2"),
    )
    assert called.code == 0
    assert called.out.startswith(
        """\
conv2d       O[n, k, p, q] += (I[n, c, p + r - 1, q + s - 1] * W[k, c, r, s])
sizes        n 1  k 16  p 8  q 8  c 16  r 3  s 3
             147 k MACs   I float32  W float32  O float32
avx2_f32     C[y] += (A[] * B[y])
             y 8   A float32  B float32  C float32
method       winograd_2x2, 0.444 times the multiplications of the convolution
product      M[e, x, k] += (V[e, x, c] * U[e, c, k])
             e 16 x 16 k 16 c 16
"""
    )


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("run", *LAYER[:-1], "--target", "vta_1x16x16", "--method", "explicit"), 5, "no method"),
        (
            ("run", *LAYER, "stride=2", "--target", TARGET, "--method", "winograd_2x2"),
            2,
            "stride 2 and dilation 1",
        ),
        (
            ("run", *LAYER, "--target", TARGET, "--method", "winograd_4x4", "--relu"),
            2,
            "stores the sums as they are",
        ),
        (
            ("run", "gemm", "m=8", "n=8", "k=8", "--target", TARGET, "--method", "explicit"),
            2,
            "gemm is no convolution",
        ),
    ],
)
@needs_fma
def test_what_is_refused(cpembed: Caller, words: tuple[str, ...], code: int, said: str) -> None:
    cpembed(*words).is_one_line_error(code, said)


def test_a_method_changes_what_runs(cpembed: Caller) -> None:
    called = cpembed("explain", *LAYER, "--target", TARGET, "--method", "explicit")
    assert called.code == 2
    assert "add --chosen" in called.err
