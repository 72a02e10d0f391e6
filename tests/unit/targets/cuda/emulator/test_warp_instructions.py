"""shfl, vote, redux, match and stmatrix of PTX, and their CUDA functions, against numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, Order, compile_text
from tests.unit.targets.cuda.emulator.running import ORDERS, Array, fault, needs_compiler

pytestmark = needs_compiler

LANES = np.arange(32)
WARP = Launch("k", (1, 1, 1), (32, 1, 1))


def run(body: str, values: Array, order: Order | int = Order.FORWARD) -> Array:
    """Results of a body that makes ``d`` of ``x``, one for each lane."""
    text = f"""extern "C" __global__ void k(const unsigned* in, unsigned* out) {{
  unsigned x = in[threadIdx.x], d = 99, lane = threadIdx.x;
  {body}
  out[threadIdx.x] = d;
}}"""
    out = np.zeros(32, np.uint32)
    compile_text(text).run(WARP, [values.astype(np.uint32), out], order=order)
    return out


def statement(ptx: str) -> str:
    return f'asm volatile("{ptx}" : "=r"(d) : "r"(x) : "memory");'


RNG = np.random.default_rng(3)
VALUES = RNG.integers(0, 2**32, 32, dtype=np.uint64).astype(np.uint32)
FEW = RNG.integers(0, 3, 32).astype(np.uint32)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("operation, kind, expected", [
    ("add", "u32", VALUES.sum(dtype=np.uint32)),
    ("min", "u32", VALUES.min()), ("max", "u32", VALUES.max()),
    ("min", "s32", VALUES.view(np.int32).min().astype(np.int64) % 2**32),
    ("max", "s32", VALUES.view(np.int32).max().astype(np.int64) % 2**32),
    ("and", "b32", np.bitwise_and.reduce(VALUES)), ("or", "b32", np.bitwise_or.reduce(VALUES)),
    ("xor", "b32", np.bitwise_xor.reduce(VALUES)),
])  # fmt: skip
def test_combinations(operation: str, kind: str, expected: int, order: Order | int) -> None:
    made = run(statement(f"redux.sync.{operation}.{kind} %0, %1, 0xffffffff;"), VALUES, order)
    assert (made == expected).all()


def test_functions_of_cuda() -> None:
    assert (run("d = __reduce_add_sync(~0u, x);", VALUES) == VALUES.sum(dtype=np.uint32)).all()
    smallest = np.uint32(int(VALUES.view(np.int32).min()) % 2**32)
    assert (run("d = __reduce_min_sync(~0u, (int)x);", VALUES) == smallest).all()
    same = (FEW[:, None] == FEW) @ (1 << LANES)
    np.testing.assert_array_equal(run("d = __match_any_sync(~0u, x);", FEW), same)
    assert (run("int p; d = __match_all_sync(~0u, 5u, &p) + p - 1;", FEW) == 2**32 - 1).all()
    assert (run("int p; d = __match_all_sync(~0u, x, &p) + p;", FEW) == 0).all()


def test_half_of_a_warp_combines() -> None:
    body = "if (lane < 16) " + statement("redux.sync.add.u32 %0, %1, 0xffff;")
    np.testing.assert_array_equal(run(body, FEW), [*[FEW[:16].sum()] * 16, *[99] * 16])


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_matches(order: Order | int) -> None:
    same = (FEW[:, None] == FEW) @ (1 << LANES)
    body = statement("match.any.sync.b32 %0, %1, 0xffffffff;")
    np.testing.assert_array_equal(run(body, FEW, order), same)
    all_of = "{ .reg .pred p; match.all.sync.b32 %0|p, %1, 0xffffffff; @p add.u32 %0, %0, 2; }"
    assert (run(statement(all_of), FEW * 0, order) == 1).all()
    assert (run(statement(all_of), FEW, order) == 0).all()


@pytest.mark.parametrize("mode", ["all", "any", "uni"])
def test_votes(mode: str) -> None:
    ptx = (
        "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; "
        f"vote.sync.{mode}.pred q, p, 0xffffffff; selp.b32 %0, 1, 0, q; }}"
    )
    for values in (FEW, FEW * 0, FEW * 0 + 4):
        votes = [bool(value) for value in values]
        expected = {"all": all(votes), "any": any(votes), "uni": len(set(votes)) == 1}[mode]
        assert (run(statement(ptx), values) == expected).all()
    ballot = "{ .reg .pred p; setp.eq.u32 p, %1, 1; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
    assert (run(statement(ballot), FEW) == (FEW == 1) @ (1 << LANES)).all()


@pytest.mark.parametrize("width", [32, 16, 8, 2])
def test_exchanges(width: int) -> None:
    """Against __shfl_sync and its kin, whose operand c the programming guide's headers have."""
    for mode, name, by, low in (
        ("idx", "", 5, 31), ("up", "_up", 3, 0), ("down", "_down", 7, 31), ("bfly", "_xor", 6, 31),
    ):  # fmt: skip
        segments = (32 - width) << 8 | low
        ptx = statement(f"shfl.sync.{mode}.b32 %0, %1, {by}, {segments}, 0xffffffff;")
        function = f"d = __shfl{name}_sync(~0u, x, {by}, {width});"
        np.testing.assert_array_equal(run(ptx, VALUES), run(function, VALUES), err_msg=mode)
    within = "{ .reg .pred p; shfl.sync.down.b32 %0|p, %1, 1, 31, 0xffffffff; @!p mov.u32 %0, 7; }"
    np.testing.assert_array_equal(run(statement(within), VALUES), [*VALUES[1:], 7])


def test_the_value_of_a_lane_that_does_not_take_part_is_rubbish() -> None:
    body = "if (lane < 16) d = __shfl_xor_sync(0xffffu, x, 16);"
    assert (run(body, FEW)[:16] > 1000).all()


MATRICES = """extern "C" __global__ void k(unsigned short* out, int wrong) {
  __shared__ __align__(128) unsigned short tile[TALL * 8];
  unsigned r[4];
  for (int m = 0; m < 4; m++) {
    unsigned first = threadIdx.x * 2 + m * 64;
    r[m] = (first + 1) << 16 | first;
  }
  unsigned address = (unsigned)__cvta_generic_to_shared(tile + (threadIdx.x % TALL) * 8);
  if (wrong == 1) address += 2;
  if (wrong == 2 && threadIdx.x % 8 == 0) tile[threadIdx.x / 8] = 1;
  asm volatile("stmatrix.sync.aligned.m8n8.COUNT.shared.b16 [%0], {REGISTERS};"
               ::"r"(address), INPUTS : "memory");
  if (wrong != 3) __syncwarp();
  for (int n = threadIdx.x; n < TALL * 8; n += 32) out[n] = tile[n];
}"""


def matrices(count: int, transposed: bool) -> str:
    return (
        MATRICES.replace("TALL", str(8 * count))
        .replace("COUNT", f"x{count}" + ".trans" * transposed)
        .replace("REGISTERS", ", ".join(f"%{n + 1}" for n in range(count)))
        .replace("INPUTS", ", ".join(f'"r"(r[{n}])' for n in range(count)))
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_stored(count: int, transposed: bool) -> None:
    out = np.zeros(64 * count, np.uint16)
    counters = compile_text(matrices(count, transposed)).run(WARP, [out, 0])
    # Lane l has row l / 4 and columns 2 (l % 4) and the next one of each matrix.
    expected = np.arange(64 * count).reshape(count, 8, 8)
    if transposed:
        expected = expected.transpose(0, 2, 1)
    np.testing.assert_array_equal(out, expected.reshape(-1))
    assert counters.shared_store_wavefronts == count


@pytest.mark.parametrize("wrong, said", [
    (1, "stmatrix.* is misaligned"), (2, "data race in shared memory: warp 0 writes"),
    (3, "data race in shared memory: thread .* reads"),
])  # fmt: skip
def test_wrong_stores_of_matrices(wrong: int, said: str) -> None:
    line = fault(compile_text(matrices(4, False)), WARP, [np.zeros(256, np.uint16), wrong])
    assert re.search(said, line), line


# Lanes of the first warp announce the matrices that it has stored, or have them copied by lane 5.
ANNOUNCED = """extern "C" __global__ void k(unsigned short* out, int before, int after, int meets) {
  __shared__ __align__(128) unsigned short tile[256];
  __shared__ __align__(8) unsigned long long object;
  unsigned first = (unsigned)__cvta_generic_to_shared(tile);
  unsigned place = (unsigned)__cvta_generic_to_shared(&object), lane = threadIdx.x % 32;
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(place), "r"(COPIES ? 1 : __popc(before)) : "memory");
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %1, %1, %1};"
                 ::"r"(first + lane * 16), "r"(lane) : "memory");
    if (before >> lane & 1) { FIRST }
    if (meets) __syncwarp();
    if (after >> lane & 1) { SECOND }
    if (COPIES && lane == 5)
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;"
                   "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
                   ::"l"(out), "r"(first) : "memory");
  } else if (!COPIES) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                 "@!p bra again; }" ::"r"(place) : "memory");
    for (int n = lane; n < 256; n += 32) out[n] = tile[n];
  }
}"""
ARRIVAL = 'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place) : "memory");'
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
TWO_WARPS = Launch("k", (1, 1, 1), (64, 1, 1))
ALL, ISSUER = 2**32 - 1, 1 << 5
SOME = [int(mask) | 1 for mask in RNG.integers(1, ALL, 3)]


@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("after", [0, ISSUER, ALL & ~ISSUER])
@pytest.mark.parametrize("before", [ALL, 0, ISSUER, *SOME])
def test_a_lane_fences_its_own_part_of_a_matrix(before: int, after: int, meets: bool) -> None:
    source = ANNOUNCED.replace("FIRST", FENCE).replace("SECOND", FENCE).replace("COPIES", "1")
    # Each lane fences before they meet, or the one that has them copied does behind it.
    right = meets and (before == ALL or bool(after & ISSUER))
    arguments = [np.zeros(256, np.uint16), *np.array([before, after], np.uint32).view(np.int32)]
    if right:
        compile_text(source).run(TWO_WARPS, [*arguments, int(meets)])
    else:
        line = fault(compile_text(source), TWO_WARPS, [*arguments, int(meets)])
        assert re.search("missing fence.proxy.async|data race", line), line


@pytest.mark.parametrize("space", ["", ".shared::cta", ".shared::cluster", ".global"])
def test_fences_are_of_a_space(space: str) -> None:
    fence = FENCE.replace(".shared::cta", space)
    source = ANNOUNCED.replace("FIRST", fence).replace("SECOND", "").replace("COPIES", "1")
    arguments = [np.zeros(256, np.uint16), np.int32(-1), 0, 1]
    if space == ".global":
        assert "missing fence.proxy.async" in fault(compile_text(source), TWO_WARPS, arguments)
    else:
        compile_text(source).run(TWO_WARPS, arguments)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("lanes", [ALL, 1, ISSUER, *SOME])
def test_a_lane_announces_its_own_part_of_a_matrix(lanes: int, order: Order | int) -> None:
    source = ANNOUNCED.replace("FIRST", ARRIVAL).replace("SECOND", "").replace("COPIES", "0")
    out, mask = np.zeros(256, np.uint16), np.array([lanes], np.uint32).view(np.int32)[0]
    if lanes == ALL:
        compile_text(source).run(TWO_WARPS, [out, mask, 0, 0], order=order)
        assert out.any()
    else:
        line = fault(compile_text(source), TWO_WARPS, [out, mask, 0, 0], order)
        assert re.search("data race in shared memory: .* which warp 0 wrote", line), line


# A warp reads matrices, and lanes of it let the other one overwrite them.
RELEASED = """extern "C" __global__ void k(unsigned* out, int lanes, int meets) {
  __shared__ __align__(128) unsigned tile[128];
  __shared__ __align__(8) unsigned long long object;
  unsigned first = (unsigned)__cvta_generic_to_shared(tile);
  unsigned place = (unsigned)__cvta_generic_to_shared(&object), lane = threadIdx.x % 32;
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(place), "r"(__popc(lanes)) : "memory");
  tile[threadIdx.x] = tile[threadIdx.x + 64] = 7;
  __syncthreads();
  if (threadIdx.x < 32) {
    unsigned r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(first + lane * 16) : "memory");
    if (meets) __syncwarp();
    if (lanes >> lane & 1) { ARRIVAL }
    out[lane] = r[0] + r[1] + r[2] + r[3];
  } else {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                 "@!p bra again; }" ::"r"(place) : "memory");
    for (int n = lane; n < 128; n += 32) tile[n] = 8;
  }
}"""


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("lanes", [ALL, 1, ISSUER, *SOME])
def test_a_lane_releases_its_own_part_of_a_matrix(
    lanes: int, meets: bool, order: Order | int
) -> None:
    source = RELEASED.replace("ARRIVAL", ARRIVAL)
    out, mask = np.zeros(32, np.uint32), np.array([lanes], np.uint32).view(np.int32)[0]
    arguments = [out, mask, int(meets)]
    if meets or lanes == ALL:
        compile_text(source).run(TWO_WARPS, arguments, order=order)
        assert (out == 4 * 7).all()
    else:
        line = fault(compile_text(source), TWO_WARPS, arguments, order)
        assert re.search("data race in shared memory: .* which warp 0 read", line), line
