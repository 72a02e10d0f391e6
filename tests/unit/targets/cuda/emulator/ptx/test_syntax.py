"""Grammar of inline PTX."""

from __future__ import annotations

import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.ptx.syntax import (
    Address,
    Declaration,
    Immediate,
    Instruction,
    Label,
    Name,
    Negation,
    Pair,
    Placeholder,
    Scope,
    Special,
    Statement,
    Vector,
    parse,
)

STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "": (),
    "; ;": (),
    "// nothing\n": (),
    "cp.async.wait_all;": (Instruction("cp.async.wait_all", ()),),
    "cp.async.wait_all": (Instruction("cp.async.wait_all", ()),),
    "{ .reg .pred p, q; }": (
        Scope(opens=True),
        Declaration("pred", ("p", "q")),
        Scope(opens=False),
    ),
    ".reg .b32 r<3>, s;": (Declaration("b32", ("r0", "r1", "r2", "s")),),
    "@!p bra.uni DONE; DONE:": (
        Instruction("bra.uni", (Name("DONE"),), Negation(Name("p"))),
        Label("DONE"),
    ),
    "mov.u32 %0, %%tid.x;": (Instruction("mov.u32", (Placeholder(0), Special("tid.x"))),),
    "mov.u32 _, %laneid;": (Instruction("mov.u32", (Name("_"), Special("laneid"))),),
    "add.f32 a, 0f3F800000, 1.5;": (
        Instruction(
            "add.f32",
            (
                Name("a"),
                Immediate("executor::bits<float>(0x3F800000u)", floating=True),
                Immediate("1.5", floating=True),
            ),
        ),
    ),
    "ld.shared.v2.u32 {%0, %1}, [%2 + 16];": (
        Instruction(
            "ld.shared.v2.u32",
            (
                Vector((Placeholder(0), Placeholder(1))),
                Address(Placeholder(2), Immediate("16")),
            ),
        ),
    ),
    "st.u8 [r-0x10], 0xFF;": (
        Instruction("st.u8", (Address(Name("r"), Immediate("-0x10")), Immediate("0xFF"))),
    ),
    "setp.eq.s32 p|q, %0, -1;": (
        Instruction("setp.eq.s32", (Pair(Name("p"), Name("q")), Placeholder(0), Immediate("-1"))),
    ),
    "a.shared::cluster.b [%0], [%1, {%2, %3}], [%4];": (
        Instruction(
            "a.shared::cluster.b",
            (
                Address(Placeholder(0)),
                Address(Placeholder(1), None, (Vector((Placeholder(2), Placeholder(3))),)),
                Address(Placeholder(4)),
            ),
        ),
    ),
    "b16{%0}, [%1];": (Instruction("b16", (Vector((Placeholder(0),)), Address(Placeholder(1)))),),
    "/* a; b */ mul.lo.u32 $x, y$1, 0b11;": (
        Instruction("mul.lo.u32", (Name("$x"), Name("y$1"), Immediate("0b11"))),
    ),
}


@pytest.mark.parametrize("body", STATEMENTS)
def test_statements_are_read(body: str) -> None:
    assert parse(body) == STATEMENTS[body]


@pytest.mark.parametrize(
    "body, problem",
    [
        ("{ mov.u32 a, b;", "an opening brace has no closing one"),
        ("}", "a closing brace has no opening one"),
        ("mov.u32 a b;", "'b' is where ';' should be"),
        ("mov.u32 a, ;", "';' is where an operand should be"),
        ("ld.u32 a, [b;", "';' is where ']' should be"),
        (".pragma nounroll;", "the directive .pragma is not emulated"),
        (".reg .b32 r<99999>;", "99999 registers r: at most 1024"),
        (".reg .b32 4;", "'4' is where the name of a register should be"),
        ("mov.u32 a, 'b';", "is not PTX"),
        ("12 a;", "'12' is where an instruction should be"),
    ],
)
def test_what_is_no_ptx_is_named(body: str, problem: str) -> None:
    with pytest.raises(LoweringError) as caught:
        parse(body)
    assert problem in str(caught.value)
