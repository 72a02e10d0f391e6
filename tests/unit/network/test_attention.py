"""Kernels of attention beside its definition, in tiles of chosen sizes and in a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.plan import storage_dtype
from cpembed.codegen.runtime import compile_plan, empty, from_array
from cpembed.driver.matching import network_units
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Attention, TensorType
from cpembed.graph.kinds.base import Array
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.dtypes import as_stored, numpy_dtype
from cpembed.network.attention import AttentionChoice
from cpembed.network.attention_costs import AttentionCosts
from cpembed.network.kernel_cache import Cache
from cpembed.network.operators import PlacedTensor
from cpembed.network.plan import Planning
from cpembed.network.product_kernels import ProductKernels
from cpembed.network.service import NetworkRequest, network
from cpembed.targets.registry import open_target

TARGET = "avx2_f32"
RANDOM = np.random.default_rng(5)


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def short(array: Array) -> Array:
    return array.astype(numpy_dtype("bfloat16"))


@cache
def products(target: str = TARGET) -> ProductKernels:
    """Kernels that all tests share, so that equal tiles are searched once."""
    return ProductKernels(network_units(target), Cache(None))


def computed(
    kind: Attention, arrays: Sequence[Array], tile: tuple[int, ...] | None = None, threads: int = 2
) -> Array:
    """The result of the kernel; ``tile`` are rows of a block, keys of a tile, and perhaps parts."""
    target = TARGET if kind.factors == "float32" else "avx2_bf16_outer"
    spec = load_hardware_spec(target)
    types = tuple(map(TensorType.of_array, arrays))
    choice = AttentionChoice(kind, types, products(target), threads)
    if tile is not None:
        sizes = dict(zip(("rows", "keys", "parts"), tile, strict=False))
        choice.__dict__["tiles"] = replace(choice.tiles, **sizes)
    (result,) = kind.types(types)
    inputs, output = [PlacedTensor.plain(t) for t in types], PlacedTensor.plain(result)
    kernel = choice.kernel(open_target(spec), inputs, [output])
    assert kernel.cost_us > 0
    buffers = [from_array(as_stored(array)) for array in arrays]
    stored = empty(result.elements, storage_dtype(kind.dtype))
    scratch = [empty(memory.elements, memory.dtype) for memory in kernel.planned.scratch]
    compile_plan(kernel.planned.plan)(*buffers, stored, *scratch)
    return stored.numpy().view(numpy_dtype(kind.dtype)).reshape(result.shape)


def check(kind: Attention, arrays: Sequence[Array], tile: tuple[int, ...] | None = None) -> None:
    (expected,) = kind.evaluate(arrays)
    actual = computed(kind, arrays, tile)
    assert actual.dtype == expected.dtype
    atol, rtol = 5e-6, 2e-5
    if kind.factors == "bfloat16":
        value = np.abs(arrays[2].astype(np.float64))
        atol = 2**-8 * float(value[np.isfinite(value)].max())
    if kind.dtype == "bfloat16":
        rtol = 2**-8
    wide = (actual.astype(np.float64), expected.astype(np.float64))
    np.testing.assert_allclose(*wide, atol=atol, rtol=rtol)


def test_one_tile_of_heads_first() -> None:
    check(Attention(0.25), [f(2, 3, 37, 16), f(2, 3, 41, 16), f(2, 3, 41, 24)])


def test_several_tiles_of_shared_heads_with_causal_rows_and_a_mask() -> None:
    """The last block of rows and the last tile of keys overlap the ones before."""
    axes = ("bshd", "bshd", "bshd", "bshd")
    kind = Attention(0.25, axes, masked=True, causal=9)
    mask = RANDOM.standard_normal((2, 1, 1, 50)).astype(np.float32)
    arrays = [f(2, 37, 4, 16), f(2, 50, 2, 16), f(2, 50, 2, 8), mask]
    check(kind, arrays, (16, 24))


def test_transposed_keys_and_a_boolean_mask() -> None:
    kind = Attention(0.25, ("bhsd", "bhds", "bhsd", "bshd"), masked=True, zero_rows=True)
    mask = RANDOM.random((1, 4, 20, 33)) < 0.5
    mask[0, 1, 3] = mask[0, :, 7] = False
    check(kind, [f(1, 4, 20, 16), f(1, 4, 16, 33), f(1, 4, 33, 16), mask], (8, 16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_with_masks_shared_heads_and_rows_without_keys(dtype: str) -> None:
    axes = ("bshd", "bshd", "bhsd", "bshd")
    kind = Attention(0.25, axes, masked=True, causal=9, factors="bfloat16", dtype=dtype)
    mask = np.where(RANDOM.random((2, 1, 37, 50)) < 0.8, 0.5, -np.inf).astype(np.float32)
    mask[0, :, 7] = -np.inf
    arrays = [short(f(2, 37, 4, 16)), short(f(2, 50, 2, 16)), short(f(2, 2, 50, 8)), mask]
    check(kind, arrays, (16, 24))
    check(replace(kind, zero_rows=True), arrays)


@pytest.mark.parametrize("tile", [None, (8, 16)])
def test_bfloat16_special_values(tile: tuple[int, int] | None) -> None:
    """Infinities and NaN pass through weights that are rounded."""
    query, key, value = short(f(1, 1, 24, 8)), short(f(1, 1, 40, 8)), short(f(1, 1, 40, 8))
    query[0, 0, 2, 3], query[0, 0, 4, 1] = np.nan, np.inf
    value[0, 0, 5, 2] = np.inf
    check(Attention(0.25, factors="bfloat16", dtype="bfloat16"), [query, key, value], tile)


def test_one_row_whose_heads_share_keys() -> None:
    kind = Attention(0.25, masked=True, causal=39)
    mask = RANDOM.standard_normal((1, 8, 1, 40)).astype(np.float32)
    check(kind, [f(1, 8, 1, 16), f(1, 2, 40, 16), f(1, 2, 40, 16), mask])


def test_capped_scores_and_excluded_ones_that_are_finite() -> None:
    kind = Attention(0.25, ("hsd",) * 4, masked=True, softcap=1.5, excluded=-1e4)
    mask = RANDOM.random((1, 18)) < 0.5
    check(kind, [f(3, 5, 8), f(3, 18, 8), f(3, 18, 8), mask])


@pytest.mark.parametrize("boolean", [True, False])
def test_tiles_that_a_mask_hides_are_not_read(boolean: bool) -> None:
    """Places of a cache behind the last token hold anything, here NaN."""
    arrays = [f(1, 2, 20, 8), f(1, 1, 70, 8), f(1, 1, 70, 16)]
    selected = np.zeros((1, 1, 20, 70), bool)
    selected[:, :, :, 17:30] = True
    # One row has a key of another tile.
    selected[:, :, 3, 33] = True
    arrays[1][:, :, 48:], arrays[2][:, :, 48:] = np.nan, np.inf
    mask = selected if boolean else np.where(selected, 0, -np.inf).astype(np.float32)
    check(Attention(0.25, masked=True), [*arrays, mask], (8, 16))
    # NaN is no exclusion.
    if not boolean:
        mask[0, 0, 4, 40] = np.nan
        check(Attention(0.25, masked=True), [*arrays, mask], (8, 16))


def test_keys_in_parts() -> None:
    """Parts of the keys are combined; causal rows leave some parts nothing."""
    arrays = [f(1, 2, 20, 8), f(1, 1, 70, 8), f(1, 1, 70, 16)]
    check(Attention(0.25), arrays, (8, 16, 2))
    check(Attention(0.25, causal=-3), arrays, (8, 16, 3))
    check(Attention(0.25, causal=-3, zero_rows=True), arrays, (8, 16, 2))
    mask = np.full((1, 1, 20, 70), -np.inf, np.float32)
    mask[:, :, 3:, 40:45] = 0
    check(Attention(0.25, masked=True), [*arrays, mask], (8, 16, 4))


def test_few_rows_read_a_long_cache_in_place_and_share_it_among_threads() -> None:
    kind = Attention(0.25, ("bhsd", "bhsd", "bhsd", "bhsd"))
    arrays = [f(1, 4, 1, 16), f(1, 1, 600, 16), f(1, 1, 600, 16)]
    types = tuple(map(TensorType.of_array, arrays))
    choice = AttentionChoice(kind, types, products(), 2)
    assert (choice.tiles.rows, choice.tiles.parts, choice.tiles.tasks) == (4, 2, 2)
    (result,) = kind.types(types)
    inputs, output = [PlacedTensor.plain(t) for t in types], PlacedTensor.plain(result)
    kernel = choice.kernel(open_target(choice.products.units.primary), inputs, [output])
    # Nothing is packed: there is room for scores and sums only.
    assert sum(memory.elements for memory in kernel.planned.scratch) < 600 * 16
    check(kind, arrays)


@pytest.mark.parametrize("factors", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows, shared", [(1, 4), (1, 1), (12, 1)])
def test_streamed_keys(factors: str, rows: int, shared: int) -> None:
    """Each key is read once: small tiles, whose last one overlaps, and a mask of places."""
    arrays = [f(2, 2 * shared, rows, 24), f(2, 2, 333, 24), f(2, 2, 333, 40)]
    if factors == "bfloat16":
        arrays = [short(array) for array in arrays]
    mask = np.zeros((2, 1, 1, 333), np.float32)
    mask[0, ..., 290:] = -np.inf
    types = tuple(map(TensorType.of_array, arrays))
    kind = Attention(0.25, factors=factors)
    choice = AttentionChoice(kind, types, products(), 1)
    assert choice.tiles.streams
    assert choice.tiles.tiles > 1
    check(kind, arrays)
    check(replace(kind, masked=True), [*arrays, mask])


def test_equal_shares_of_threads() -> None:
    """A single block is divided among all threads, as far as parts have enough keys."""
    for heads, keys, threads, parts in (
        (1, 4096, 8, 8), (8, 4096, 2, 1), (3, 4096, 2, 2), (1, 200, 8, 1), (5, 4096, 4, 4),
    ):  # fmt: skip
        shapes = ((1, heads, 1, 16), (1, heads, keys, 16), (1, heads, keys, 16))
        types = tuple(TensorType(shape, "float32") for shape in shapes)
        choice = AttentionChoice(Attention(0.25), types, products(), threads)
        assert (choice.tiles.parts, choice.tiles.tiles % parts) == (parts, 0)


def test_huge_scores_and_a_negative_scale() -> None:
    """Differences of huge scores are rounded apart; the largest one is the least product."""
    arrays = [1e6 * f(1, 1, 9, 8), 1e3 * f(1, 1, 40, 8), f(1, 1, 40, 8)]
    check(Attention(0.25), arrays, (4, 16))
    check(Attention(-0.25), [f(1, 1, 9, 8), f(1, 1, 40, 8), f(1, 1, 40, 8)], (4, 16))


def test_a_causal_row_without_keys() -> None:
    """A negative offset leaves the first rows nothing; whole tiles are skipped."""
    arrays = [f(1, 2, 40, 8), f(1, 2, 40, 8), f(1, 2, 40, 8)]
    check(Attention(0.25, causal=-17), arrays, (8, 16))
    check(Attention(0.25, causal=-17, zero_rows=True), arrays)


@pytest.mark.parametrize("tile", [None, (8, 16)])
def test_special_values(tile: tuple[int, int] | None) -> None:
    query, key, value = f(1, 1, 24, 8), f(1, 1, 40, 8), f(1, 1, 40, 8)
    query[0, 0, 2, 3], query[0, 0, 4, 1] = np.nan, np.inf
    query[0, 0, 9], key[0, 0, 30] = 0.0, 0.0
    kind = Attention(0.25)
    (expected,) = kind.evaluate([query, key, value])
    result = computed(kind, [query, key, value], tile)
    assert np.isnan(expected).any()
    np.testing.assert_allclose(result, expected, atol=5e-6, rtol=2e-5)
    # Of an infinite key, rows are NaN or the value alone.
    key[0, 0, 5] = np.inf
    query[:] = np.abs(query)
    query[0, 0, 7] = -1.0
    (expected,) = kind.evaluate([query, key, value])
    np.testing.assert_allclose(
        computed(kind, [query, key, value], tile), expected, atol=5e-6, rtol=2e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_random_attention(seed: int) -> None:
    random = np.random.default_rng(seed)

    def size(most: int) -> int:
        return int(random.integers(1, most + 1))

    b, h, g, rows, keys = size(2), size(3), size(3), size(70), size(90)
    k, d = 8 * size(4), 4 * size(8)
    orders = ["bhsd", "bshd", "bhds", "sbhd"]
    axes = tuple(orders[int(random.integers(4))] for _ in range(3))
    shapes = [(b, h * g, rows, k), (b, h, keys, k), (b, h, keys, d)]
    arrays = [
        np.ascontiguousarray(
            random.standard_normal(shape)
            .astype(np.float32)
            .transpose(["bhsd".index(axis) for axis in order])
        )
        for shape, order in zip(shapes, axes, strict=True)
    ]
    shape = [extent if random.random() < 0.5 else 1 for extent in (b, h * g, rows, keys)]
    masks: list[Array | None] = [
        None,
        random.random(shape) < 0.7,
        random.standard_normal(shape).astype(np.float32),
    ]
    mask = masks[seed % 3]
    kind = Attention(
        float(random.uniform(0.1, 0.5)),
        (*axes, orders[int(random.integers(2))]),
        masked=mask is not None,
        causal=int(random.integers(0, 20)) if random.random() < 0.5 else None,
        softcap=3.0 if random.random() < 0.2 else 0.0,
        zero_rows=bool(random.random() < 0.5),
    )
    tile = (min(size(24), rows if rows > 1 or g == 1 else g), min(size(48), keys))
    check(kind, [*arrays, *([] if mask is None else [mask])], tile if seed % 4 else None)


def test_a_slow_kernel_is_split_into_its_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates decide: the operators of their own compute the same."""
    monkeypatch.setattr(AttentionCosts, "total_us", lambda *_: 1e6)
    types = {name: TensorType((1, 2, 20, 8), "float32") for name in "qkv"}
    operator = Operator("attend", Attention(0.3, causal=0), ("q", "k", "v"), ("y",))
    graph = Graph("attention", types, ("y",), operators=(operator,))
    request = NetworkRequest(TARGET, planning=Planning(cache=Cache(tmp_path)), times=False)
    result = network(graph, request, {name: f(1, 2, 20, 8) for name in "qkv"})
    result.require()
    kinds = [row["kind"] for row in result.document["operators"]]
    assert kinds == ["product", "elementwise", "softmax", "product"]


def test_in_a_network(tmp_path: Path) -> None:
    """Twice the same attention, on a target of integers: its products are this machine's."""
    types = {name: TensorType((1, 2, 20, 8), "float32") for name in "qkv"}
    kind = Attention(0.3, causal=0)
    operators = (
        Operator("first", kind, ("q", "k", "v"), ("t",)),
        Operator("second", kind, ("t", "k", "v"), ("y",)),
    )
    graph = Graph("attention", types, ("y",), operators=operators)
    request = NetworkRequest("avx2_int8", planning=Planning(cache=Cache(tmp_path)), times=False)
    result = network(graph, request, {name: f(1, 2, 20, 8) for name in "qkv"})
    result.require()
    rows = result.document["operators"]
    assert [row["kind"] for row in rows] == ["attention", "attention"]
    assert all(row["verified"] and row["verified_with_special_values"] for row in rows)
    assert result.document["totals"]["products"] == 4
    assert rows[0]["macs"] == 2 * 2 * 20 * 20 * 8
