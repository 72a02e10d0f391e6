"""Registers with another element of a constant for each execution, in right and wrong programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cpembed.accelerator.assembly import parse, text
from cpembed.accelerator.machine_code import c_text
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.program import Address, Loop, Node, Program
from cpembed.accelerator.proof import prove
from cpembed.accelerator.proof.dataflow import decide
from cpembed.accelerator.proof.result import UndecidedError
from cpembed.accelerator.proof.tensors import Tensors
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.index import IndexExpr
from cpembed.ir.parser import parse_computation

CHANNELS = 6


@cache
def scaled() -> Program:
    """Return Gemmini's program of a product with scales by channel."""
    dtypes = {"Y": "int8", "S": "int32", "K": "float32"}
    computation = parse_computation(
        "Y[p,c] = int8(S[p,c] * K[c])", {"p": 20, "c": CHANNELS}, dtypes=dtypes
    )
    scales = np.linspace(0.25, 0.5, CHANNELS, dtype=np.float32)
    specification = Specification(
        "scaled", (Statement(computation),), ("S",), ("Y",), {"K": scales}
    )
    plans = OperatorSearch(specification, load_instruction_set("gemmini")).plans()
    assert not isinstance(plans, str)
    (plan,) = plans
    return plan.program()


def changed(program: Program, change: Callable[[Address], Address]) -> Program:
    """Return a program with other immediates where they are of a table."""

    def node(old: Node) -> Node:
        if isinstance(old, Loop):
            return replace(old, body=tuple(map(node, old.body)))
        operands = {n: change(a) if a.table else a for n, a in old.operands.items()}
        return replace(old, operands=operands)

    return replace(program, body=tuple(map(node, program.body)))


def unset(program: Program) -> Program:
    """Return a program that sets the register once, before its loops."""
    settings: list[Node] = []

    def nodes(body: tuple[Node, ...]) -> tuple[Node, ...]:
        rest: list[Node] = []
        for old in body:
            if isinstance(old, Loop):
                rest.append(replace(old, body=nodes(old.body)))
            elif any(a.table for a in old.operands.values()):
                first = {n: replace(a, base=a.base.times(0)) for n, a in old.operands.items()}
                settings.append(replace(old, operands=first))
            else:
                rest.append(old)
        return tuple(rest)

    body = nodes(program.body)
    return replace(program, body=(*settings, *body))


def test_the_program_is_proven_for_all_executions_at_once() -> None:
    assert prove(scaled()).holds
    assert decided(scaled()) == []


def reversed_place(address: Address) -> IndexExpr:
    return address.base.times(-1) + (CHANNELS + -1)


def decided(program: Program) -> list[str]:
    """Decide a program for all executions at once."""
    assert program.specification is not None
    return decide(Tensors(program, program.specification))


WRONG: dict[str, Callable[[Program], Program]] = {
    "another number": lambda p: changed(p, lambda a: replace(a, table=(*a.table[:-1], 9.0))),
    "another place": lambda p: changed(p, lambda a: replace(a, base=reversed_place(a))),
    "one place": lambda p: changed(p, lambda a: replace(a, base=a.base.times(0))),
    "set once": unset,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_registers_are_refused(name: str) -> None:
    program = WRONG[name](scaled())
    proof = prove(program)
    assert not proof.holds
    assert "claimed to hold K[" in str(proof.refusal)
    with pytest.raises(UndecidedError):
        decided(program)


def test_texts_have_the_table() -> None:
    program = scaled()
    again = parse(text(program), program.machine)
    tables = [
        [a.table for _, i in p.issues() for a in i.operands.values() if a.table]
        for p in (program, again)
    ]
    assert tables[0] == tables[1] != []
    code = c_text(program)
    assert "static const float part_numbers0[] = {0.25, " in code
    assert "scale_store = part_numbers0[" in code
