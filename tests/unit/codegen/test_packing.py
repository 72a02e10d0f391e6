"""Packing kernels against the layout maps, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.codegen.packing import Direction, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.index import IndexExpr
from cpembed.targets.cpu.estimate import element_cost
from cpembed.transform.program import PackedDimension, PackedOperand
from tests.unit.codegen.handwritten import expr


def operand(
    original: tuple[int, ...],
    dimensions: dict[str, int],
    source: tuple[IndexExpr, ...],
    dtype: str = "int8",
) -> PackedOperand:
    return PackedOperand(
        "I", dtype, original, tuple(PackedDimension(*d) for d in dimensions.items()), source, ()
    )


CASES = {
    "transpose": operand((3, 5), {"a": 5, "b": 3}, (expr(("b", 1)), expr(("a", 1)))),
    "halo": operand(
        (4, 6), {"h": 7, "w": 9}, (expr(("h", 1), constant=-1), expr(("w", 1), constant=-2))
    ),
    "channels-padded": operand(
        (2, 5, 3),
        {"h": 2, "w": 5, "o": 1, "z": 4},
        (expr(("h", 1)), expr(("w", 1)), expr(("o", 4), ("z", 1))),
    ),
    "im2col": operand((9,), {"q": 5, "s": 3}, (expr(("q", 2), ("s", 1), constant=-1),)),
    "digits": operand((4, 6), {"f": 24}, (expr(("f", 1, 6, None)), expr(("f", 1, 1, 6)))),
    "joined": operand(
        (3, 5, 4),
        {"h": 4, "f": 32},
        (expr(("h", 1)), expr(("f", 1, 4, None), constant=-1), expr(("f", 1, 1, 4))),
    ),
    "wide-rows": operand((3, 70), {"h": 3, "w": 128}, (expr(("h", 1)), expr(("w", 1)))),
    "one-element": operand((1,), {"z": 1}, (expr(("z", 1)),)),
    "scalar-per-lane": operand((2,), {"o": 2, "z": 4}, (expr(("o", 1), ("z", 0)),)),
    "floats": operand((5, 7), {"a": 7, "b": 8}, (expr(("b", 1)), expr(("a", 1))), "float32"),
    "bfloat16": operand((5, 7), {"a": 7, "b": 8}, (expr(("b", 1)), expr(("a", 1))), "bfloat16"),
}

for _dtype in ("uint8", "int32", "bfloat16"):
    for _channels, _width in ((20, 21), (16, 70), (12, 5), (33, 7), (64, 129)):
        # Channels first to channels last, with margins: (c, h, w) -> (h, w, c).
        CASES[f"transposed-{_dtype}-{_channels}-{_width}"] = operand(
            (_channels, 2, _width),
            {"h": 4, "w": _width + 4, "z": _channels + 3},
            (expr(("z", 1)), expr(("h", 1), constant=-1), expr(("w", 1), constant=-2)),
            _dtype,
        )
TRANSPOSED = [name for name in CASES if name.startswith("transposed")]


def move(layout: PackedOperand, direction: Direction, data: np.ndarray, size: int) -> np.ndarray:
    kernel = runtime.compile_plan(KernelPlan("packing", packing_source(layout, 2, direction)))
    target = runtime.empty(size, layout.dtype)
    kernel(runtime.from_array(data), target)
    return runtime.to_array(target, (size,))


def elements(layout: PackedOperand) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Packed and original index of every packed element that lies inside the original."""
    names = [dimension.name for dimension in layout.dimensions]
    copies = []
    for at in np.ndindex(*layout.shape):
        values = dict(zip(names, at, strict=True))
        index = tuple(int(e.evaluate(values)) for e in layout.source)
        if all(0 <= i < size for i, size in zip(index, layout.original_shape, strict=True)):
            copies.append((at, index))
    return copies


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_packing_follows_the_source_map_and_zeroes_the_rest(name: str) -> None:
    layout = CASES[name]
    count = int(np.prod(layout.original_shape))
    data = np.arange(1, count + 1).astype(numpy_dtype(layout.dtype)).reshape(layout.original_shape)
    expected = np.zeros(layout.shape, data.dtype)
    for at, index in elements(layout):
        expected[at] = data[index]
    packed = move(layout, Direction.PACK, data, layout.elements)
    assert np.array_equal(packed, runtime.bits(expected).reshape(-1))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name",
    [
        *("transpose", "channels-padded", "digits", "floats", "wide-rows"),
        *(name for name in TRANSPOSED if "bfloat16" not in name),
    ],
)
def test_unpacking_restores_every_element_and_drops_the_padding(name: str) -> None:
    layout = CASES[name]
    count = int(np.prod(layout.original_shape))
    data = np.arange(1, count + 1).astype(numpy_dtype(layout.dtype)).reshape(layout.original_shape)
    packed = np.full(layout.shape, 99, data.dtype)
    for at, index in elements(layout):
        packed[at] = data[index]
    assert np.array_equal(move(layout, Direction.UNPACK, packed, count), data.reshape(-1))


def test_a_joined_row_is_one_contiguous_copy() -> None:
    """Its digits make one index again, and its margins are the loop's range."""
    text = packing_source(CASES["joined"], 1, Direction.PACK)
    assert "for d1 in T.serial(4, 24):" in text
    assert "Original[" in text
    assert "%" not in text.split("Original[")[-1].split("]")[0]


def test_what_is_contiguous_takes_the_least_element_cost() -> None:
    rows, columns, digits = (
        element_cost(CASES[name]) for name in ("joined", "transpose", "digits")
    )
    assert rows == element_cost(CASES["halo"]) == element_cost(CASES["wide-rows"]) == digits == 1.0
    assert rows < columns
    cut = operand((4, 6), {"a": 5, "f": 6}, (expr(("f", 1, 2, None)), expr(("a", 1))))
    assert columns < element_cost(cut)


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("direction", Direction)
def test_transpositions_go_through_registers(name: str, direction: Direction) -> None:
    assert "T.Shuffle" in packing_source(CASES[name], 1, direction)
    assert 1.0 < element_cost(CASES[name]) < element_cost(CASES["transpose"])
