"""Products of warp groups: element types, layouts of operands, and registers, against numpy.

The images of operands and the places of sums are written here on their own, from the PTX ISA
("Asynchronous Warpgroup Level Matrix Instructions").
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, Order, compile_text
from tests.unit.targets.cuda.emulator.running import ORDERS, Array, fault, needs_compiler

pytestmark = needs_compiler

TYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
}
SPANS = {16: 0, 128: 1, 64: 2, 32: 3}
"""Mode of a descriptor by the bytes of a swizzle; 16: none."""

A_BYTES = 64 * 128


@dataclass(frozen=True)
class Layout:
    """Of an operand in shared memory: bytes of the swizzle, and whether K is major."""

    span: int
    k_major: bool = True

    def offsets(self, rows: int, depth: int, size: int) -> Array:
        """Byte of each element; rows of M or N, columns of K."""
        row, k = np.indices((rows, depth))
        if self.k_major:
            byte = k * size
            if self.span == 16:
                offset = (
                    row // 8 * self.stride + byte // 16 * self.leading + row % 8 * 16 + byte % 16
                )
            else:
                offset = row // 8 * self.stride + row % 8 * self.span + byte
        else:
            units = self.span // 16
            unit, within = row // 8, row % 8 * 2
            if self.span == 16:
                offset = unit * self.stride + k // 8 * self.leading + k % 8 * 16 + within
            else:
                offset = (
                    unit % units * 16
                    + unit // units * self.leading
                    + k % 8 * self.span
                    + k // 8 * self.stride
                    + within
                )
        return offset ^ (offset >> 7 & self.span // 16 - 1) << 4

    @property
    def leading(self) -> int:
        """Where it counts, something that is not what would be guessed."""
        if self.k_major:
            return 4096 if self.span == 16 else 16
        return 1024 if self.span == 16 else 2048

    @property
    def stride(self) -> int:
        if self.k_major:
            return 128 if self.span == 16 else 8 * self.span
        return 128 if self.span == 16 else 8 * self.span

    def descriptor(self, address: int) -> int:
        return (
            address >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | SPANS[self.span] << 62
        )


@dataclass(frozen=True)
class Case:
    d: str
    a: str
    b: str
    n: int
    a_layout: Layout | None
    b_layout: Layout
    adds: int = 1
    scale: tuple[int, int] = (1, 1)

    @property
    def k(self) -> int:
        return 16 if self.a in ("f16", "bf16") else 32

    @property
    def registers(self) -> int:
        return self.n // 4 if self.d == "f16" else self.n // 2


def text_of(case: Case) -> str:
    count, kind = case.registers, "float" if case.d == "f32" else "unsigned"
    letter = "f" if case.d == "f32" else "r"
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    shared_a = case.a_layout is not None
    a = f"%{count}" if shared_a else "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
    after = count + (1 if shared_a else 4)
    inputs = '"l"(a)' if shared_a else ", ".join(f'"r"(held[{i}])' for i in range(4))
    constants = ""
    if case.d != "s32":
        constants = f", {case.scale[0]}, {case.scale[1]}"
        if case.k == 16:
            majors = [case.a_layout.k_major] if case.a_layout else []
            majors.append(case.b_layout.k_major)
            constants += "".join(f", {int(not major)}" for major in majors)
    opcode = f"m64n{case.n}k{case.k}.{case.d}.{case.a}.{case.b}"
    return f"""
extern "C" __global__ void product(const uint4* images, int words, unsigned long long a,
                                   unsigned long long b, const unsigned* registers, {kind}* out,
                                   int adds) {{
  extern __shared__ __align__(1024) uint4 memory[];
  for (int i = threadIdx.x; i < words; i += 128) memory[i] = images[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  {kind} d[{count}];
  unsigned held[4];
  for (int i = 0; i < {count}; i++) d[i] = out[threadIdx.x * {count} + i];
  for (int i = 0; i < 4; i++) held[i] = registers[threadIdx.x * 4 + i];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{after + 1}, 0; "
               "wgmma.mma_async.sync.aligned.{opcode} {{{sums}}}, {a}, %{after}, p{constants}; }}"
               : {outputs} : {inputs}, "l"(b), "r"(adds));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {count}; i++) out[threadIdx.x * {count} + i] = d[i];
}}
"""


def sums_of_threads(matrix: Array, inverse: bool = False, like: Array | None = None) -> Array:
    """Put a matrix of 64 rows into the order of threads and their elements, or back."""
    n = matrix.shape[1] if not inverse else matrix.size // 64
    thread, i = np.indices((128, n // 2))
    row = thread // 32 * 16 + thread % 32 // 4 + (i % 4 >= 2) * 8
    column = i // 4 * 8 + thread % 4 * 2 + i % 2
    if not inverse:
        return matrix[row, column]
    made = np.zeros((64, n), matrix.dtype)
    made[row, column] = matrix.reshape(128, n // 2)
    return made


def a_registers(a: Array) -> Array:
    """Words of each thread: pairs or quadruples of a row, 8 rows and half of the depth apart."""
    e = 4 // a.itemsize
    thread, word, part = np.indices((128, 4, e))
    row = thread // 32 * 16 + thread % 32 // 4 + word % 2 * 8
    column = thread % 4 * e + part + word // 2 * 4 * e
    return np.ascontiguousarray(a[row, column]).view(np.uint32).reshape(128, 4)


def values(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    low = 0 if kind == "u8" else -3
    return rng.integers(low, 4, shape).astype(TYPES[kind])


def run(case: Case, order: Order | int = Order.FORWARD) -> None:
    rng = np.random.default_rng(3)
    a, b = values(case.a, (64, case.k), rng), values(case.b, (case.n, case.k), rng)
    before = rng.integers(-9, 9, (64, case.n)).astype(TYPES[case.d])
    images = np.full(A_BYTES + 4 * 65536, 0x7B, np.uint8)
    used = 16
    for operand, layout, start in ((a, case.a_layout, 0), (b, case.b_layout, A_BYTES)):
        if layout is None:
            continue
        at = start + layout.offsets(*operand.shape, operand.itemsize)
        for byte in range(operand.itemsize):
            images[at + byte] = operand.view(np.uint8).reshape(*operand.shape, -1)[..., byte]
        used = max(used, int(at.max()) + 16)
    used = -(-used // 16) * 16
    out = np.ascontiguousarray(sums_of_threads(before)).view(
        np.uint32 if case.d != "f32" else np.float32
    )
    arguments = [
        np.ascontiguousarray(images[:used]),
        used // 16,
        case.a_layout.descriptor(0) if case.a_layout else 0,
        case.b_layout.descriptor(A_BYTES),
        a_registers(a),
        out,
        case.adds,
    ]
    launch = Launch("product", (1, 1, 1), (128, 1, 1), used)
    compile_text(text_of(case)).run(launch, arguments, order=order)
    wide = np.int64 if case.d == "s32" else np.float64
    expected = case.scale[0] * case.scale[1] * (a.astype(wide) @ b.astype(wide).T)
    if case.adds:
        expected = expected + before.astype(wide)
    result = sums_of_threads(out.view(TYPES[case.d]), inverse=True)
    np.testing.assert_array_equal(result.astype(wide), expected)


PLAIN = Layout(128)

CASES = [
    Case("f32", "f16", "f16", 64, PLAIN, PLAIN),
    Case("f32", "f16", "f16", 8, Layout(16), Layout(16)),
    Case("f32", "bf16", "bf16", 256, Layout(64), Layout(32)),
    Case("f16", "f16", "f16", 24, Layout(32), Layout(64)),
    Case("f16", "f16", "f16", 96, None, PLAIN, adds=0),
    Case("f32", "f16", "f16", 128, None, Layout(64), scale=(-1, 1)),
    Case("f32", "bf16", "bf16", 40, PLAIN, PLAIN, adds=0, scale=(1, -1)),
    Case("f32", "f16", "f16", 64, Layout(128, False), PLAIN),
    Case("f32", "f16", "f16", 64, Layout(64, False), Layout(32, False)),
    Case("f32", "bf16", "bf16", 128, Layout(32, False), Layout(128, False)),
    Case("f32", "f16", "f16", 16, Layout(16, False), Layout(16, False)),
    Case("f32", "f16", "f16", 192, None, Layout(128, False)),
    Case("f32", "e4m3", "e4m3", 64, PLAIN, PLAIN),
    Case("f32", "e5m2", "e4m3", 16, Layout(32), Layout(64)),
    Case("f16", "e4m3", "e5m2", 32, Layout(64), Layout(16)),
    Case("f32", "e4m3", "e5m2", 48, None, Layout(128)),
    Case("s32", "s8", "s8", 64, PLAIN, PLAIN),
    Case("s32", "u8", "s8", 256, Layout(16), Layout(32)),
    Case("s32", "s8", "u8", 24, None, Layout(64), adds=0),
    Case("s32", "u8", "u8", 32, Layout(32), PLAIN),
]


@pytest.mark.quick(8)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_is_that_of_numpy(case: Case) -> None:
    for order in ORDERS:
        run(case, order)


def test_each_swizzle_is_another_one() -> None:
    """The images of the layouts differ, so that taking one for another is a wrong result."""
    images = {
        (span, major): tuple(Layout(span, major).offsets(64, 16, 2).ravel())
        for span in SPANS
        for major in (True, False)
    }
    assert len(set(images.values())) == len(images)


@pytest.mark.parametrize(
    "threads, said",
    [(96, "needs four warps from a multiple of 4 on"), (120, "needs all 32 lanes of a warp")],
)
def test_a_group_has_four_whole_warps(threads: int, said: str) -> None:
    case = CASES[0]
    zeros = np.zeros(65536, np.uint8)
    arguments = [
        zeros, 1024, PLAIN.descriptor(0), PLAIN.descriptor(A_BYTES), np.zeros((128, 4), np.uint32),
        np.zeros(128 * 32, np.float32), 1,
    ]  # fmt: skip
    launch = Launch("product", (1, 1, 1), (threads, 1, 1), 16384)
    lines = [
        fault(compile_text(text_of(case)), launch, arguments, order)
        for order in (Order.FORWARD, Order.REVERSE)
    ]
    assert any(said in line for line in lines), lines
