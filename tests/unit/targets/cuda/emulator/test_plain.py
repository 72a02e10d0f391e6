"""Kernels that no part of this package wrote: plain accesses are checked and counted as well."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Counters, Launch, Order
from tests.unit.targets.cuda.emulator.running import ORDERS, Array, needs_compiler, program

pytestmark = needs_compiler


def run(kernel: str, arguments: list[Array | int], threads: int = 32, shared: int = 0) -> Counters:
    return program("plain.cu").run(Launch(kernel, (1, 1, 1), (threads, 1, 1), shared), arguments)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_sums_by_shuffles(order: Order | int) -> None:
    values = np.random.default_rng(0).integers(-9, 9, (5, 100)).astype(np.float32)
    out = np.zeros(5, np.float32)
    counters = program("plain.cu").run(
        Launch("sums", (5, 1, 1), (64, 1, 1)), [values, out, 100], order=order
    )
    np.testing.assert_array_equal(out, values.sum(1))
    assert counters.instructions["__shfl_down_sync"] == 5 * 2 * 5
    assert counters.global_load_bytes == counters.unique_bytes_read == values.nbytes
    # Rows of 400 bytes begin at a sector or in its middle; each is read in pieces of 128, 128, 128
    # and 16 bytes.
    assert counters.global_load_sectors == 3 * (4 + 4 + 4 + 1) + 2 * (5 + 5 + 5 + 1)
    assert counters.global_load_sectors_least == 5 * 13


@pytest.mark.parametrize("stride, sectors", [(4, 8), (8, 16), (16, 32)])
def test_vectors_are_loaded_as_a_whole(stride: int, sectors: int) -> None:
    values = np.arange(32 * stride, dtype=np.float16)
    out = np.zeros(128, np.float16)
    counters = run("doubled", [values, out, stride])
    np.testing.assert_array_equal(out, 2 * values.reshape(32, stride)[:, :4].reshape(-1))
    assert counters.global_load_bytes == counters.global_store_bytes == 256
    assert counters.global_load_sectors == sectors
    assert counters.global_load_sectors_least == counters.global_store_sectors == 8


@pytest.mark.parametrize("pitch, conflicts", [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8)])
def test_bank_conflicts_of_plain_accesses(pitch: int, conflicts: int) -> None:
    """A quarter of a warp is served at a time: 8 words of 16 bytes, ``pitch`` of them apart."""
    values, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    counters = run("through_shared", [values, out, pitch], shared=32 * 16 * pitch)
    np.testing.assert_array_equal(out, values)
    assert counters.shared_store_wavefronts == counters.shared_load_wavefronts == 4 * conflicts
    assert counters.shared_store_wavefronts_least == 4


def test_integers_of_eight_bits() -> None:
    values = np.linspace(-200, 200, 32).astype(np.float32)
    values[:4] = [0.5, 1.5, 2.5, -0.5]
    out, dots = np.zeros(32, np.int8), np.zeros(32, np.int32)
    run("quantised", [values, out, dots])
    np.testing.assert_array_equal(out, np.clip(np.rint(values), -128, 127).astype(np.int8))
    lanes = np.arange(32)
    np.testing.assert_array_equal(dots, 14 + (lanes % 4) ** 2 + lanes)


def test_shuffles_and_votes() -> None:
    found = np.zeros((7, 32), np.int32)
    run("shuffles", [found])
    lanes = np.arange(32)
    np.testing.assert_array_equal(found[0], np.full(32, 5))
    np.testing.assert_array_equal(found[1], np.where(lanes % 8 < 3, lanes, lanes - 3))
    np.testing.assert_array_equal(found[2], np.where(lanes % 8 > 4, lanes, lanes + 3))
    np.testing.assert_array_equal(found[3], lanes ^ 6)
    votes = sum(1 << int(lane) for lane in lanes[lanes % 3 == 0])
    np.testing.assert_array_equal(found[4].view(np.uint32), np.full(32, votes))
    np.testing.assert_array_equal(found[5], np.ones(32))
    np.testing.assert_array_equal(found[6, :8], (lanes[:8] ^ 1) + 0xFF)
