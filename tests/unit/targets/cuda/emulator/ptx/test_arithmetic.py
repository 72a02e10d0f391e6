"""Instructions of one lane whose results numpy, or the definition bit by bit, knows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from tests.unit.targets.cuda.emulator.running import fault, needs_compiler

pytestmark = needs_compiler

THREADS = 256


def results(ptx: str, kind: str, operands: list[np.ndarray]) -> np.ndarray:
    """Of one instruction, on an element of each operand in each thread."""
    letter, name = ("f", "float") if kind == "float32" else ("r", "unsigned")
    parameters = ", ".join(f"const {name}* in{n}" for n in range(len(operands)))
    inputs = ", ".join(f'"{letter}"(in{n}[t])' for n in range(len(operands)))
    places = ", ".join(f"%{n + 1}" for n in range(len(operands)))
    opcode, _, immediate = ptx.partition(" ")
    source = (
        f'extern "C" __global__ void k({name}* out, {parameters}) {{\n'
        f"  const int t = threadIdx.x; {name} r;\n"
        f'  asm volatile("{opcode} %0, {places}{immediate};" : "={letter}"(r) : {inputs});\n'
        "  out[t] = r;\n}\n"
    )
    out = np.zeros(THREADS, kind)
    compile_text(source).run(Launch("k", (1, 1, 1), (THREADS, 1, 1)), [out, *operands])
    return out


def words(count: int, seed: int) -> list[np.ndarray]:
    """Random ones, of which some are small or have all bits."""
    random = np.random.default_rng(seed)
    made = random.integers(0, 2**32, (count, THREADS), dtype=np.uint32)
    made[:, :40] %= 40
    made[:, 40] = 2**32 - 1
    return list(made)


def by_table(a: int, b: int, c: int, table: int) -> int:
    rows = (4 * (a >> bit & 1) + 2 * (b >> bit & 1) + (c >> bit & 1) for bit in range(32))
    return sum((table >> row & 1) << bit for bit, row in enumerate(rows))


def bytes_of(a: int, b: int, selector: int) -> int:
    source = (a | b << 32).to_bytes(8, "little")
    digits = [selector >> 4 * place & 15 for place in range(4)]
    chosen = [source[digit] if digit < 8 else 255 * (source[digit - 8] >> 7) for digit in digits]
    return int.from_bytes(bytes(chosen), "little")


def shifted(low: int, high: int, count: int, left: bool) -> int:
    pair = low | high << 32
    return (pair << count >> 32 if left else pair >> count) % 2**32


def bit_field(value: int, first: int, count: int) -> int:
    field = value >> first % 256
    return field % (1 << count % 256)


def signed_bit_field(value: int, first: int, count: int) -> int:
    first, count = first % 256, count % 256
    extended = value - 2 * (value & 2**31)  # As an integer with a sign.
    field = extended >> first
    if count == 0:
        return 0
    if first + count <= 32:
        field = (field % 2**count) - 2 * (field & 2 ** (count - 1))
    return field % 2**32


BITS: dict[str, Callable[..., int]] = {
    "popc.b32": lambda a: a.bit_count(),
    "clz.b32": lambda a: 32 - a.bit_length(),
    "brev.b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "lop3.b32 , 0xe8": lambda a, b, c: a & b | b & c | a & c,
    "lop3.b32 , 0x96": lambda a, b, c: a ^ b ^ c,
    "lop3.b32 , 0x2b": lambda a, b, c: by_table(a, b, c, 0x2B),
    "prmt.b32": bytes_of,
    "bfe.u32": bit_field,
    "bfe.s32": signed_bit_field,
    "div.u32": lambda a, b: a // b,
    "rem.u32": lambda a, b: a % b,
    "shf.l.wrap.b32": lambda a, b, c: shifted(a, b, c % 32, True),
    "shf.r.wrap.b32": lambda a, b, c: shifted(a, b, c % 32, False),
    "shf.l.clamp.b32": lambda a, b, c: shifted(a, b, min(c, 32), True),
    "shf.r.clamp.b32": lambda a, b, c: shifted(a, b, min(c, 32), False),
}


@pytest.mark.parametrize("ptx", BITS)
def test_bits(ptx: str) -> None:
    definition = BITS[ptx]
    operands = words(definition.__code__.co_argcount, 3)
    if ptx[:3] in ("div", "rem"):
        operands[1] |= np.uint32(1)
    expected = [definition(*map(int, row)) for row in zip(*operands, strict=True)]
    assert results(ptx, "uint32", operands).tolist() == expected


FLOATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2.approx.f32": np.exp2, "lg2.approx.f32": np.log2, "sqrt.rn.f32": np.sqrt,
    "rcp.rn.f32": np.reciprocal, "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x),
    "tanh.approx.f32": np.tanh, "sin.approx.f32": np.sin, "cos.approx.f32": np.cos,
    "abs.f32": np.abs,
}  # fmt: skip


@pytest.mark.parametrize("ptx", FLOATS)
def test_functions_of_floats(ptx: str) -> None:
    x = np.random.default_rng(4).uniform(0.01, 20, THREADS).astype(np.float32)
    if ptx in ("tanh.approx.f32", "sin.approx.f32", "cos.approx.f32", "abs.f32"):
        x -= np.float32(10)
    expected = FLOATS[ptx](x.astype(np.float64))
    np.testing.assert_allclose(results(ptx, "float32", [x]), expected, rtol=2e-6, atol=1e-7)


def test_small_powers_become_zero() -> None:
    x = np.full(THREADS, -130, np.float32)
    assert (results("ex2.approx.ftz.f32", "float32", [x]) == 0).all()
    assert (results("ex2.approx.f32", "float32", [x]) == 2.0**-130).all()


def test_approximations_are_not_rounded_exactly() -> None:
    with pytest.raises(LoweringError, match=r"only quotients and square roots .*: \.approx"):
        results("tanh.rn.f32", "float32", [np.zeros(THREADS, np.float32)])


def test_a_trap_is_a_fault() -> None:
    source = 'extern "C" __global__ void k(float* out) { if (threadIdx.x == 3) asm("trap;"); }'
    launch = Launch("k", (1, 1, 1), (32, 1, 1))
    line = fault(compile_text(source), launch, [np.zeros(1, np.float32)])
    assert "thread 3 ends the launch by a trap at line 1" in line
