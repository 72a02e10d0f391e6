"""Workloads by name: operators, expressions, layers, and what is wrong with the rest."""

import pytest

from cpembed.errors import WorkloadError
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import gemm
from cpembed.workloads.naming import parse_workload

VNNI = ("uint8", "int8", "int32")


def dtypes(computation):
    return tuple(operand.dtype for operand in computation.operands)


def test_an_operator_with_sizes():
    words = "conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,0 stride=2 layout=NHWC dtype=uint8,int8"
    sizes = {"n": 1, "c": 64, "h": 56, "w": 56, "k": 64, "r": 3, "s": 3}
    expected = conv2d(**sizes, pad=(1, 0), stride=2, layout="NHWC", dtype=("uint8", "int8"))
    assert parse_workload(words.split()) == expected
    assert parse_workload([words]) == expected


def test_an_expression_with_extents_quoted_or_not():
    text = "C[x,y] += A[x,z] * B[z,y]"
    quoted = parse_workload([text, "z=8", "x=4", "y=2", "dtype=int16"])
    assert list(quoted.extents.items()) == [("z", 8), ("x", 4), ("y", 2)]
    assert dtypes(quoted) == ("int16", "int16", "int32")
    assert parse_workload([*text.split(), "z=8", "x=4", "y=2", "dtype=int16"]) == quoted
    assert str(parse_workload(["C[x] max=A[x,y] x=2 y=3"])) == "C[x] max= A[x, y]"
    assert str(parse_workload(["C[x]", "min=3", "+", "A[x,y]", "x=2", "y=3"])) == (
        "C[x] min= (3 + A[x, y])"
    )


def test_default_dtypes_apply_only_where_none_are_named_and_their_number_fits():
    assert dtypes(parse_workload(["gemm m=1 n=1 k=1"], VNNI)) == VNNI
    assert dtypes(parse_workload(["gemm m=1 n=1 k=1 dtype=int16"], VNNI))[0] == "int16"
    assert dtypes(parse_workload(["C[x] += A[x] * B[x] x=3"], VNNI)) == VNNI
    assert dtypes(parse_workload(["C[x] += A[x] x=3"], VNNI)) == ("int8", "int32")
    assert dtypes(parse_workload(["C[x] max= A[x] x=3 dtype=uint8"])) == ("uint8", "uint8")
    assert dtypes(parse_workload(["C[x] max= A[x] x=3 dtype=uint8,int32"])) == ("uint8", "int32")
    assert dtypes(parse_workload(["deepbench:4"], VNNI)) == VNNI
    assert dtypes(parse_workload(["deepbench:4", "dtype=float32"], VNNI)) == ("float32",) * 3
    assert parse_workload(["gemm m=1 n=1 k=1"], ("int8", "int32")) == gemm(m=1, n=1, k=1)
    # An operator with one input or three has other operands than the instruction.
    assert dtypes(parse_workload(["row_sum m=1 k=1"], VNNI)) == ("int8", "int32")
    assert dtypes(parse_workload(["row_sum m=1 k=1"], ("uint8", "int64"))) == ("uint8", "int64")
    assert dtypes(parse_workload(["mttkrp i=1 j=1 k=1 l=1"], VNNI)) == ("int8",) * 3 + ("int32",)


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "no workload named: name an operator"),
        ("m=1", "no workload named"),
        ("gem m=1", "unknown workload 'gem': name an operator (gemm "),
        ("gemm 4 m=1", "unknown workload 'gemm 4'"),
        ("gemm m=1 n=1 k=1 k=2", "k is set twice, to 1 and 2: keep one"),
        ("gemm m=1 n", "word 'n' is not a setting: write NAME=VALUE"),
        ("gemm m=1 n=1 k=", "word 'k=' is not a setting"),
        ("gemm m=1 n=1", "gemm: missing k; gemm takes m n k [trans_a trans_b dtype]"),
        ("gemm m=1 n=1 k=1 pad=1", "unknown parameter 'pad'"),
        ("C[x] = A[x] x=2.5", "x=2.5 is not an integer extent"),
        ("C[x] = A[x] x=0", "extent x=0 is not a size"),
        ("C[x] = A[x]", "column 3, 'x': has no extent; add x=SIZE"),
        ("C[x] = A[x] x=2 y=3", "extent y=3 is for an axis that does not occur; the axes are x"),
        ("C[x] = A[x] x=2 dtype=int8,int8,int8", "give one, 1 (the inputs) or 2"),
        ("C[x] = A[x*x] x=2", "column 11, '*': x times x is not affine"),
        ("deepbench:108", "deepbench:108: no such layer; deepbench has 0 to 107"),
        ("deepbench:-1", "'-1' is not the index of a layer; write deepbench:0"),
        ("deepbench:", "'' is not the index of a layer"),
        ("resnet:1", "unknown suite 'resnet': use deepbench amos"),
        ("deepbench:1 pad=3", "unknown setting 'pad'; a layer takes dtype layout"),
        ("gemm:1 layout=NHWC", "gemm:1: gemm has no layout NHWC; leave layout out"),
        ("deepbench:1 layout=HWNC", "layout=HWNC is none of NCHW NHWC"),
    ],
)
def test_wrong_words_are_answered_in_one_line(words, message):
    with pytest.raises(WorkloadError) as caught:
        parse_workload(words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
