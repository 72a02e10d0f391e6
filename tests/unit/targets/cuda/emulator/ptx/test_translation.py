"""Instructions of one lane compute what the PTX ISA says; operands are checked."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from cpembed.targets.cuda.emulator.ptx import translate_inline_ptx
from cpembed.targets.cuda.emulator.ptx.table import opcodes
from cpembed.targets.cuda.emulator.ptx.warp_groups import FACTORS_IN_REGISTERS
from tests.unit.targets.cuda.emulator.running import needs_compiler

LANES = 32
MASK = 2**32 - 1


def signed(value: int, bits: int = 32) -> int:
    value &= 2**bits - 1
    return value - 2**bits if value >> (bits - 1) else value


# The result of each body, by Python's integers; %0 is written, %1 and %2 are read.
INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add.u32 %0, %1, %2;": lambda a, b: a + b,
    "sub.s32 %0, %1, %2;": lambda a, b: a - b,
    "mul.lo.u32 %0, %1, %2;": lambda a, b: a * b,
    "mul.lo.s32 %0, %1, %2;": lambda a, b: a * b,
    "mul.hi.u32 %0, %1, %2;": lambda a, b: a * b >> 32,
    "mul.hi.s32 %0, %1, %2;": lambda a, b: signed(a) * signed(b) >> 32,
    "mad.lo.s32 %0, %1, %2, %1;": lambda a, b: a * b + a,
    "and.b32 %0, %1, %2;": lambda a, b: a & b,
    "or.b32 %0, %1, %2;": lambda a, b: a | b,
    "xor.b32 %0, %1, %2;": lambda a, b: a ^ b,
    "not.b32 %0, %1;": lambda a, _: ~a,
    "neg.s32 %0, %1;": lambda a, _: -a,
    "min.u32 %0, %1, %2;": min,
    "max.s32 %0, %1, %2;": lambda a, b: max(signed(a), signed(b)),
    "shl.b32 %0, %1, 5;": lambda a, _: a << 5,
    "shl.b32 %0, %1, %2;": lambda a, b: a << b if b < 32 else 0,
    "shr.u32 %0, %1, 3;": lambda a, _: a >> 3,
    "shr.s32 %0, %1, 3;": lambda a, _: signed(a) >> 3,
    "shr.s32 %0, %1, 40;": lambda a, _: -1 if signed(a) < 0 else 0,
    "mov.u32 %0, %%laneid;": lambda a, b: -1,  # Replaced by the lane's number.
    "mov.b32 %0, 0x80000000;": lambda a, b: 2**31,
    "{ .reg .pred p; setp.lt.s32 p, %1, %2; selp.u32 %0, 1, 2, p; }": lambda a, b: (
        1 if signed(a) < signed(b) else 2
    ),
    "{ .reg .pred p; setp.lo.u32 p, %1, %2; selp.u32 %0, 1, 2, p; }": lambda a, b: (
        1 if a < b else 2
    ),
    "{ .reg .pred p, q; setp.ge.u32 p|q, %1, %2; mov.u32 %0, 0; @p add.u32 %0, %0, 1; "
    "@q add.u32 %0, %0, 2; @!q add.u32 %0, %0, 4; }": lambda a, b: 5 if a >= b else 2,
    "{ .reg .pred p, q; setp.eq.u32 p, %1, %2; setp.ne.and.u32 q, %1, 0, !p; "
    "selp.b32 %0, 7, 8, q; }": lambda a, b: 7 if a != 0 and a != b else 8,
    "{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }": lambda a, _: (
        a >> 16 | (a & 0xFFFF) << 16
    ),
    "{ .reg .u64 w; mul.wide.u32 w, %1, %2; shr.u64 w, w, 16; cvt.u32.u64 %0, w; }": lambda a, b: (
        a * b >> 16
    ),
    "{ .reg .s64 w; cvt.s64.s32 w, %1; shr.s64 w, w, 32; cvt.u32.s64 %0, w; }": lambda a, _: (
        -1 if signed(a) < 0 else 0
    ),
    "{ .reg .u32 n; mov.u32 n, 0; mov.u32 %0, 0; LOOP: add.u32 %0, %0, %1; add.u32 n, n, 1; "
    "{ .reg .pred p; setp.lt.u32 p, n, 5; @p bra LOOP; } }": lambda a, _: 5 * a,
    "{ .reg .pred p; setp.eq.u32 p, %1, %2; mov.u32 %0, 1; @p bra.uni DONE_%=; mov.u32 %0, 2; "
    "DONE_%=: }": lambda a, b: 1 if a == b else 2,
}


def kernel(number: int, body: str) -> str:
    return (
        f'extern "C" __global__ void k{number}(const unsigned* a, const unsigned* b, '
        f'unsigned* out) {{ unsigned r; asm volatile("{body}" : "=r"(r) : '
        f'"r"(a[threadIdx.x]), "r"(b[threadIdx.x])); out[threadIdx.x] = r; }}\n'
    )


@needs_compiler
def test_integer_instructions_compute_what_python_computes() -> None:
    program = compile_text("".join(kernel(n, body) for n, body in enumerate(INTEGERS)))
    random = np.random.default_rng(1)
    a, b = random.integers(0, 2**32, (2, LANES), dtype=np.uint32)
    a[:8] = [0, 1, MASK, 2**31, 2**31 - 1, 5, 7, 31]
    b[:8] = [0, MASK, MASK, 1, 2**31, 5, 8, 32]
    for number, (body, function) in enumerate(INTEGERS.items()):
        out = np.zeros(LANES, np.uint32)
        program.run(Launch(f"k{number}", (1, 1, 1), (LANES, 1, 1)), [a, b, out])
        right = [function(int(x), int(y)) & MASK for x, y in zip(a, b, strict=True)]
        if "laneid" in body:
            right = list(range(LANES))
        assert out.tolist() == right, body


FLOATS = {
    "add.f32 %0, %1, %2;": lambda a, b: a + b,
    "mul.rn.f32 %0, %1, %2;": lambda a, b: a * b,
    "max.f32 %0, %1, %2;": np.maximum,
    "sub.ftz.f32 %0, %1, 0f3F800000;": lambda a, _: a - np.float32(1),
    "fma.rn.f32 %0, %1, 2.0, %2;": lambda a, b: (2 * a.astype(np.float64) + b).astype(np.float32),
    "{ .reg .f16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h; }": lambda a, _: a.astype(
        np.float16
    ).astype(np.float32),
    "{ .reg .s32 i; cvt.rzi.s32.f32 i, %1; cvt.rn.f32.s32 %0, i; }": lambda a, _: np.trunc(a),
    "{ .reg .s32 i; cvt.rni.s32.f32 i, %1; cvt.rn.f32.s32 %0, i; }": lambda a, _: np.rint(a),
    "{ .reg .b32 r; .reg .b16 l, h; cvt.rn.f16x2.f32 r, %1, %2; mov.b32 {l, h}, r; "
    "cvt.f32.f16 %0, h; }": lambda a, _: a.astype(np.float16).astype(np.float32),
}


@needs_compiler
def test_float_instructions_compute_what_numpy_computes() -> None:
    texts = [
        kernel(n, body).replace("unsigned", "float").replace('"=r"', '"=f"').replace('"r"', '"f"')
        for n, body in enumerate(FLOATS)
    ]
    program = compile_text("".join(texts))
    a, b = np.random.default_rng(2).normal(0, 10, (2, LANES)).astype(np.float32)
    for number, (body, function) in enumerate(FLOATS.items()):
        out = np.zeros(LANES, np.float32)
        program.run(Launch(f"k{number}", (1, 1, 1), (LANES, 1, 1)), [a, b, out])
        np.testing.assert_array_equal(out, function(a, b), err_msg=body)


WRONG = {
    'asm("add.u32 %0, %1, %2;" : "=r"(a) : "r"(b));': "there is no operand %2",
    'asm("add.u32 %1, %1, 1;" : : "r"(a), "r"(b));': "an input is written",
    'asm("add.u64 %0, %1, %1;" : "=r"(a) : "r"(b));': "does not fit a register of type .b32",
    'asm("mov.u32 %0, x;" : "=r"(a));': "the register x is not declared",
    'asm("mov.u32 %0, %%clock;" : "=r"(a));': "the special register %clock is not emulated",
    'asm("{ .reg .pred p, p; }");': "the register p is declared twice",
    'asm("{ .reg .b7 p; }");': ".b7 is not the type of a register",
    'asm("@%0 mov.u32 %0, 1;" : "+r"(a));': "a predicate is needed, not a register of type .b32",
    'asm("ld.global.u32 %0, [%1];" : "=r"(a) : "r"(b));': (
        "an address of global memory needs a register of 64 bits, not one of type .b32"
    ),
    'asm("ld.global.v4.u64 {%0, %0, %0, %0}, [%1];" : "=l"(a) : "l"(b));': "an access of 32 bytes",
    'asm("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(b));': (
        "operand 0 has 1 registers, not 2"
    ),
    'asm("ld.global.u33 %0, [%1];" : "=r"(a) : "l"(b));': ".u33 is where one of",
    'asm("cp.async.ca.shared.global [%0], [%1], %2;" : : "r"(a), "l"(b), "r"(c));': (
        "operand 2 has to be a constant"
    ),
    'asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 %0, %0, %0, %0;" : "+f"(a));': (
        "m16n8k16 has no product of f16 and bf16 in f32"
    ),
    'asm("tanh.approx.f16x2 %0, %1;" : "=r"(a) : "r"(b));': "tanh.approx.f16x2: .f16x2 is where",
    'asm(TEXT : "=r"(a));': "its text has to be string literals, not 'TEXT'",
    'asm("mov.u32 %0, 1;" : "r"(a));': "the constraint 'r' is in the wrong list of operands",
    'asm("mov.u32 %0, 1;" : "=x"(a));': "has no constraint of CUDA",
    'asm("bra 3;");': "the target of a branch has to be a label",
}


@pytest.mark.parametrize("statement", WRONG)
def test_what_does_not_fit_is_named_in_an_assertion(statement: str) -> None:
    text = translate_inline_ptx(f"\n{statement}\n")
    assert text.startswith("\nstatic_assert(false, ")
    assert text.count("\n") == 2
    message = re.search(r'"(.*)"', text)
    assert message is not None
    assert WRONG[statement] in message[1]
    assert "leave it out by #ifndef CPEMBED_EXECUTOR" in message[1]


@pytest.mark.parametrize("operand", ["%{}", "[%{}]", "{{%{}}}", "1"])
def test_any_number_of_operands_is_translated_or_named_in_an_assertion(operand: str) -> None:
    places = ", ".join(f'"+r"(a[{number}])' for number in range(10))
    for opcode in opcodes():
        for count in range(11):
            operands = ", ".join(operand.format(number) for number in range(count))
            text = translate_inline_ptx(f'asm volatile("{opcode} {operands};" : {places});')
            assert text.startswith(("static_assert(false, ", "do { "))
            assert count < 9 or text.startswith("static_assert(false, ")


@needs_compiler
@pytest.mark.parametrize(
    "operand, constraint", [("double(1)", "r"), ("short(1)", "r"), ("1", "l"), ("1.0", "f")]
)
def test_operands_have_the_size_of_their_constraint(operand: str, constraint: str) -> None:
    kind = {"r": "u32", "l": "u64", "f": "f32"}[constraint]
    text = (
        f'extern "C" __global__ void k(int* out) {{ asm volatile("{{ .reg .{kind} x; mov.{kind} x, '
        f'%0; }}" : : "{constraint}"({operand})); }}'
    )
    with pytest.raises(LoweringError, match="has not the size that its constraint says"):
        compile_text(text)


@needs_compiler
def test_registers_that_no_instruction_writes_are_rubbish() -> None:
    text = """
    extern "C" __global__ void k(const float* in, float* out, int some) {
      float r = 1.0f, s = 1.0f;
      asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.f32 %0, [%1]; }"
                   : "=f"(r) : "l"(in + threadIdx.x), "r"((int)threadIdx.x), "r"(some));
      asm volatile("{ .reg .pred p; setp.lt.s32 p, %2, %3; @p ld.global.f32 %0, [%1]; }"
                   : "+f"(s) : "l"(in + threadIdx.x), "r"((int)threadIdx.x), "r"(some));
      out[threadIdx.x] = r;
      out[32 + threadIdx.x] = s;
    }
    """
    source, out = np.arange(5, 37, dtype=np.float32), np.zeros(64, np.float32)
    compile_text(text).run(Launch("k", (1, 1, 1), (LANES, 1, 1)), [source, out, 20])
    np.testing.assert_array_equal(out[:20], source[:20])
    assert np.isnan(out[20:32]).all()
    np.testing.assert_array_equal(out[32:], [*source[:20], *[1.0] * 12])


def test_products_of_factors_in_registers_are_told_apart() -> None:
    """A launch checks what fences order if its text has one."""
    product = (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {A}, %8, 1, 1, 1, {T};"
    )
    sums = ", ".join(f'"+f"(c[{n}])' for n in range(4))
    factors = ", ".join(f'"r"(a[{n}])' for n in range(4))
    operands = f'{sums} : {factors}, "l"(b)'
    texts = [
        f'asm volatile("{product.replace("{A}", a).replace("{T}", t)}" : {operands});'
        for a, t in (("{%4, %5, %6, %7}", "0"), ("%8", "0, 0"))
    ]
    made = [translate_inline_ptx(text) for text in texts]
    assert not any("static_assert(false" in text for text in made)
    assert [FACTORS_IN_REGISTERS in text for text in made] == [True, False]
