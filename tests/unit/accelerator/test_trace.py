"""Executions of programs against loops written in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from cpembed.accelerator import trace as trace_module
from cpembed.accelerator.program import Address, Issue, Loop, Node, Program
from cpembed.accelerator.trace import unroll
from cpembed.errors import ProgramError
from cpembed.ir.index import IndexExpr, IndexTerm
from tests.unit.accelerator.machines import systolic

MACHINE = systolic()


def affine(draw: random.Random, names: list[str]) -> IndexExpr:
    terms = [
        IndexTerm(
            name,
            draw.randint(-3, 3),
            divisor=draw.choice([1, 1, 2]),
            modulus=draw.choice([None, None, 3]),
        )
        for name in names
        if draw.random() < 0.6
    ]
    return IndexExpr.sum(terms, draw.randint(-4, 9))


def random_body(draw: random.Random, names: list[str], depth: int) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for _ in range(draw.randint(1, 3)):
        if depth and draw.random() < 0.6:
            name = f"l{len(names)}"
            body = random_body(draw, [*names, name], depth - 1)
            nodes.append(Loop(name, draw.randint(1, 4), body))
            continue
        e = [affine(draw, names) for _ in range(6)]
        guards = tuple(affine(draw, names) for _ in range(draw.choice([0, 0, 1, 2])))
        operands = {
            "D": Address(e[0], lane=e[1]),
            "S": Address(e[2], tensor="A"),
        }
        nodes.append(Issue("mvin", operands, {"r": (e[3], e[4]), "e": (e[5],)}, guards))
    return tuple(nodes)


def executed(nodes: tuple[Node, ...], values: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of each execution, by the meaning of loops, guards and sizes."""
    for node in nodes:
        if isinstance(node, Loop):
            for value in range(node.extent):
                yield from executed(node.body, {**values, node.name: value})
        elif all(guard.evaluate(values) >= 0 for guard in node.guards):
            d, s = node.operands["D"], node.operands["S"]
            rows = min(size.evaluate(values) for size in node.sizes["r"])
            numbers = (d.base, d.lane, s.base, *node.sizes["e"])
            base, lane, element, columns = (n.evaluate(values) for n in numbers)
            yield base, lane, element, rows, columns


@pytest.mark.parametrize("seed", range(60))
def test_records_are_those_of_the_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(trace_module, "PIECE_EXECUTIONS", draw.choice([1, 2, 3, 7, 40, 10**5]))
    body = random_body(draw, [], 3)
    tensors = {"A": tensor()}
    program = Program("random", MACHINE, tensors, body)
    trace = unroll(program)
    fields = trace.fields["mvin"]
    columns = [
        *(fields.positions[key] for key in (("D", "base"), ("D", "lane"), ("S", "base"))),
        fields.sizes["r"],
        fields.sizes["e"],
    ]
    pieces = list(trace)
    records = np.concatenate([piece.records for piece in pieces])[:, columns]
    assert records.tolist() == [list(numbers) for numbers in executed(body, {})]
    assert max(len(p.issues) for p in pieces) <= max(trace_module.PIECE_EXECUTIONS, 1)


def tensor() -> trace_module.Any:
    from cpembed.accelerator.program import MainTensor

    return MainTensor.dense("A", (64,), "int8", "input")


def test_a_program_that_is_too_long_is_refused_before_it_is_unrolled() -> None:
    issue = Issue("set_stride", {"D": Address(), "V": Address(IndexExpr((), 4))})
    body: tuple[Node, ...] = (issue,)
    for number in range(5):
        body = (Loop(f"l{number}", 10**6, body),)
    with pytest.raises(ProgramError, match="more than 1,000,000,000 executions"):
        unroll(Program("long", MACHINE, {}, body))


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"instruction": "fly"}, "systolic has no instruction 'fly'"),
        ({"guards": (IndexExpr.iterator("i"),)}, "uses i, and no loop around it"),
        ({"waits": ("c",)}, "cannot use channel 'c'"),
    ],
)
def test_what_the_machine_lacks_is_named(change: dict[str, object], problem: str) -> None:
    issue = replace(Issue("set_stride", {}), **change)
    with pytest.raises(ProgramError, match=problem):
        unroll(Program("wrong", MACHINE, {}, (issue,)))
