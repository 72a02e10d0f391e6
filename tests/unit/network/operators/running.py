"""Generated kernels against the definition of their kind: operands placed by brute force, buffers
whose other elements hold a mark that nothing may touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.runtime import compile_plan, from_array
from cpembed.graph.kinds import Kind, TensorType
from cpembed.network.layout import Layout
from cpembed.network.operators import PlacedTensor, generated_plan

Array = NDArray[Any]
MARK = 77
"""What lies in memory outside a tensor."""


def places(layout: Layout) -> Array:
    """The place of every element, index by index, from what the fields of a layout mean."""
    physical = layout.physical_shape
    numbers = np.arange(int(np.prod(physical, dtype=np.int64))).reshape(physical)
    found = np.zeros(layout.shape, np.int64)
    for index in np.ndindex(*layout.shape):
        moved = [i + halo for i, halo in zip(index, layout.halo, strict=True)]
        inside: tuple[int, ...] = ()
        if layout.block > 1:
            moved[1], rest = divmod(moved[1], layout.block)
            inside = (rest,)
        found[index] = numbers[(*(moved[axis] for axis in layout.order), *inside)]
    return found


def memory(array: Array, placed: PlacedTensor) -> Array:
    """The flat buffer of a tensor, with the mark everywhere else."""
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    elif array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    assert str(array.dtype) == placed.storage_dtype
    buffer = np.full(max(1, placed.layout.elements), MARK, array.dtype)
    buffer[places(placed.layout).reshape(-1)] = array.reshape(-1)
    return buffer


def placed(array: Array, layout: Layout | None = None) -> PlacedTensor:
    return PlacedTensor(TensorType.of_array(array), layout or Layout.plain(array.shape))


def check(
    kind: Kind,
    arrays: Sequence[Array],
    layouts: Sequence[Layout | None] = (),
    stored: Layout | None = None,
    threads: int = 1,
    tolerance: float = 0.0,
) -> KernelPlan:
    """Run an operator's kernel and compare all of every output's buffer with the definition's."""
    layouts = [*layouts, *[None] * (len(arrays) - len(layouts))]
    inputs = [placed(array, layout) for array, layout in zip(arrays, layouts, strict=True)]
    wanted = kind.evaluate(arrays)
    outputs = [placed(w, stored if n == 0 else None) for n, w in enumerate(wanted)]
    plan = generated_plan(kind, inputs, outputs, threads)
    compare(plan, arrays, inputs, wanted, outputs, tolerance)
    return plan


def compare(
    plan: KernelPlan,
    arrays: Sequence[Array],
    inputs: Sequence[PlacedTensor],
    wanted: Sequence[Array],
    outputs: Sequence[PlacedTensor],
    tolerance: float = 0.0,
) -> None:
    buffers = [from_array(memory(a, p)) for a, p in zip(arrays, inputs, strict=True)]
    results = [
        from_array(np.full(max(1, p.layout.elements), MARK).astype(p.storage_dtype))
        for p in outputs
    ]
    compile_plan(plan)(*buffers, *results)
    for array, where, result in zip(wanted, outputs, results, strict=True):
        found, expected = result.numpy(), memory(array, where)
        outside = np.ones(found.size, np.bool_)
        outside[places(where.layout).reshape(-1)] = False
        assert (found[outside] == MARK).all(), f"{plan.backend} writes outside the tensor"
        if tolerance:
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(found, expected)


def image_layouts(shape: Sequence[int]) -> list[Layout]:
    """Row-major, channels last and in blocks, each with a halo and without."""
    plain = Layout.plain(shape)
    found = [plain, plain.channels_last()]
    found += [plain.blocked(block) for block in (4, 8, 16) if shape[1] % block == 0]
    widths = [(1, 2), (2, 0), (1, 1), (0, 1), (2, 2)]
    return found + [layout.with_halo(widths[k]) for k, layout in enumerate(found)]


def random_array(generator: np.random.Generator, dtype: str, shape: Sequence[int]) -> Array:
    """Values that use all of a small type and part of a large one."""
    if dtype == "bool":
        return generator.random(shape) < 0.5
    if dtype in ("float16", "float32", "float64"):
        return (generator.normal(size=shape) * 20).astype(dtype)
    if dtype == "bfloat16":
        import ml_dtypes

        return (generator.normal(size=shape) * 20).astype(ml_dtypes.bfloat16)
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -1000), min(limits.max, 1000)
    return generator.integers(low, high, shape, endpoint=True).astype(dtype)
