"""Matches: every one computes its statement, and none that the search on full sizes has is lost."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cpembed.accelerator.matching import Match, match_statement, matches
from cpembed.accelerator.specification import Statement
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.computation import Computation
from cpembed.ir.expression import Access, Cast, Constant, Expression, Operation
from cpembed.ir.parser import parse_computation

STATEMENTS = {
    "gemm": ("O[m,n] += A[m,k] * B[k,n]", {"m": 20, "n": 33, "k": 17}, "int8 int8 int32", False),
    "convolution": (
        "O[p,q,n] += A[p+r,q+s,c] * B[r,s,c,n]",
        {"p": 5, "q": 7, "n": 18, "r": 3, "s": 3, "c": 20},
        "int8 int8 int32",
        False,
    ),
    "bias": ("O[m,n] = A[n]", {"m": 20, "n": 33}, "int32 int32", False),
    "requantize": ("O[m,n] = int8(A[m,n] * 0.125)", {"m": 20, "n": 33}, "int32 int8", False),
    "activation": (
        "O[m,n] = max(int8(float32(A[m,n]) * 0.125), 0)",
        {"m": 20, "n": 33},
        "int32 int8",
        False,
    ),
    "channels": (
        "O[m,n] = int8(max(A[m,n], 0) * B[n])",
        {"m": 5, "n": 6},
        "int32 float32 int8",
        False,
    ),
    "addition": ("O[m,n] += int8(A[m,n] * 0.5)", {"m": 20, "n": 33}, "int8 int32", True),
    "pooling": (
        "O[p,q,c] max= A[2*p+r,2*q+s,c]",
        {"p": 3, "q": 3, "c": 18, "r": 3, "s": 3},
        "int8 int8",
        False,
    ),
    "exponential": (
        "O[m,n] = exp(A[m,n] - B[m])",
        {"m": 5, "n": 70},
        "float32 float32 float32",
        False,
    ),
}


def statement(name: str) -> Statement:
    text, extents, dtypes, accumulates = STATEMENTS[name]
    operands = ("A", "B", "O") if "B[" in text else ("A", "O")
    types: dict[str, str] = dict(zip(operands, dtypes.split(), strict=True))
    return Statement(parse_computation(text, extents, dtypes=types), accumulates)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "min": min,
    "exp": math.exp,
}


def leaf_values(
    computation: Computation,
    value: Expression,
    point: dict[str, int],
    arrays: dict[str, np.ndarray],
) -> float:
    """The value of an expression at one point, in exact arithmetic of Python."""
    match value:
        case Access():
            index = tuple(i.evaluate(point) for i in value.index)
            return arrays[value.operand][index].item()
        case Constant():
            return value.value
        case Cast():
            inner = leaf_values(computation, value.arg, point, arrays)
            return max(-128, min(127, round(inner))) if value.dtype == "int8" else inner
        case Operation(op, args):
            parts = [leaf_values(computation, a, point, arrays) for a in args]
            return float(FUNCTIONS[op](*parts))


def check(match: Match, seed: int) -> None:
    """Execute the match at random points: the instruction's value there is the statement's."""
    random = np.random.default_rng(seed)
    computation, instruction = match.statement.computation, match.instruction
    arrays = {
        o.name: random.integers(-100, 100, o.shape)
        if o.dtype.startswith("int")
        else random.uniform(0, 1, o.shape)
        for o in computation.inputs
    }
    extents = computation.extents
    tiles = {axis: match.tile(axis) for axis in extents}
    assert match.executions == np.prod([-(-extents[a] // tiles[a]) for a in extents])
    for axis, size in match.sizes.items():
        declared = next(a for a in instruction.axes if a.name == axis)
        assert size in declared.allowed or not match.axes[axis]
    cells_read: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    for _ in range(200):
        point = {a: int(random.integers(min(tiles[a], e))) for a, e in extents.items()}
        local = positions(match, point)
        for name, access in match.accesses.items():
            # One element of the operand is one element of the tensor in an execution.
            cell = tuple(i.evaluate(local) for i in instruction.computation.access(name).index)
            element = tuple(i.evaluate(point) for i in access.index)
            assert cells_read.setdefault((name, cell), element) == element, match
    for _ in range(20):
        # A point of the statement is a point of an execution: digits of the instruction's axes.
        point = {axis: int(random.integers(extent)) for axis, extent in extents.items()}
        local = positions(match, {axis: value % tiles[axis] for axis, value in point.items()})
        # Each operand's element is the one that the statement reads at the same point.
        elements = {
            name: arrays[access.operand][tuple(i.evaluate(point) for i in access.index)].item()
            for name, access in match.accesses.items()
            if access.operand in arrays
        }
        elements.update(match.values)
        cells = {name: np.asarray(value) for name, value in elements.items()}
        pattern = instruction.computation
        value = leaf_values(pattern, scalar(pattern.statement.value), local, cells)
        expected = leaf_values(computation, computation.statement.value, point, arrays)
        assert value == pytest.approx(expected, abs=1e-6), match


def positions(match: Match, inner: dict[str, int]) -> dict[str, int]:
    """The value of each of the instruction's axes at a point of an execution."""
    local: dict[str, int] = {}
    for axis, digits in match.axes.items():
        local[axis], weight = 0, 1
        for digit in digits:
            local[axis] += weight * inner[digit.axis]
            weight *= digit.count
    return local


def scalar(value: Expression) -> Expression:
    """The expression with operands without dimensions."""
    match value:
        case Access():
            return Access(value.operand, ())
        case Cast():
            return Cast(value.dtype, scalar(value.arg), value.saturate)
        case Operation(op, args):
            return Operation(op, tuple(map(scalar, args)))
        case _:
            return value


@pytest.mark.parametrize("machine", ["gemmini", "tpu_like"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_every_match_computes_the_statement(name: str, machine: str) -> None:
    for number, match in enumerate(matches(statement(name), load_instruction_set(machine))):
        check(match, number)


EXPECTED = {
    "gemm": {"compute": 2 * 2 * 3},
    "convolution": {"compute": 3 * 3 * 2 * 2 * 3},
    "bias": {"mvin_bias": 2 * 3},
    "requantize": {"mvout": 2 * 3},
    "activation": {"mvout_relu": 2 * 3},
    "addition": {"mvin_add": 2 * 3},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_executions_on_gemmini_are_those_counted_by_hand(name: str) -> None:
    by_name = {
        m.instruction.name: m
        for m in reversed(matches(statement(name), load_instruction_set("gemmini")))
    }
    for instruction, executions in EXPECTED[name].items():
        assert by_name[instruction].executions <= executions


def test_an_execution_has_one_number_in_a_register() -> None:
    # Scales by channel are in a register of Gemmini, so that each execution is of one channel.
    matching = match_statement(statement("channels"), load_instruction_set("gemmini"))
    assert matching.matches
    for match in matching.matches:
        (scale,) = (a for name, a in match.accesses.items() if name == "s")
        assert match.tile(scale.index[0].iterators[0]) == 1


def test_a_statement_without_a_match_has_a_reason() -> None:
    found = match_statement(statement("exponential"), load_instruction_set("gemmini"))
    assert not found.matches
    assert found.reason.startswith("rejected: no instruction computes O[m, n] = exp(")
    # Gemmini has no exponential, and a setting of a register is nothing like one.
    assert "none has an operation of it: describe an instruction" in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize(
    "text, dtypes, expected",
    [
        ("O[m,n] = A[m,n] * 0.5", {"A": "int8", "O": "float32"}, "but it has int8() besides"),
        ("O[m,n] = int8(A[m,n] / 3.0)", {"A": "float32", "O": "int8"}, "but it lacks div"),
        ("O[m,n] = A[m,n]", {"A": "int16", "O": "int16"}, "A is int16"),
        ("O[m,n] += A[m,k] * B[k,n]", {"A": "int16", "B": "int8", "O": "int32"}, "A is int16"),
    ],
)
def test_reasons_say_which_part_differs(text: str, dtypes: dict[str, str], expected: str) -> None:
    computation = parse_computation(
        text, {"m": 9, "n": 20, **({"k": 17} if "k" in text else {})}, dtypes=dtypes
    )
    reason = match_statement(Statement(computation), load_instruction_set("gemmini")).reason
    assert expected in reason, reason
    assert "config" not in reason


def test_factors_take_either_role() -> None:
    roles = {m.operands["A"] for m in matches(statement("gemm"), load_instruction_set("gemmini"))}
    assert roles == {"A", "B"}


def test_names_and_order_of_axes_do_not_matter() -> None:
    machine = load_instruction_set("gemmini")
    sizes = {"m": 20, "n": 33, "k": 17}
    counts = set()
    for order in itertools.permutations(sizes):
        computation = parse_computation(
            "O[m,n] += A[m,k] * B[k,n]",
            {axis: sizes[axis] for axis in order},
            dtypes={"A": "int8", "B": "int8", "O": "int32"},
        )
        counts.add(min(m.executions for m in matches(Statement(computation), machine)))
    assert counts == {12}
