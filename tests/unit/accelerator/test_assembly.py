"""Assembly of accelerators: written and read back, and what is wrong with a text."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpembed.accelerator.assembly import parse, text
from cpembed.accelerator.index_text import IndexReader
from cpembed.accelerator.program import (
    Content,
    Issue,
    Loop,
    MainTensor,
    Meaning,
    Node,
    Program,
)
from cpembed.errors import ProgramError
from cpembed.ir.index import IndexExpr, IndexTerm
from tests.unit.accelerator.machines import systolic
from tests.unit.accelerator.random_programs import random_case
from tests.unit.accelerator.test_channel_orders import MACHINE as WITH_CHANNELS
from tests.unit.accelerator.test_channel_orders import SOURCE
from tests.unit.accelerator.test_trace import affine, random_body

MACHINE = systolic()

TERMS = st.builds(
    IndexTerm,
    st.sampled_from(["i", "j", "k2"]),
    st.integers(-20, 20),
    divisor=st.sampled_from([1, 1, 4]),
    modulus=st.sampled_from([None, None, 3, 16]),
)
SUMS = st.builds(IndexExpr.sum, st.lists(TERMS, max_size=4), st.integers(-100, 100))
DIGITS = st.builds(
    lambda inner, c, d, m: IndexTerm.digit(inner, coefficient=c, divisor=d, modulus=m),
    SUMS.filter(lambda e: len(e.terms) > 1),
    st.integers(-5, 5),
    st.just(4),
    st.sampled_from([None, 7]),
)
EXPRESSIONS = st.builds(
    lambda e, digits: IndexExpr.sum([*e.terms, *digits], e.constant),
    SUMS,
    st.lists(DIGITS, max_size=2),
)


@given(EXPRESSIONS)
@settings(max_examples=300, deadline=None)
def test_index_expressions_are_read_back(expression: IndexExpr) -> None:
    reader = IndexReader(f"{expression}, rest")
    assert reader.expression() == expression
    assert reader.line[reader.position] == ","


@given(EXPRESSIONS, st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_index_expressions_mean_what_python_makes_of_them(
    expression: IndexExpr, i: int, j: int, k: int
) -> None:
    values = {"i": i, "j": j, "k2": k}
    assert eval(str(expression), {}, values) == expression.evaluate(values)


def with_claims(draw: random.Random, nodes: tuple[Node, ...], loops: list[str]) -> tuple[Node, ...]:
    """Add claims and notes to the instructions of a program."""
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop):
            body = with_claims(draw, node.body, [*loops, node.name])
            result.append(replace(node, body=body))
            continue
        names = [*loops, "r", "e"]
        contents = {"D": Content("A", (affine(draw, names), affine(draw, names)))}
        meaning = Meaning(draw.randrange(3), {"x": affine(draw, names), "y": affine(draw, names)})
        note = draw.choice(["", "tile of A", 'a "quoted" \\ path', "two\nlines", "# more", "é"])
        result.append(
            replace(
                node,
                contents=contents if draw.random() < 0.5 else {},
                meaning=meaning if draw.random() < 0.5 else None,
                note=note,
            )
        )
    return tuple(result)


def random_tensor(draw: random.Random, name: str) -> MainTensor:
    rank = draw.randint(0, 4)
    blocks = {d: draw.choice([4, 16]) for d in range(rank) if draw.random() < 0.3}
    order = [*range(rank), *blocks]
    draw.shuffle(order)
    return MainTensor(
        name,
        tuple(draw.randint(1, 9) for _ in range(rank)),
        draw.choice(["int8", "float32", "bfloat16", "int4"]),
        tuple(order),
        tuple(draw.choice([0, 0, 3]) for _ in range(rank)),
        tuple(draw.choice([0, 0, 2]) for _ in range(rank)),
        blocks,
        draw.choice([0, 0, 3, -2, 0.5, float("-inf")]),
        draw.choice(["input", "constant", "output", "temporary"]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_programs_are_read_back(seed: int) -> None:
    draw = random.Random(seed)
    body = with_claims(draw, random_body(draw, [], 3), [])
    tensors = {name: random_tensor(draw, name) for name in ("A", "B.1", "C_2")}
    program = Program("random-1", MACHINE, tensors, body)
    assert parse(text(program), MACHINE) == program


@pytest.mark.parametrize("seed", range(40))
def test_programs_of_random_machines_are_read_back(seed: int) -> None:
    program = random_case(seed).program
    assert parse(text(program), program.machine) == program


def test_channels_are_read_back() -> None:
    program = parse(SOURCE, WITH_CHANNELS)
    assert any(issue.waits and len(issue.signals) == 2 for _, issue in program.issues())
    assert parse(text(program), WITH_CHANNELS) == program


TENSOR = ".tensor A int8 [64] input\n"


@pytest.mark.parametrize(
    "source, problem",
    [
        (".tensor A int9 [64] input", "line 1, column 11: unknown element type int9"),
        (".tensor A int8 [0] input", "line 1, column 11: a size is an integer of at least 1"),
        (".tensor A int8 [99999999, 99999999] input", "has more than 8,589,934,592 elements"),
        (".tensor A int8 [9999999999999999999] input", "more than 18 digits"),
        (".tensor A int8 [2, 2] order=[0, 0]", "names other dimensions than"),
        (".tensor A int8 [2, 2] blocks={2: 4}", "has 2 dimensions: block one of them"),
        (".tensor A int8 [2] before=[1, 2]", "has 1 dimensions: give as many margins"),
        (".tensor A int8 [2] inputs", "expected '=' after inputs"),
        (TENSOR + ".tensor A int8 [64]", "line 2, column 9: tensor A is declared twice"),
        (".machine gemmini", "the program is for gemmini, and the target is systolic"),
        (".frob", "unknown directive .frob"),
        ("fly D=x", "line 1, column 1: systolic has no instruction fly"),
        ("set_stride D=scale", "line 1, column 14: the operand lies in stride, not in scale"),
        ("set_stride V=4", "expected '#' before the value of an immediate"),
        ("set_stride V=#4 V=#5", "line 1, column 17: V is given twice"),
        ("zero D=accumulator[0] S=#0 r=16 q=3", "zero has no argument q: use D S r e"),
        ("mvin D=scratchpad[0] S=B[0]", "line 1, column 24: no tensor B: declare it"),
        (TENSOR + "mvin D=scratchpad[0, S=A[0]", "line 2, column 23: expected"),
        (TENSOR + "mvin D=scratchpad[i] S=A[0]", "i is no loop around this instruction"),
        (TENSOR + "mvin D=scratchpad[0; r=4] S=A[0]", "r is no stride that is an argument"),
        ("loop i 4 {", "loop i of line 1 is not closed"),
        ("}", "line 1, column 2: no loop is open"),
        ("loop i 4 {\nloop i 4 {\n}\n}", "line 2, column 6: loop i is inside of another one"),
        ("loop i 0 {\n}", "the number of iterations is an integer of at least 1"),
        ("loop i 4 { zero", "line 1, column 12: unexpected text"),
        ("| D holds A[0]", "a claim stands below the instruction"),
        ("zero r=16*" + "(" * 99 + "1", "nested deeper than 64 levels"),
        ("zero r=i*i", "loops can be multiplied by numbers only"),
        ("zero r=5 % 0", "% takes a number of at least 1"),
    ],
)
def test_what_is_wrong_is_located(source: str, problem: str) -> None:
    with pytest.raises(ProgramError) as error:
        parse(source, MACHINE)
    assert problem in str(error.value)


def test_loops_inside_of_each_other_are_limited() -> None:
    source = "".join(f"loop l{number} 2 {{\n" for number in range(100))
    with pytest.raises(ProgramError, match="more than 32 loops inside of each other"):
        parse(source, MACHINE)


@given(
    st.text(
        alphabet=st.sampled_from(list(".tensorloop iAD=[]{}#|+*/%(),;:0123456789\n\"'\\ mvin_"))
    )
)
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_or_refused(source: str) -> None:
    try:
        parse(source, MACHINE)
    except ProgramError:
        pass
    else:
        issues = list(parse(source, MACHINE).issues())
        assert all(isinstance(issue, Issue) for _, issue in issues)
