"""Updates of caches against their definition: into other memory, and in place."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.runtime import compile_plan, from_array, tvm
from cpembed.errors import WorkloadError
from cpembed.graph.kinds import CacheUpdate, TensorType
from cpembed.network.operators import PlacedTensor, generated_plan
from tests.unit.network.operators.running import check

Array = NDArray[Any]
RANDOM = np.random.default_rng(3)

CASES = [
    # shape, axis, new elements, first positions, circular
    ((1, 2, 8, 4), 2, 1, [5], False),
    ((2, 2, 8, 4), 2, 3, [5, 0], False),
    ((2, 2, 8, 4), 2, 3, [6, -2], False),
    ((3, 8), 1, 2, [7, 15, 3], True),
    ((1, 8, 3), 1, 8, [2], True),
    ((2, 5, 2, 3), 1, 2, [0, 3], False),
]


def arrays(shape: tuple[int, ...], axis: int, count: int, first: list[int]) -> list[Array]:
    new = list(shape)
    new[axis] = count
    cache, update = (RANDOM.standard_normal(s).astype(np.float32) for s in (shape, new))
    return [cache, update, np.array(first, np.int64)]


@pytest.mark.parametrize("case", CASES)
def test_updates(case: tuple[Any, ...]) -> None:
    shape, axis, count, first, is_circular = case
    kind = CacheUpdate(axis, is_circular)
    cache, update, places = arrays(shape, axis, count, first)
    (defined,) = kind.evaluate([cache, update, places])
    # Element by element, from what the fields mean.
    expected = cache.copy()
    for index in np.ndindex(*update.shape):
        start = first[index[0]]
        start = start if is_circular else min(max(start, 0), shape[axis] - count)
        target = list(index)
        target[axis] = (start + index[axis]) % shape[axis]
        expected[tuple(target)] = update[index]
    np.testing.assert_array_equal(defined, expected)
    plan = check(kind, [cache, update, places], threads=2)
    # One memory for the cache and the result.
    memory = from_array(cache.reshape(-1).copy())
    compile_plan(plan)(memory, from_array(update.reshape(-1)), from_array(places), memory)
    np.testing.assert_array_equal(memory.numpy(), expected.reshape(-1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and mprotect")
def test_nothing_but_the_new_elements_is_written_in_place() -> None:
    """The other pages of the cache are write-protected: a kernel that copied it would crash."""
    page, count = mmap.PAGESIZE, mmap.PAGESIZE // 4
    position = count + 7
    types = [TensorType((1, 1, 4 * count, 1), "float32"), TensorType((1, 1, 1, 1), "float32")]
    tensors = [PlacedTensor.plain(kind) for kind in (*types, TensorType((1,), "int64"))]
    compiled = compile_plan(generated_plan(CacheUpdate(2), tensors, tensors[:1], 1))
    memory = mmap.mmap(-1, 4 * page)
    cache = np.frombuffer(memory, np.float32)
    shared = tvm().runtime.from_dlpack(cache)
    update, first = (from_array(np.array([v], t)) for v, t in ((3.5, "f4"), (position, "i8")))
    protect = ctypes.CDLL(None).mprotect
    address = cache.ctypes.data
    child = os.fork()
    if not child:
        for start, pages in ((0, 1), (2, 2)):
            place, size = ctypes.c_void_p(address + start * page), ctypes.c_size_t(pages * page)
            assert protect(place, size, mmap.PROT_READ) == 0
        compiled(shared, update, first, shared)
        os._exit(0 if cache[position] == 3.5 and np.count_nonzero(cache) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("update", [(1, 2, 9, 4), (1, 3, 1, 4), (1, 2, 1)])
def test_an_update_that_is_no_part_of_the_cache(update: tuple[int, ...]) -> None:
    types = [TensorType((1, 2, 8, 4), "float32"), TensorType(update, "float32")]
    with pytest.raises(WorkloadError, match="is no part of"):
        CacheUpdate(2).types([*types, TensorType((1,), "int64")])
