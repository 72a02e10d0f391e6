"""Microkernels do the work that their time is divided by: their results against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.targets.x86 import microkernels as micro
from cpembed.targets.x86.calibrate import FEATURES
from cpembed.targets.x86.features import lacking
from cpembed.targets.x86.microbenchmarks import tile_configuration

REGION = 8 * micro.BLOCK


def needs(instruction: str) -> Any:
    missing = lacking(FEATURES[instruction])
    return pytest.mark.skipif(bool(missing), reason=f"missing: {', '.join(missing)}")


class Executed:
    """What a microkernel left behind, on random bytes."""

    def __init__(
        self, body: micro.Lines, counts: tuple[int, int, int], *, chunks: int = 1, rows: int = 0
    ) -> None:
        self.before = np.random.default_rng(1).integers(0, 120, REGION * chunks, np.uint8)
        data = runtime.from_array(self.before)
        out, stamps = runtime.empty(16 * chunks, "int32"), runtime.empty(8 * chunks, "int64")
        config = np.frombuffer(tile_configuration(rows or 16), np.uint8)
        plan = micro.plan(body, REGION, chunks, tiles=rows > 0)
        numbers = np.array(counts, np.int32)
        compiled = runtime.compile_plan(plan)
        compiled(*map(runtime.from_array, (numbers, config)), data, out, stamps)
        self.after: NDArray[np.uint8] = data.numpy()
        self.out: NDArray[np.int32] = out.numpy().reshape(chunks, 16)
        self.stamps: NDArray[np.int64] = stamps.numpy().reshape(chunks, 8)[:, :2]


def blocks(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return data.reshape(-1, micro.BLOCK_LINES, micro.LINE)


def test_vector_loads_read_every_line_of_their_steps() -> None:
    # From the fourth block of four on: blocks 3, 0, 1, in each part's own region.
    done = Executed(micro.vector_loads(REGION), (3, 3, 3), chunks=2)
    for part in range(2):
        walked = blocks(done.before)[8 * part :][[3, 0, 1]]
        sums = walked.view(np.int32).sum(axis=(0, 1), dtype=np.int32)
        np.testing.assert_array_equal(done.out[part], sums)


def test_vector_stores_write_every_line_of_their_steps() -> None:
    done = Executed(micro.vector_stores(REGION), (2, 2, 7))
    expected = blocks(done.before).copy()
    expected[2:4] = done.before[: micro.LINE]
    np.testing.assert_array_equal(blocks(done.after), expected)


def test_copies_are_a_permutation_of_lines() -> None:
    done = Executed(micro.copies(REGION), (2, 1, 3))
    expected = blocks(done.before).copy()
    for block in (1, 2):
        lines = expected[block].reshape(8, 16, micro.LINE)
        expected[4 + block] = lines.swapaxes(0, 1).reshape(micro.BLOCK_LINES, micro.LINE)
    np.testing.assert_array_equal(blocks(done.after), expected)


def test_every_part_says_when_it_ran() -> None:
    done = Executed(micro.nothing(), (0, 0, 0), chunks=3)
    np.testing.assert_array_equal(done.out[:, 0], range(3))
    assert (done.stamps[:, 1] >= done.stamps[:, 0]).all()
    assert (done.stamps[:, 0] > 0).all()


@needs("vpdpbusd")
def test_vector_products_multiply_as_often_as_they_say() -> None:
    done = Executed(micro.vector_products("vpdpbusd", 3, 5), (7, 0, 0))
    a, b = done.before[:64].astype(np.int32), done.before[64:128].astype(np.int32)
    np.testing.assert_array_equal(done.out[0], 5 * 7 * (a * b).reshape(16, 4).sum(axis=1))


@needs("vpdpbusd_ymm")
def test_vector_products_of_shorter_registers() -> None:
    done = Executed(micro.vector_products("vpdpbusd_ymm", 3, 5), (7, 0, 0))
    a, b = done.before[:32].astype(np.int32), done.before[64:96].astype(np.int32)
    np.testing.assert_array_equal(done.out[0][:8], 5 * 7 * (a * b).reshape(8, 4).sum(axis=1))


@needs("vdpbf16ps")
def test_vector_products_of_pairs() -> None:
    done = Executed(micro.vector_products("vdpbf16ps", 1, 1), (1, 0, 0))
    words = done.before[:128].view(np.uint32).reshape(2, 16) & 0x007F007F | 0x3F003F00
    halves = words.view(np.uint16).reshape(2, 16, 2).astype(np.uint32) << 16
    a, b = halves.view(np.float32).astype(np.float64)
    np.testing.assert_allclose(done.out[0].view(np.float32), (a * b).sum(axis=1), rtol=1e-6)


@needs("vpdpbusd")
def test_vector_tasks_compute_a_block() -> None:
    check_vector_tasks("vpdpbusd", 16)


@needs("vpdpbusd_ymm")
def test_vector_tasks_compute_a_block_of_shorter_registers() -> None:
    check_vector_tasks("vpdpbusd_ymm", 8)


def check_vector_tasks(instruction: str, lanes: int) -> None:
    done = Executed(micro.vector_tasks(instruction), (2, 0, 3))
    stored = done.after[8 * micro.TILE :][: micro.VECTOR_TASK_LINES * micro.LINE].view(np.int32)
    expected = np.zeros((3, 4, lanes), np.int32)
    for step in range(3):
        lines = done.before[step * 256 :][:256].astype(np.int32).reshape(4, 16, 4)[:, :lanes]
        words = done.before[step * 256 :][:12].astype(np.int32).reshape(3, 4)
        expected += np.einsum("rk,cyk->rcy", words, lines)
    np.testing.assert_array_equal(stored.reshape(3, 4, 16)[:, :, :lanes], expected)


@needs("tdpbusd")
@pytest.mark.parametrize("rows", [16, 5])
def test_tile_tasks_compute_a_block(rows: int) -> None:
    done = Executed(micro.tile_tasks("tdpbusd"), (2, 0, 3), rows=rows)
    expected = np.zeros((4, rows, 16), np.int32)
    for step in range(3):
        tiles = done.before[step % 2 * 4 * micro.TILE :][: 4 * micro.TILE].astype(np.int32)
        first = tiles.reshape(4, 16, 16, 4)[:2, :rows]
        second = tiles.reshape(4, 16, 16, 4)[2:]
        expected += np.einsum("axzk,bzyk->abxy", first, second).reshape(4, rows, 16)
    stored = done.after[8 * micro.TILE :][: 4 * micro.TILE].view(np.int32).reshape(4, 16, 16)
    np.testing.assert_array_equal(stored[:, :rows], expected)


@needs("tdpbusd")
def test_tile_stores_write_every_line_of_their_steps() -> None:
    done = Executed(micro.tile_stores(REGION), (3, 0, 7), rows=16)
    assert not done.after[: 3 * micro.BLOCK].any()
    np.testing.assert_array_equal(done.after[3 * micro.BLOCK :], done.before[3 * micro.BLOCK :])
