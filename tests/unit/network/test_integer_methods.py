"""Winograd's method of bytes: generated transforms in place, bit for bit against the definition."""

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
from cpembed.frontends.products import Window, convolution
from cpembed.graph.kinds import Product
from cpembed.ir.dtypes import dtype_info
from cpembed.network.convolution_methods import ProductLayouts, tensor_memory
from cpembed.network.layout import Layout
from cpembed.network.method_choices import CostLimit, MethodChoices
from cpembed.targets.units import units_of
from cpembed.transform.methods.convolution import as_convolution
from cpembed.transform.methods.winograd import Winograd, ranges, winograd

BYTES = ("uint8", "int8")
WINDOW = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))


def _end(draw: random.Random, dtype: str) -> int:
    """A zero point, at an end of its type's range as often as not."""
    low, high = dtype_info(dtype).integer_range
    return draw.choice((low, high, draw.randint(low, high)))


def _epilogue(draw: random.Random) -> Epilogue | None:
    stored = draw.choice((*BYTES, "float32", None))
    if stored is None:
        return None
    if stored == "float32":
        return Epilogue(stored, scale=True, bias=draw.random() < 0.5)
    residual = None
    if draw.random() < 0.6:
        dtype = draw.choice(BYTES)
        residual = Residual(
            dtype,
            own_scale=draw.uniform(0.1, 2.0),
            scale=draw.uniform(0.1, 2.0),
            zero_point=_end(draw, dtype),
            stored_zero_point=_end(draw, stored),
            rounds=draw.random() < 0.5,
        )
    return Epilogue(
        stored,
        scale=True,
        bias=draw.random() < 0.7,
        relu=draw.random() < 0.5,
        zero_point=_end(draw, stored),
        residual=residual,
    )


def _product(draw: random.Random) -> tuple[Product, int]:
    """A random convolution of bytes with its groups."""
    groups, axes = draw.choice((1, 1, 2)), draw.choice((1, 2, 2, 2))
    taps = [draw.choice((1, 3, 3, 5)) for _ in range(axes)]
    taps[draw.randrange(axes)] = 3
    padding = [draw.randint(0, size // 2) for size in taps]
    ones = (1,) * axes
    window = Window(taps=taps, strides=ones, dilations=ones, before=padding, after=padding)
    sizes = [draw.randint(size + 1, 13) for size in taps]
    channels, filters = draw.choice((3, 8, 16, 32)), draw.choice((6, 16, 32))
    types = draw.choice(BYTES), draw.choice(BYTES)
    form = convolution(
        (draw.randint(1, 2), channels * groups, *sizes),
        (filters * groups, channels, *taps),
        window,
        groups=groups,
        dtypes=types,
    )
    product = Product(form.computation, form.shape, epilogue=_epilogue(draw))
    return replace(product, padding=_end(draw, types[0]) if any(padding) else 0), groups


def _bytes(draw: random.Random, numbers: np.random.Generator, dtype: str, shape: Any) -> Any:
    """Random numbers, or the ends of the type's range alone, which make the largest sums."""
    low, high = dtype_info(dtype).integer_range
    if draw.random() < 0.5:
        return numbers.choice([low, high], shape).astype(dtype)
    if draw.random() < 0.3:
        return np.full(shape, draw.choice((low, high)), dtype)
    return numbers.integers(low, high, shape, endpoint=True).astype(dtype)


def _inputs(draw: random.Random, kind: Product, seed: int) -> list[Any]:
    numbers = np.random.default_rng(seed)
    first, second = (_bytes(draw, numbers, o.dtype, o.shape) for o in kind.computation.inputs)
    shape = first.shape
    inputs = [first.reshape(shape[0], -1, *shape[len(shape) - len(kind.shape) + 2 :]), second]
    depth = float(np.prod(second.shape[-len(kind.shape) + 1 :]))
    for name in kind.vectors:
        if name == "@bias":
            vector = numbers.integers(-(2**20), 2**20, kind.channels).astype(np.int32)
        else:
            # So that results fill the range of bytes, and some exceed it.
            vector = (numbers.uniform(0.5, 2, kind.channels) / (40 * depth)).astype(np.float32)
        inputs.append(vector)
    if kind.epilogue is not None and kind.epilogue.residual is not None:
        inputs.append(_bytes(draw, numbers, kind.epilogue.residual.dtype, kind.shape))
    return inputs


def _layout(draw: random.Random, shape: tuple[int, ...], groups: int) -> Layout:
    layout = Layout.plain(shape).channels_last()
    if groups == 1 and shape[1] % 16 == 0 and draw.random() < 0.5:
        layout = Layout.plain(shape).blocked(16)
    # Mostly less than a filter reaches, so that transforms have to test pixels.
    return layout.with_halo([draw.choice((0, 0, 1, 2)) for _ in shape[2:]])


def _stored(layout: Layout, array: Any, fill: int) -> Any:
    """A flat buffer with an array in a layout, and one number in its halo."""
    buffer = np.full(layout.elements, fill, array.dtype)
    buffer[layout.elements_of(np.arange(layout.elements, dtype=np.int64))] = array
    return buffer


def _multiplied(v: Any, u: Any, dtype: str) -> Any:
    """Sums of products as the instruction makes them, which would wrap if they did not fit."""
    exact = v.astype(np.int64) @ u.astype(np.int64)
    return exact.astype(dtype)


def _computed(
    method: Winograd, kind: Product, inputs: list[Any], draw: random.Random, groups: int
) -> Any:
    """The result by generated transforms in place, and numpy for the product of matrices."""
    layouts = [_layout(draw, array.shape, groups) for array in (inputs[0], np.empty(kind.shape))]
    layouts.append(_layout(draw, kind.shape, groups))
    memories = [memory for layout in layouts if (memory := tensor_memory(layout, groups))]
    has_residual = kind.epilogue is not None and kind.epilogue.residual is not None
    placed = OutputMemory(memories[1], kind.epilogue, memories[2] if has_residual else None)
    size = draw.randint(1, method.tiles)
    blocks = TileBlocks(method.tiles, size, draw.choice((1, 2, 3)), draw.choice((32, 64)))
    tiles = ImageTiles.in_place(method, memories[0], kind.padding)
    before = runtime.compile_plan(image_transform(method, blocks, tiles))
    after = runtime.compile_plan(output_transform(method, blocks, placed))
    read = runtime.from_array(_stored(layouts[0], inputs[0], kind.padding))
    count = len(kind.vectors)
    further = [runtime.from_array(vector) for vector in inputs[2 : 2 + count]]
    if has_residual:
        further.append(runtime.from_array(_stored(layouts[2], inputs[-1], 99)))
    written = runtime.from_array(np.full(layouts[1].elements, 7, kind.dtype))
    u = method.weights_part(inputs[1].reshape(method.convolution.weights.shape))
    product = method.blocked(size)
    v_operand, m_operand = product.operand("V"), product.operand("M")
    for number in range(blocks.count):
        block = runtime.from_array(np.array([number], np.int32))
        v = runtime.empty(v_operand.elements, v_operand.dtype)
        before(read, block, v)
        m = _multiplied(runtime.to_array(v, v_operand.shape), u, m_operand.dtype)
        after(runtime.from_array(m), block, *further, written)
    buffer = runtime.to_array(written, (layouts[1].elements,)).copy()
    positions = layouts[1].elements_of(np.arange(layouts[1].elements, dtype=np.int64))
    assert (np.delete(buffer, positions.reshape(-1)) == 7).all()
    return buffer[positions]


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(60))
def test_transforms_of_bytes_are_exact(seed: int) -> None:
    draw = random.Random(seed)
    kind, groups = _product(draw)
    method = winograd(kind.computation, draw.choice((2, 2, 3, 4)), channels_last=True)
    assert method.is_exact
    inputs = _inputs(draw, kind, seed)
    actual = _computed(method, kind, inputs, draw, groups)
    (expected,) = kind.evaluate(inputs)
    assert actual.dtype == expected.dtype
    # The scale of a result is rounded once in either order of operations.
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize("first", BYTES)
@pytest.mark.parametrize("outputs", [2, 3, 4])
def test_no_value_exceeds_its_bound(first: str, outputs: int) -> None:
    form = convolution((1, 5, 12, 12), (4, 5, 3, 3), WINDOW, dtypes=(first, "int8"))
    method = winograd(form.computation, outputs, channels_last=True)
    bounds = ranges(as_convolution(form.computation), method.tilings)
    numbers = np.random.default_rng(outputs)
    low, high = dtype_info(first).integer_range
    largest = 0
    for _ in range(40):
        image = numbers.choice([low, high], (1, 5, 12, 12))
        weights = numbers.choice([-128, 127], (4, 5, 3, 3))
        v, u = (
            part.astype(np.int64)
            for part in (method.image_part(image), method.weights_part(weights))
        )
        assert np.abs(v).max() <= bounds.image
        assert np.abs(u).max() <= bounds.weights
        m = v @ u
        assert np.abs(m).max() <= bounds.products
        # On the way to the results: every sum of places by one window's transform or by both.
        places = m.reshape(*[t.form.multiplications for t in method.tilings], -1)
        rows = np.array(method.tilings[0].form.output, object).astype(np.int64)
        one = np.tensordot(rows, places, (1, 0))
        both = np.tensordot(rows, one, (1, 1))
        largest = max(largest, *(int(np.abs(each).max()) for each in (m, one, both)))
    assert largest <= bounds.results


def test_sums_of_512_channels_fit_the_32_bits_of_an_instruction() -> None:
    for channels, sums in ((512, "int32"), (2048, "int64")):
        form = convolution(
            (1, channels, 7, 7), (8, channels, 3, 3), WINDOW, dtypes=("uint8", "int8")
        )
        product = winograd(form.computation, 2).product
        assert [operand.dtype for operand in product.operands] == ["int16", "int16", sums]


def test_a_target_that_multiplies_bytes_alone_has_no_winograd_of_them() -> None:
    form = convolution((1, 32, 14, 14), (32, 32, 3, 3), WINDOW, dtypes=("uint8", "int8"))
    kind = form.product
    layouts = [ProductLayouts(*(Layout.plain(s).channels_last() for s in 2 * [form.shape]))]
    limit = CostLimit(own_us=1e6, rate=5e4)
    names = {
        target: {
            method.name
            for method in MethodChoices(units_of(hardware_spec(target))).candidates(
                kind, layouts, limit
            )
        }
        for target in ("avx2_int8", "avx2_int16")
    }
    # Four outputs a tile need 32 bits, which it does not multiply.
    assert names == {"avx2_int8": set(), "avx2_int16": {"winograd_2x2"}}
