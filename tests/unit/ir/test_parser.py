"""The expression language: what it accepts, and the exact message for what it does not."""

from pathlib import Path

import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.computation import AxisKind
from cpembed.ir.expression import Access, Cast, Constant, Operation
from cpembed.ir.grammar import ParsedStatement, parse_body
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation

CONV2D = "O[n,k,p,q] += I[n,c,2*p+r,2*q+s] * W[k,c,r,s]"


def parse_statement(text: str) -> ParsedStatement:
    (statement,) = parse_body(text).statements
    return statement


GOLDEN = Path(__file__).with_name("bad_expressions.txt")


def bad_inputs():
    lines = [line for line in GOLDEN.read_text().splitlines() if line and line[0] != "#"]
    for case, message in zip(lines[::2], lines[1::2], strict=True):
        text, _, words = case.rpartition("|")
        extents = {key: int(value) for key, value in (w.split("=") for w in words.split())}
        yield pytest.param(text.rstrip(), extents, message.strip(), id=case)


@pytest.mark.parametrize("text, extents, message", list(bad_inputs()))
def test_a_wrong_input_is_answered_by_one_exact_line(text, extents, message):
    with pytest.raises(WorkloadError) as caught:
        parse_computation(text, extents)
    assert str(caught.value) == message


@pytest.mark.parametrize("extent", [2.5, True, "4", None])
def test_an_extent_is_an_integer(extent):
    with pytest.raises(WorkloadError, match=f"extent x={extent!r} is not a size; write an integer"):
        parse_computation("C[x] = A[x]", {"x": extent})


def test_deep_nesting_is_refused_instead_of_overflowing_the_stack():
    for deep in ("(" * 5000, "-" * 5000, "abs(" * 5000):
        with pytest.raises(WorkloadError, match="nested deeper than 64 levels"):
            parse_statement(f"C[x] = {deep}A[x]")
    with pytest.raises(WorkloadError, match="nested deeper than 64 levels"):
        parse_statement(f"C[x] = A[{'(' * 5000}x]")


def test_conv2d_statement_has_the_expected_structure():
    parsed = parse_statement(CONV2D)
    p, r = IndexTerm("p", 2), IndexTerm("r")
    image, weights = parsed.reads
    assert parsed.store == Access("O", tuple(IndexExpr.iterator(i) for i in "nkpq"))
    assert parsed.reduction == "add"
    assert parsed.value == Operation("mul", (image, weights))
    assert image.index[2] == IndexExpr((p, r))
    assert parsed.columns == (1, 15, 36)
    assert parse_body(CONV2D).iterators[:2] == (("n", 3), ("k", 5))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("A[x] + B[x] * 2", "(A[x] + (B[x] * 2))"),
        ("A[x] - B[x] - 1", "((A[x] - B[x]) - 1)"),
        ("(A[x] - B[x]) * 3", "((A[x] - B[x]) * 3)"),
        ("A[x] + 1 >> 2", "((A[x] + 1) >> 2)"),
        ("-A[x] * -3", "(neg(A[x]) * -3)"),
        ("max(A[x], min(B[x], 7))", "max(A[x], min(B[x], 7))"),
        ("abs(cast(A[x] + 1, int8))", "abs(cast((A[x] + 1), int8))"),
        ("A[x] / 2 * 3 - 1", "(((A[x] / 2) * 3) - 1)"),
        ("int8(A[x] * B[x] >> 4)", "int8(((A[x] * B[x]) >> 4))"),
        ("float8_e4m3fn(exp(A[x]) * rsqrt(B[x]))", "float8_e4m3fn((exp(A[x]) * rsqrt(B[x])))"),
    ],
)
def test_precedence_and_calls(text, expected):
    value = parse_statement(f"C[x] = {text}").value
    assert str(value) == expected
    assert parse_statement(f"C[x] = {expected}").value == value


def test_numbers_and_casts_become_typed_nodes():
    value = parse_statement("C[x] = cast(A[x], float32) * 2.5e-1").value
    assert isinstance(value, Operation)
    assert value.args[0] == Cast("float32", Access("A", (IndexExpr.iterator("x"),)))
    assert value.args[1] == Constant(0.25)


@pytest.mark.parametrize(
    "index, terms, constant",
    [
        ("2*(p + r) - 3", {"p": 2, "r": 2}, -3),
        ("-p + 4", {"p": -1}, 4),
        ("p*3*2 - (r - 1)", {"p": 6, "r": -1}, 1),
        ("p + p", {"p": 2}, 0),
        ("2*3", {}, 6),
    ],
)
def test_indices_are_reduced_to_affine_terms(index, terms, constant):
    parsed = parse_statement(f"C[p,r] = A[{index}]").reads[0].index[0]
    assert {t.iterator: t.coefficient for t in parsed.terms} == terms
    assert parsed.constant == constant


def test_axes_are_spatial_when_they_index_the_output_and_keep_the_given_order():
    extents = {"s": 3, "n": 1, "k": 8, "p": 4, "q": 4, "c": 2, "r": 3}
    computation = parse_computation(CONV2D, extents)
    assert list(computation.extents) == list(extents)
    reductions = [a.name for a in computation.axes if a.kind is AxisKind.REDUCTION]
    assert reductions == ["s", "c", "r"]
    by_appearance = parse_computation(CONV2D, extents, axis_order="appearance")
    assert "".join(by_appearance.extents) == "nkpqcrs"


def test_operands_default_to_the_reach_of_their_accesses():
    extents = dict(zip("nkpqcrs", (1, 8, 4, 5, 2, 3, 2), strict=True))
    computation = parse_computation(CONV2D, extents)
    assert [o.name for o in computation.inputs] == ["I", "W"]
    assert computation.operand("I").shape == (1, 2, 9, 10)
    assert computation.operand("W").shape == (8, 2, 3, 2)
    assert computation.output.shape == (1, 8, 4, 5)
    two_reads = parse_computation("C[x] = A[x] + A[x+2]", {"x": 4})
    assert two_reads.operand("A").shape == (6,)


def test_a_zero_outside_operand_may_be_left():
    computation = parse_computation(
        "C[x] += A[x+r-1] * B[r]", {"x": 4, "r": 3}, shapes={"A": (4,)}, zero_outside=("A",)
    )
    assert computation.operand("A").zero_outside
    assert not computation.operand("B").zero_outside
    with pytest.raises(WorkloadError, match="operand A is zero outside its shape; give its shape"):
        parse_computation("C[x] = A[x-1]", {"x": 4}, zero_outside=("A",))
    with pytest.raises(WorkloadError, match=r"A\[x \+ r\] reaches 0\.\.5 in dimension 0"):
        parse_computation("C[x] += A[x+r] * B[r]", {"x": 4, "r": 3}, shapes={"A": (4,)})


@pytest.mark.parametrize(
    "text, given, output",
    [
        ("C[x] += A[x] * B[x]", {"A": "uint8", "B": "int8"}, "int32"),
        ("C[x] += A[x] * B[x]", {"A": "bfloat16", "B": "bfloat16"}, "float32"),
        ("C[x] += A[x] * B[x]", {"A": "float32", "B": "float32", "C": "float64"}, "float64"),
        ("C[x] += A[x]", {}, "int32"),
        ("C[x] max= A[x]", {"A": "uint8"}, "uint8"),
        ("C[x] = max(A[x], B[x])", {"A": "uint8"}, "int32"),
        ("C[x] = uint8(A[x] * B[x])", {"B": "float32"}, "uint8"),
        ("C[x] max= int4(A[x])", {"A": "float32"}, "int4"),
        ("C[x] = A[x] / 3", {}, "float32"),
        ("C[x] = exp(A[x])", {"A": "bfloat16"}, "bfloat16"),
    ],
)
def test_output_dtype_defaults_to_the_accumulator_where_values_grow(text, given, output):
    assert parse_computation(text, {"x": 4}, dtypes=given).output.dtype == output


@pytest.mark.parametrize(
    "dtypes, message",
    [
        ({"A": "int3"}, "unknown dtype 'int3': use one of int8 "),
        (
            {"Q": "int8"},
            "dtype int8 is for operand Q, which does not occur; the operands are A B C",
        ),
    ],
)
def test_wrong_dtypes_are_named(dtypes, message):
    with pytest.raises(WorkloadError, match=message):
        parse_computation("C[x] += A[x] * B[x]", {"x": 4}, dtypes=dtypes)


def test_a_shift_of_floats_is_refused():
    for text in ("A[x] >> 1", "B[x] / 2 >> 1", "B[x] >> A[x]"):
        with pytest.raises(WorkloadError, match=r"'>>' shifts integers and .* is a float"):
            parse_computation(f"C[x] = {text} + A[x]", {"x": 4}, dtypes={"A": "float32"})


@pytest.mark.parametrize("value", ["A[x]", "A[x] * B[x]", "0.5 * B[x]", "B[x] / 2", "exp(B[x])"])
def test_a_float_is_converted_before_it_is_stored_as_an_integer(value):
    types = {"A": "float32", "B": "int8", "C": "int8"}
    types = {name: dtype for name, dtype in types.items() if f"{name}[" in f"C[x] = {value}"}
    with pytest.raises(WorkloadError, match=r"C is int8 and its value is a float: write int8\("):
        parse_computation(f"C[x] = {value}", {"x": 4}, dtypes=types)
    parse_computation(f"C[x] = int8({value})", {"x": 4}, dtypes=types)


def test_only_instructions_have_values_without_operands() -> None:
    with pytest.raises(WorkloadError, match="the value reads no operand"):
        parse_computation("D[x] = 0", {"x": 4})
    computation = parse_computation("D[x] = 3; E[x] = 4", {"x": 4}, takes_constants=True)
    assert computation.inputs == ()
    assert [operand.dtype for operand in computation.outputs] == ["int8", "int8"]
