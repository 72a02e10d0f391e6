"""Kernels of pairs of convolutions beside both definitions, and pairs in networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.runtime import compile_plan, empty, from_array
from cpembed.driver.matching import network_units
from cpembed.frontends.products import Window, convolution
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import Elementwise, Input, Pool, Product
from cpembed.ir.dtypes import as_stored, as_typed, is_integer
from cpembed.ir.scalars import apply
from cpembed.network.build import prepared_and_named
from cpembed.network.convolution_methods import ProductLayouts
from cpembed.network.document import network_document
from cpembed.network.kernel_cache import Cache
from cpembed.network.layout import CandidateLayouts, Layout, residual_of
from cpembed.network.match import match
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.pairs import IMAGE, OUTPUT, RESIDUAL, Bands
from cpembed.network.pair_executions import ESTIMATE_MARGIN
from cpembed.network.pair_parts import ProductPart
from cpembed.network.pairs import PairChoice, PairLayouts, followers, obstacle, pairs_of, row_window
from cpembed.network.plan import Planning, plan_network
from cpembed.network.product_kernels import ProductKernels
from cpembed.network.service import NetworkRequest, network
from cpembed.targets.capabilities import host_times
from cpembed.targets.registry import open_target
from cpembed.targets.units import Units
from tests.random_networks import HARD_SWISH, RELU, RELU6, SILU, Network

pytest.importorskip("tvm")

ADD = apply("add", Input(0), Input(1))
UNITS = network_units("native")
HALVES = network_units("native", "bfloat16")


def layer(
    net: Network, x: str, filters: int, taps: int, *, stride: int = 1, dilation: int = 1,
    depthwise: bool = False, padded: bool = True,
) -> str:  # fmt: skip
    """A convolution with a bias; padded so that its size is kept but for the stride."""
    shape = net.values[x].shape
    groups = shape[1] if depthwise else 1
    axes, pad = len(shape) - 2, dilation * (taps // 2) if padded else 0
    window = Window(
        taps=(taps,) * axes,
        strides=(stride,) * axes,
        dilations=(dilation,) * axes,
        before=(pad,) * axes,
        after=(pad,) * axes,
    )
    weights = (filters, shape[1] // groups, *window.taps)
    form = convolution(shape, weights, window, groups=groups)
    y = net.add(form.product, x, net.weights(weights, 0))
    bias = net.constant(net.array((filters, *(1,) * axes), "float32"))
    return net.add(Elementwise(ADD, "float32"), y, bias)


def random_pair(seed: int, *, quantized: bool) -> Network:
    """A depthwise convolution and a pointwise one, the result of which may be added to."""
    net = Network(seed)
    channels, filters = (int(net.one_of((8, 16, 24, 40, 33))) for _ in range(2))
    height, width = (int(net.random.integers(5, 12)) for _ in range(2))
    shape = (int(net.random.integers(1, 3)), channels, height, width)

    def stored(x: str) -> str:
        return net.floats(net.quantize(x)) if quantized else x

    x = net.input(shape, net.one_of(("uint8", "int8")) if quantized else "float32")
    y = layer(
        net,
        net.floats(x) if quantized else x,
        channels,
        int(net.one_of((3, 5))),
        stride=int(net.one_of((1, 2))),
        dilation=int(net.one_of((1, 1, 2))),
        depthwise=True,
        padded=bool(net.random.integers(4)) or min(height, width) < 9,
    )
    # Functions whose last bits differ would make integers between both inexact.
    first = net.one_of((RELU, RELU6) if quantized else (RELU, RELU6, HARD_SWISH, SILU))
    z = layer(net, stored(net.elementwise(first, y)), filters, 1)
    if net.random.integers(2):
        z = net.elementwise(net.one_of((RELU, RELU6)), z)
    z = stored(z)
    if net.random.integers(2):
        residual = net.input(net.values[z].shape, "uint8" if quantized else "float32")
        z = net.elementwise(ADD, z, net.floats(residual) if quantized else residual)
        z = stored(z)
    return net


def pooled(seed: int, *, quantized: bool) -> Network:
    """A convolution, an activation and pooling with any window that fits."""
    net = Network(200 + seed)
    axes = int(net.one_of((2, 2, 2, 1, 3)))
    channels, filters = int(net.one_of((3, 8, 16))), int(net.one_of((8, 16, 24, 33, 48)))
    sizes = tuple(int(n) for n in net.random.integers(5, 12 if axes < 3 else 8, axes))
    x = net.input(
        (int(net.random.integers(1, 3)), channels, *sizes),
        net.one_of(("uint8", "int8")) if quantized else "float32",
    )
    y = layer(
        net,
        net.floats(x) if quantized else x,
        filters,
        int(net.one_of((1, 3))),
        stride=int(net.one_of((1, 1, 2))) if min(sizes) > 8 else 1,
    )
    y = net.elementwise(net.one_of((RELU, RELU6)), y)
    y = net.quantize(y) if quantized else y
    image = net.values[y].shape[2:]
    is_global = not net.random.integers(5)
    window = [size if is_global else int(net.one_of((1, 2, 3))) for size in image]
    # Padding is shorter than the window, as in other frameworks.
    before, after = (
        tuple(0 if is_global else int(net.random.integers(taps)) for taps in window) for _ in "ba"
    )
    dilation = tuple(
        int(net.one_of((1, 1, 2))) if 2 * (taps - 1) + 1 <= size + a + b else 1
        for taps, size, a, b in zip(window, image, before, after, strict=True)
    )
    strides = tuple(int(net.one_of((1, 2, 3))) for _ in image)
    operation = net.one_of(("max", "mean"))
    padding_counts = operation == "mean" and bool(net.random.integers(2))
    net.add(Pool(operation, tuple(window), strides, before, after, dilation, padding_counts), y)
    return net


def graph_of(net: Network, units: Units = UNITS) -> Graph:
    return prepared_and_named(net.graph(net.operators[-1].outputs[0]), units)


def in_layout(array: np.ndarray[Any, Any], layout: Layout, fill: int) -> np.ndarray[Any, Any]:
    """A flat buffer with a tensor's elements in a layout."""
    places = layout.elements_of(np.arange(layout.elements))
    buffer = np.full(layout.elements, fill, array.dtype)
    buffer[places.reshape(-1)] = array.reshape(-1)
    return buffer


def check(
    net: Network, *, rows: int, threads: int = 2, units: Units = UNITS, blocks: bool = False
) -> bool:
    """Compare the kernel of the only pair with both definitions; False if there is none.

    With ``blocks``, channels of the result in between and of the pair's lie in blocks of 16.
    """
    graph = graph_of(net, units)
    ((name, first),) = pairs_of(graph).items()
    second = next(o for o in graph.operators if o.name == name)
    producer, consumer = first.kind, second.kind
    assert isinstance(producer, Product)
    assert isinstance(consumer, Product | Pool)
    candidates, types = CandidateLayouts(graph), graph.types
    image, between = first.inputs[0], first.output
    placed = {
        tensor: Layout.plain(types[tensor].shape).channels_last()
        for tensor in (image, between, second.output, *residual_of(second))
    }
    if image in candidates.halos:
        placed[image] = placed[image].with_halo(candidates.halos[image])
    for tensor in (between, second.output) if blocks else ():
        placed[tensor] = Layout.plain(types[tensor].shape).blocked(16)
    # A result inside a halo, of which a kernel writes nothing.
    result = types[second.output]
    halo = (2, 1, 0)[: len(result.shape) - 2]
    placed[second.output] = placed[second.output].with_halo(halo)
    residual = residual_of(second)[0] if residual_of(second) else None
    layouts = PairLayouts(
        ProductLayouts(placed[image], placed[between]),
        ProductLayouts(
            placed[between], placed[second.output], placed[residual] if residual else None
        ),
    )
    target = open_target(units.primary)
    choice = PairChoice((producer, consumer), layouts, host_times(target), threads)
    samples, _, height = types[second.output].shape[:3]
    window = row_window(consumer, types[between])
    assert window is not None
    choice.__dict__["bands"] = Bands(samples, height, min(rows, height), window)
    kernels = [ProductKernels(units, Cache(None)).lookup(r) for r in choice.requests]
    if None in kernels:
        return False
    parts = [
        ProductPart.scheduled(band, kernel)
        for band, kernel in zip(choice.products, kernels, strict=True)
        if kernel is not None
    ]
    tensors = {IMAGE: image, OUTPUT: second.output} | ({RESIDUAL: residual} if residual else {})
    placements = {key: PlacedTensor(types[t], placed[t], 0) for key, t in tensors.items()}
    last = parts[1] if len(parts) > 1 else choice.pool_part(target, placements[OUTPUT])
    pair = choice.kernel((parts[0], last), placements)
    assert pair.cost_us > 0
    constants = [
        {
            part.band.computation.inputs[1].name: graph.constants[operator.inputs[1]].reshape(
                part.band.computation.inputs[1].shape
            ),
            **{
                vector: graph.constants[tensor].reshape(-1)
                for vector, tensor in zip(part.band.kind.vectors, operator.inputs[2:], strict=False)
            },
        }
        for part, operator in zip(parts, (first, second), strict=False)
    ]
    planned = pair.planned([*constants, *[{}] * (2 - len(constants))])
    values = {**graph.constants, **net.samples()}
    for operator in graph.operators:
        if operator is first:
            break
        values |= zip(
            operator.outputs, operator.kind.evaluate([values[n] for n in operator.inputs]),
            strict=True,
        )  # fmt: skip
    fill = {image: candidates.fills.get(image, 0), second.output: 7}
    buffers = {
        key: from_array(as_stored(in_layout(values[t], placed[t], fill.get(t, 0))))
        for key, t in tensors.items()
        if key != OUTPUT
    }
    untouched = in_layout(np.zeros(result.shape, result.dtype), placed[second.output], 7)
    buffers[OUTPUT] = from_array(as_stored(untouched))
    arguments = [
        buffers[key]
        if key in buffers
        else from_array(memory.contents)
        if memory.contents is not None
        else empty(memory.elements, memory.dtype)
        for key, memory in planned.memory.items()
    ]
    compile_plan(planned.plan)(*arguments)
    stored = as_typed(buffers[OUTPUT].numpy(), result.dtype)
    (middle,) = producer.evaluate([values[n] for n in first.inputs])
    (expected,) = consumer.evaluate([middle, *(values[n] for n in second.inputs[1:])])
    actual = placed[second.output].elements_of(stored)
    if is_integer(result.dtype):
        np.testing.assert_array_equal(actual, expected)
    else:
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        size = float(np.abs(expected[np.isfinite(expected)]).max())
        # Two results in between may be rounded to neighbours.
        tolerance = 2.0**-7 if units is HALVES else 5e-5
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * size)
    outside = in_layout(np.zeros(result.shape, result.dtype), placed[second.output], 1) == 1
    assert (stored[outside] == 7).all()
    return True


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(20))
def test_random_pairs_of_floats(seed: int) -> None:
    """Strides, dilations, activations, residuals; bands that do not divide overlap."""
    assert check(random_pair(seed, quantized=False), rows=1 + seed % 4)


@pytest.mark.slow
def test_windows_that_are_all_padding() -> None:
    """A last row of the result that is computed from none."""
    net, ones = Network(8), (1, 1)
    y = net.elementwise(RELU, layer(net, net.input((1, 8, 7, 6), "float32"), 16, 1))
    net.add(Pool("max", ones, ones, (0, 0), (1, 0), ones), y)
    assert check(net, rows=3)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["max", "mean"])
def test_pooling_of_channels_in_blocks(operation: str) -> None:
    net, ones = Network(7), (1, 1)
    y = net.elementwise(RELU, layer(net, net.input((2, 8, 11, 9), "float32"), 48, 3))
    net.add(Pool(operation, (3, 2), (2, 2), ones, ones, ones), y)
    assert check(net, rows=2, blocks=True)


@pytest.mark.slow
@pytest.mark.parametrize("make", [random_pair, pooled])
@pytest.mark.parametrize("seed", range(6))
def test_random_pairs_with_factors_of_bfloat16(seed: int, make: Callable[..., Network]) -> None:
    assert check(make(seed, quantized=False), rows=1 + seed % 4, units=HALVES)


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(20))
def test_random_pairs_of_integers_are_equal_bit_for_bit(seed: int) -> None:
    assert check(random_pair(100 + seed, quantized=True), rows=1 + seed % 4)


@pytest.mark.quick(4)
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_random_windows_of_pooling_after_a_convolution(seed: int, quantized: bool) -> None:
    """Windows, strides, paddings, dilations; one to three axes; all of an image."""
    assert check(pooled(seed, quantized=quantized), rows=1 + seed % 4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 16, 9, 7), (1, 24, 30), (1, 16, 5, 4, 6)])
def test_any_convolution_may_be_the_first_on_any_number_of_axes(shape: tuple[int, ...]) -> None:
    net = Network(len(shape))
    y = net.elementwise(RELU, layer(net, net.input(shape, "float32"), 24, 3))
    layer(net, y, 40, 1)
    assert check(net, rows=2)


def test_bands_fit_in_the_cache_and_share_work_equally() -> None:
    net = Network(0)
    x = net.input((1, 64, 56, 56), "float32")
    layer(net, layer(net, x, 64, 3, depthwise=True), 128, 1)
    graph = graph_of(net)
    first, second = graph.operators
    kinds = first.kind, second.kind
    assert isinstance(kinds[0], Product)
    assert isinstance(kinds[1], Product)
    image, output = (Layout.plain((1, c, 56, 56)).channels_last() for c in (64, 128))
    layouts = PairLayouts(
        ProductLayouts(image.with_halo((1, 1)), image), ProductLayouts(image, output)
    )
    times = replace(
        host_times(open_target(UNITS.primary)), cache_bytes=(32 << 10, 256 << 10, 4 << 20)
    )
    for threads in (1, 2, 8):
        bands = PairChoice((kinds[0], kinds[1]), layouts, times, threads).bands
        assert bands.rows * 2 * 64 * 58 * 4 <= 140 << 10
        assert bands.tasks % threads == 0


def paired(net: Network, folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The document of a network with all pairs that have kernels, and its operators by name."""
    graph = net.graph(net.operators[-1].outputs[0])
    request = NetworkRequest(planning=Planning(pairs="always", cache=Cache(folder)), times=False)
    document = network(graph, request, net.samples()).document
    return document, {o["name"]: o for o in document["operators"]}


def blocks(net: Network, *, quantized: bool) -> Network:
    """Two inverted residuals, the second with a stride, and a reader of what is in between."""

    def stored(x: str) -> str:
        return net.floats(net.quantize(x)) if quantized else x

    x = net.input((1, 16, 12, 10), "uint8" if quantized else "float32")
    x = net.floats(x) if quantized else x
    for stride, filters in ((1, 16), (2, 24)):
        wide = stored(net.elementwise(RELU6, layer(net, x, 48, 1)))
        deep = layer(net, wide, 48, 3, stride=stride, depthwise=True)
        y = stored(layer(net, stored(net.elementwise(RELU6, deep)), filters, 1))
        x = stored(net.elementwise(ADD, y, x)) if stride == 1 else y
    return net


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [False, True])
def test_a_network_of_pairs_is_verified_and_reports_both_products(
    quantized: bool, tmp_path: Path
) -> None:
    net = blocks(Network(3), quantized=quantized)
    document, operators = paired(net, tmp_path)
    seconds = [o for o in operators.values() if o["fused_with"] and o["predicted_us"]]
    assert len(seconds) == 2
    for second in seconds:
        first = operators[second["fused_with"]]
        assert first["fused_with"] == second["name"]
        assert first["predicted_us"] == 0
        assert not document["tensors"][first["outputs"][0]]["in_memory"]
    for operator in operators.values():
        assert operator["verified"]
        assert operator["verified_with_special_values"]
        assert operator["embedded_on"] or not operator["macs"]
    assert document["totals"]["products"] == document["totals"]["embedded"] == 6


@pytest.mark.slow
def test_a_pair_costs_no_more_than_its_products_and_match_agrees_with_the_plan(
    tmp_path: Path,
) -> None:
    net = blocks(Network(4), quantized=False)
    graph = net.graph(net.operators[-1].outputs[0])
    cache = Cache(tmp_path)
    prepared = prepared_and_named(graph, UNITS)
    costs = {
        pairs: plan_network(prepared, UNITS, Planning(pairs=pairs, cache=cache)).assignment.cost
        for pairs in ("auto", "always", "never")
    }
    assert costs["auto"] <= costs["never"] + 1e-6
    assert costs["auto"] <= costs["always"] * (ESTIMATE_MARGIN + 1e-3)
    (result,) = match(graph, ["native"]).targets
    assert result.products == result.embedded == 6


def pools(net: Network, *, quantized: bool) -> Network:
    """A stem with overlapping windows, a stage with 2x2 windows, and the mean of an image."""

    def stored(x: str) -> str:
        return net.floats(net.quantize(x)) if quantized else x

    x = net.input((2, 8, 21, 18), "uint8" if quantized else "float32")
    x = net.floats(x) if quantized else x
    ones = (1, 1)
    for filters, window in (
        (32, Pool("max", (3, 3), (2, 2), ones, ones, ones)),
        (48, Pool("max", (2, 2), (2, 2), (0, 0), (0, 0), ones)),
        (48, None),
    ):
        y = stored(net.elementwise(RELU, layer(net, x, filters, 3)))
        size = net.values[y].shape[2:]
        x = stored(net.add(window or Pool("mean", size, ones, (0, 0), (0, 0), ones), y))
    return net


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [False, True])
def test_a_network_with_pooling_is_verified_with_special_values(
    quantized: bool, tmp_path: Path
) -> None:
    net = pools(Network(6), quantized=quantized)
    document, operators = paired(net, tmp_path)
    fused = [o for o in operators.values() if o["kind"] == "pool" and o["fused_with"]]
    # Rows of four pixels may have no kernel that reads them in place.
    assert len(fused) >= 2
    for pool in fused:
        assert operators[pool["fused_with"]]["embedded_on"]
        assert not document["tensors"][pool["inputs"][0]]["in_memory"]
    for operator in operators.values():
        assert operator["verified"]
        assert operator["verified_with_special_values"]
        assert operator["not_fused"] in (None, "no kernel of a band in place")
    graph = prepared_and_named(net.graph(net.operators[-1].outputs[0]), UNITS)
    never = plan_network(graph, UNITS, Planning(pairs="never", cache=Cache(tmp_path)))
    reasons = {o["name"]: o["not_fused"] for o in network_document(never, None, None)["operators"]}
    assert all(reasons[pool["name"]] == "pairs are off" for pool in fused)
    (result,) = match(graph, ["native"], pairs="always").targets
    assert result.products == result.embedded == 3
    assert all(each.match and each.match.estimated for each in result.matched)


def test_what_is_no_pair() -> None:
    """A second reader, an output, a window of several rows, pooling over channels."""
    reasons = {
        "reader": "several readers",
        "output": "an output of the network",
        "window": "windows of several rows",
        "channels": "windows of several rows",
        "": None,
    }
    for case, reason in reasons.items():
        net = Network(5)
        x = net.input((1, 16, 8, 8), "float32")
        y = net.elementwise(SILU, layer(net, x, 16, 3, depthwise=True))
        if case == "channels":
            ones = (1, 1, 1)
            z = net.add(Pool("max", (2, 1, 1), ones, (0, 0, 0), (0, 0, 0), ones), y)
        else:
            z = layer(net, y, 16, 3 if case == "window" else 1)
        outputs = [z, *([y] if case == "output" else [])]
        if case == "reader":
            outputs.append(net.elementwise(RELU, y))
        graph = prepared_and_named(net.graph(*outputs), UNITS)
        first, second = next(followers(graph))
        text = obstacle(graph, first, second)
        assert (text and text.partition(":")[0]) == reason
        assert bool(pairs_of(graph)) == (reason is None)
        assert not pairs_of(graph, lambda first, second: False)
