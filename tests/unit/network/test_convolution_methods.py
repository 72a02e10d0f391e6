"""Methods of a network's convolutions: memory of layouts, transforms in place, errors."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.codegen.method_layouts import ImageTiles
from cpembed.codegen.methods import OutputMemory, TileBlocks, image_transform, output_transform
from cpembed.driver.named import hardware_spec
from cpembed.frontends.products import Window, convolution, transposed_convolution
from cpembed.graph.kinds import Product
from cpembed.network.convolution_methods import ProductLayouts, one_tap, tensor_memory
from cpembed.network.layout import Layout
from cpembed.network.method_choices import CostLimit, MethodChoices, suits
from cpembed.network.method_error import (
    MethodError,
    defined_in_float64,
    method_error,
    reached_by_special_values,
)
from cpembed.targets.units import units_of
from cpembed.transform.methods.convolution import explicit
from cpembed.transform.methods.error_growth import MOST_GROWTH, error_growth
from cpembed.transform.methods.winograd import Winograd, winograd


def _product(
    draw: random.Random, *, epilogue: bool = True, groups: int | None = None, axes: int = 2
) -> tuple[Product, int]:
    """A random convolution of floats with its groups."""
    groups = groups or draw.choice((1, 1, 2))
    samples, channels, filters = draw.randint(1, 2), draw.choice((3, 8, 16, 32)), 16
    taps = [draw.choice((1, 3, 3, 5)) for _ in range(axes)]
    taps[draw.randrange(axes)] = 3
    padding = [draw.randint(0, size // 2) for size in taps]
    window = Window(
        taps=taps, strides=(1,) * axes, dilations=(1,) * axes, before=padding, after=padding
    )
    sizes = [draw.randint(size + 1, 13) for size in taps]
    if draw.random() < 0.2:
        # A filter that is read backwards, and stored with the filters last.
        shapes = (samples, channels * groups, *sizes), (channels * groups, filters, *taps)
        form = transposed_convolution(*shapes, window, groups=groups)
    else:
        shapes = (samples, channels * groups, *sizes), (filters * groups, channels, *taps)
        form = convolution(*shapes, window, groups=groups)
    steps = None
    if epilogue:
        residual = Residual("float32", relu=draw.random() < 0.5) if draw.random() < 0.6 else None
        steps = Epilogue(
            "float32",
            scale=draw.random() < 0.5,
            bias=draw.random() < 0.7,
            relu=draw.random() < 0.5,
            residual=residual,
        )
    return Product(form.computation, form.shape, epilogue=steps), groups


def _layout(draw: random.Random, shape: tuple[int, ...], groups: int) -> Layout:
    layout = Layout.plain(shape).channels_last()
    if groups == 1 and shape[1] % 16 == 0 and draw.random() < 0.5:
        layout = Layout.plain(shape).blocked(16)
    if draw.random() < 0.5:
        layout = layout.with_halo([draw.randint(0, 2) for _ in shape[2:]])
    return layout


def _inputs(kind: Product, generator: np.random.Generator) -> list[Any]:
    first, second = (
        generator.standard_normal(o.shape).astype(np.float32) for o in kind.computation.inputs
    )
    shape = kind.computation.inputs[0].shape
    groups = len(shape) - len(kind.shape)
    first = first.reshape(shape[0], -1, *shape[2 + groups :])
    vectors = [generator.standard_normal(kind.channels).astype(np.float32) for _ in kind.vectors]
    residual = []
    if kind.epilogue is not None and kind.epilogue.residual is not None:
        residual = [generator.standard_normal(kind.shape).astype(np.float32)]
    return [first, second, *vectors, *residual]


def _stored(layout: Layout, array: Any) -> Any:
    """A flat buffer with an array in a layout, and zeros in its halo."""
    positions = layout.elements_of(np.arange(layout.elements, dtype=np.int64))
    buffer = np.zeros(layout.elements, array.dtype)
    buffer[positions] = array
    return buffer


def _computed(
    method: Winograd,
    kind: Product,
    inputs: list[Any],
    layouts: list[Layout],
    blocks: TileBlocks,
    groups: int,
) -> Any:
    """The result by generated transforms in place, and numpy for the product of matrices."""
    image, output, residual = layouts
    count = len(kind.vectors)
    memories = [memory for layout in layouts if (memory := tensor_memory(layout, groups))]
    assert len(memories) == len(layouts)
    has_residual = kind.epilogue is not None and kind.epilogue.residual is not None
    placed = OutputMemory(memories[1], kind.epilogue, memories[2] if has_residual else None)
    before = runtime.compile_plan(
        image_transform(method, blocks, ImageTiles.in_place(method, memories[0]))
    )
    after = runtime.compile_plan(output_transform(method, blocks, placed))
    read = runtime.from_array(_stored(image, inputs[0]))
    further = [runtime.from_array(vector) for vector in inputs[2 : 2 + count]]
    further += [runtime.from_array(_stored(residual, inputs[-1]))] if has_residual else []
    # What is no result stays as it was: the halo.
    written = runtime.from_array(np.full(output.elements, 7, np.float32))
    weights = inputs[1].reshape(method.convolution.weights.shape).astype(np.float64)
    u = method.weights_part(weights)
    product = method.blocked(blocks.size)
    for number in range(blocks.count):
        block = runtime.from_array(np.array([number], np.int32))
        v = runtime.empty(product.operand("V").elements, "float32")
        before(read, block, v)
        m = runtime.to_array(v, product.operand("V").shape) @ u
        after(runtime.from_array(m), block, *further, written)
    found = runtime.to_array(written, (output.elements,)).copy()
    positions = output.elements_of(np.arange(output.elements, dtype=np.int64))
    assert (np.delete(found, positions.reshape(-1)) == 7).all()
    return found[positions]


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(40))
def test_transforms_read_and_write_tensors_where_they_lie(seed: int) -> None:
    draw = random.Random(seed)
    kind, groups = _product(draw, axes=draw.choice((1, 2, 2, 2)))
    tiles = draw.choice((2, 3, 4))
    method = winograd(kind.computation, tiles, channels_last=True)
    inputs = _inputs(kind, np.random.default_rng(seed))
    layouts = [_layout(draw, array.shape, groups) for array in (inputs[0], np.empty(kind.shape))]
    # A residual lies in an order of its own, perhaps with another halo.
    layouts.append(_layout(draw, kind.shape, groups))
    size = draw.randint(1, method.tiles)
    blocks = TileBlocks(method.tiles, size, draw.choice((1, 2, 3, 8)), draw.choice((32, 64)))
    found = _computed(method, kind, inputs, layouts, blocks, groups)
    (expected,) = kind.evaluate(inputs)
    assert np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


def test_layouts_whose_channels_are_no_neighbours_have_no_transforms() -> None:
    image = Layout.plain((2, 32, 6, 5))
    assert tensor_memory(image, 1) is None
    assert tensor_memory(image.blocked(16), 2) is None
    assert tensor_memory(image.blocked(16), 1) is not None
    assert tensor_memory(image.channels_last(), 2) is not None


@pytest.mark.parametrize("seed", range(12))
def test_windows_side_by_side_are_a_convolution_of_one_tap(seed: int) -> None:
    draw = random.Random(seed)
    kind, _ = _product(draw)
    strides = tuple(draw.choice((1, 2)) for _ in range(2))
    window = Window(taps=(3, 2), strides=strides, dilations=(1, 2), before=(1, 0), after=(0, 1))
    groups = draw.choice((1, 2))
    form = convolution((2, 4 * groups, 9, 8), (6 * groups, 4, 3, 2), window, groups=groups)
    kind = replace(kind, computation=form.computation, shape=form.shape)
    inputs = _inputs(kind, np.random.default_rng(seed))
    product, layout = one_tap(kind)
    method = explicit(kind.computation, channels_last=True)
    first = inputs[0].reshape(kind.computation.inputs[0].shape)
    second = inputs[1].reshape(kind.computation.inputs[1].shape)
    v = method.image_part(first)
    # [g, n, p, q, c] as [n, g, c, p, q].
    v = v.reshape(groups, 2, *form.shape[2:], -1).transpose(1, 0, 4, 2, 3)
    u = method.weights_part(second).reshape(groups, -1, 6).swapaxes(1, 2)
    (found,) = product.evaluate([v.reshape(layout.shape), np.ascontiguousarray(u), *inputs[2:]])
    (expected,) = kind.evaluate(inputs)
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("channels", [2, 16, 100])
def test_the_expected_growth_of_the_error_is_what_happens(outputs: int, channels: int) -> None:
    window = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))
    form = convolution((1, channels, 16, 16), (16, channels, 3, 3), window)
    kind = Product(form.computation, form.shape)
    method = winograd(kind.computation, outputs, channels_last=True)
    inputs = _inputs(kind, np.random.default_rng(outputs))
    actual = method.computed(
        dict(zip("IW", (inputs[0], inputs[1].astype(np.float64)), strict=True)), _in_turn
    )
    error = method_error(kind, inputs, actual)
    assert error is not None
    # The expectation is not less than what happens, and not far above it.
    assert error.growth <= 1.15 * error_growth(method)
    assert error.growth >= 0.4 * error_growth(method)


def _in_turn(v: Any, u: Any) -> Any:
    """A product of matrices whose sums are made one term after the other."""
    total = np.zeros((*v.shape[:2], u.shape[2]), np.float32)
    for term in range(v.shape[2]):
        exact = v[:, :, term, None].astype(np.float64) * u[:, None, term]
        total = (total + exact).astype(np.float32)
    return total


def test_tiles_of_four_need_enough_channels() -> None:
    window = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))
    growths: list[float] = []
    for channels in (4, 64):
        form = convolution((1, channels, 8, 8), (8, channels, 3, 3), window)
        growths.append(error_growth(winograd(form.computation, 4, channels_last=True)))
    assert growths[0] > MOST_GROWTH > growths[1]


def test_a_wrong_result_is_no_rounding_error() -> None:
    kind, _ = _product(random.Random(1), epilogue=False, groups=1)
    inputs = _inputs(kind, np.random.default_rng(1))
    exact = defined_in_float64(kind, inputs)
    good = method_error(kind, inputs, exact)
    bad = method_error(kind, inputs, exact * np.float32(1 + 1e-4))
    assert good is not None
    assert bad is not None
    assert good.is_within_limit
    assert not bad.is_within_limit
    assert MethodError(1.0, 0.0).growth == np.inf


def test_results_that_share_a_tile_with_a_special_value() -> None:
    window = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))
    form = convolution((1, 4, 12, 12), (4, 4, 3, 3), window)
    kind = Product(form.computation, form.shape)
    method = winograd(kind.computation, 4, channels_last=True)
    inputs = _inputs(kind, np.random.default_rng(3))
    inputs[0][0, 2, 6, 6] = np.nan
    reached = reached_by_special_values(method, kind, inputs)
    # The tile of outputs 4 to 7 reads pixels 3 to 8; its neighbours read up to 4, and from 7 on.
    expected = np.zeros(kind.shape, bool)
    expected[:, :, 4:8, 4:8] = True
    assert (reached == expected).all()
    assert np.isnan(kind.evaluate(inputs)[0][reached]).any()


def test_products_without_methods() -> None:
    kind, _ = _product(random.Random(2), groups=1)
    assert suits(kind)
    window = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))
    depthwise = convolution((1, 8, 8, 8), (8, 1, 3, 3), window, groups=8)
    one = replace(window, taps=(1, 1), before=(0, 0), after=(0, 0))
    single = convolution((1, 8, 8, 8), (8, 8, 1, 1), one)
    words = convolution((1, 8, 8, 8), (8, 8, 3, 3), window, dtypes=("int16", "int8"))
    for form in (depthwise, single, words):
        assert not suits(form.product)
    integers = convolution((1, 8, 8, 8), (8, 8, 3, 3), window, dtypes=("uint8", "int8"))
    assert suits(integers.product)


def test_a_method_has_to_be_able_to_pay() -> None:
    limit = CostLimit(own_us=100.0, rate=1000.0)
    assert limit.admits(20.0, 50_000)
    assert not limit.admits(101.0, 0)
    assert not limit.admits(20.0, 120_000)


def test_tiles_that_are_sure_to_be_slower_are_not_searched() -> None:
    units = units_of(hardware_spec("avx2_f32"))
    window = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))
    names = {}
    for size in (56, 14):
        form = convolution((1, 64, size, size), (64, 64, 3, 3), window)
        kind, macs = form.product, form.computation.macs
        layouts = [ProductLayouts(*(Layout.plain(s).channels_last() for s in 2 * [form.shape]))]
        candidates = MethodChoices(units).candidates(kind, layouts, CostLimit(macs / 5e4, 5e4))
        names[size] = {method.name for method in candidates}
        assert not list(MethodChoices(units, "implicit").candidates(kind, layouts, CostLimit(1, 1)))
    # 14 outputs are no whole number of tiles of four.
    assert names == {56: {"winograd_4x4"}, 14: {"winograd_2x2", "winograd_4x4"}}
