"""Graphs as functions of sizes, for tests of the relation between two sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from cpembed.frontends.builder import Builder
from cpembed.frontends.loops import LoopBody
from cpembed.graph import kinds
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, TensorType
from cpembed.workloads.naming import parse_workload

Maker = Callable[[Mapping[str, int]], Graph]


FORMAT = kinds.GroupedFormat(8, 32, 4, 16)
WEIGHTS = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def product(text: str, **sizes: int) -> kinds.Product:
    words = [text, *(f"{name}={size}" for name, size in sizes.items())]
    workload = parse_workload([*words, "dtype=float32"])
    return kinds.Product(workload, workload.output.shape)


def made(sizes: Mapping[str, int], *shape: int, dtype: str = "float32") -> tuple[Builder, str]:
    builder = Builder("net")
    return builder, builder.input("x", TensorType(tuple(shape), dtype))


def of(*shape: int | str) -> Callable[[kinds.Kind], Maker]:
    """A graph of one operator on an input whose axes are numbers or symbols."""

    def maker(kind: kinds.Kind) -> Maker:
        def graph(sizes: Mapping[str, int]) -> Graph:
            builder, x = made(sizes, *(sizes[n] if isinstance(n, str) else n for n in shape))
            return builder.graph({"y": builder.add(kind, [x], "op")})

        return graph

    return maker


def attention(sizes: Mapping[str, int]) -> Graph:
    """Scores of each pair of rows, softmax, and the weighted sum of the rows."""
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s, 8)
    heads = builder.add(kinds.Reshape((b, s, 2, 4)), [x], "heads")
    q = builder.add(kinds.Transpose((0, 2, 1, 3)), [heads], "q")
    text = "C[b,h,m,n] += A[b,h,m,k] * B[b,h,n,k]"
    scores = builder.add(product(text, b=b, h=2, m=s, n=s, k=4), [q, q], "scores")
    weights = builder.add(kinds.Softmax(3), [scores], "softmax")
    text = "C[b,h,m,n] += A[b,h,m,k] * B[b,h,k,n]"
    mixed = builder.add(product(text, b=b, h=2, m=s, n=4, k=s), [weights, q], "mixed")
    back = builder.add(kinds.Transpose((0, 2, 1, 3)), [mixed], "back")
    return builder.graph({"y": builder.add(kinds.Reshape((b * s, 8)), [back], "rows")})


def convolution(sizes: Mapping[str, int]) -> Graph:
    builder, x = made(sizes, sizes["b"], 4, sizes["s"], 1)
    image = builder.add(kinds.Elementwise(Apply("exp", (Input(0),)), "float32"), [x], "exp")
    weights = builder.constant(WEIGHTS[:8, :12].reshape(8, 4, 3, 1).copy())
    kind = product("conv2d", n=sizes["b"], c=4, h=sizes["s"], w=1, k=8, r=3, s=1, pad=1)
    return builder.graph({"y": builder.add(kind, [image, weights], "conv")})


def positions(sizes: Mapping[str, int]) -> Graph:
    builder, x = made(sizes, sizes["b"], sizes["s"], 16)
    table = builder.constant(WEIGHTS[: sizes["s"], :16].copy())
    added = Elementwise(Apply("add", (Input(0), Input(1))), "float32")
    return builder.graph({"y": builder.add(added, [x, table], "add")})


def prefixed(sizes: Mapping[str, int]) -> Graph:
    """A token before all others, and its results alone."""
    builder, x = made(sizes, sizes["b"], sizes["s"], 4)
    token = builder.constant(np.broadcast_to(WEIGHTS[:1, :4], (sizes["b"], 1, 4)).copy())
    joined = builder.add(kinds.Concat(1), [token, x], "concat")
    total = builder.add(kinds.Reduce("mean", (1,), False), [joined], "mean")
    first = kinds.Slice((0, 0, 0), (sizes["b"], 2, 4), (1, 1, 1))
    return builder.graph({"y": total, "z": builder.add(first, [joined], "slice")})


def quantized(sizes: Mapping[str, int]) -> Graph:
    """Integers between softmax and product, whose zero is that of the filling."""
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s, s)
    y = builder.add(kinds.Softmax(2), [x], "softmax")
    y = builder.add(kinds.Quantize((1 / 255,), (3,), "uint8"), [y], "q")
    y = builder.add(kinds.Dequantize((1 / 255,), (3,)), [y], "d")
    v = builder.add(kinds.Quantize((0.02,), (0,), "int8"), [x], "vq")
    v = builder.add(kinds.Dequantize((0.02,), (0,)), [v], "vd")
    text = "C[b,m,n] += A[b,m,k] * B[b,k,n]"
    return builder.graph({"y": builder.add(product(text, b=b, m=s, n=s, k=s), [y, v], "p")})


def packed(builder: Builder) -> list[str]:
    codes = np.random.default_rng(3).integers(0, 16, (8, 32)).astype(np.uint8)
    scales = np.abs(WEIGHTS[:8, :2]) + np.float32(0.01)
    arrays = (FORMAT.packed(codes), FORMAT.tiled(scales))
    return [builder.constant(array) for array in arrays]


def weight_only(sizes: Mapping[str, int]) -> Graph:
    """A product of rows and packed weights, and the same on integers of groups."""
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s, 32)
    weights = packed(builder)
    y = builder.add(kinds.GroupedProduct((b, s, 8), FORMAT, 8.0), [x, *weights], "floats")
    rounded = builder.add_all(kinds.GroupQuantize(32, 16, 16), [x], "groups")
    product = kinds.GroupedProduct((b, s, 8), FORMAT, 8.0, integers=True)
    return builder.graph({"y": y, "z": builder.add(product, [*rounded, *weights], "integers")})


def embedded(sizes: Mapping[str, int]) -> Graph:
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s)
    places = builder.add(Elementwise(Apply("abs", (Input(0),)), "int32"), [x], "places")
    kind = kinds.GroupedGather((b, s, 32), FORMAT, 8.0)
    return builder.graph({"y": builder.add(kind, [*packed(builder), places], "rows")})


def scattered(sizes: Mapping[str, int]) -> Graph:
    """Rows that replace those of a table; each goes where its first element says."""
    builder, x = made(sizes, sizes["s"], 3)
    first = builder.add(kinds.Slice((0, 0), (sizes["s"], 1), (1, 1)), [x], "first")
    flat = builder.add(kinds.Reshape((sizes["s"],)), [first], "flat")
    places = builder.add(Elementwise(Apply("abs", (Input(0),)), "int64"), [flat], "places")
    table = builder.constant(WEIGHTS[:4, :3].copy())
    return builder.graph({"y": builder.add(kinds.Scatter(), [table, places, x], "set")})


def cached(sizes: Mapping[str, int]) -> Graph:
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s, 3, 2)
    new = builder.add(kinds.Slice((0, 0, 0, 0), (b, s, 1, 2), (1, 1, 1, 1)), [x], "new")
    places = builder.constant(np.full(b, 1, np.int64))
    return builder.graph({"y": builder.add(kinds.CacheUpdate(2), [x, new, places], "update")})


def ordered(sizes: Mapping[str, int], *, count: int, descending: bool) -> Graph:
    """The first elements of each line, or all of them for a count of 0."""
    builder, x = made(sizes, sizes["b"], sizes["s"])
    kind = kinds.Sort(1, count or sizes["s"], descending)
    values, places = builder.add_all(kind, [x], "sort")
    return builder.graph({"y": values, "z": places})


def dynamic(sizes: Mapping[str, int]) -> Graph:
    builder, x = made(sizes, sizes["b"], sizes["s"])
    y, _, _ = builder.add_all(kinds.DynamicQuantize(), [x], "op")
    return builder.graph({"y": y})


def recurrent(sizes: Mapping[str, int], *, backwards: bool, running: bool = False) -> Graph:
    """``h = tanh(x[t] W + h V)`` of each step, and the last one; perhaps a mean of the steps."""
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, s, b, 4)
    start = builder.constant(np.zeros((b, 3), np.float32))
    loop = LoopBody(builder, "loop", s)
    h, part = loop.state(start), loop.slice(x, backwards)
    text = "C[b,n] += A[b,k] * B[k,n]"
    sums = loop.builder.add(
        product(text, b=b, n=3, k=4), [part, loop.builder.constant(WEIGHTS[:4, :3].copy())], "x"
    )
    old = loop.builder.add(
        product(text, b=b, n=3, k=3), [h, loop.builder.constant(WEIGHTS[4:7, :3].copy())], "h"
    )
    tanh = Elementwise(Apply("tanh", (Apply("add", (Input(0), Input(1))),)), "float32")
    new = loop.builder.add(tanh, [sums, old], "tanh")
    (last,), (steps,) = loop.emit([new], [(new, backwards)])
    if running:
        steps = builder.add(kinds.Reduce("mean", (0,), False), [steps], "mean")
    return builder.graph({"y": steps, "z": last})


def attentive(sizes: Mapping[str, int], *, depth: int = 1) -> Graph:
    """A state of fixed steps that attends to all rows: masks inside of a loop, or of two."""
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s, 4)
    outer = LoopBody(builder, "outer", 3)
    state = outer.state(builder.constant(np.ones((b, 4), np.float32)))
    loop = LoopBody(outer.builder, "inner", 2) if depth == 2 else outer
    rows = loop.read(outer.read(x)) if depth == 2 else outer.read(x)
    h = loop.state(state) if depth == 2 else state
    text = "C[b,n] += A[b,k] * B[b,n,k]"
    scores = loop.builder.add(product(text, b=b, n=s, k=4), [h, rows], "scores")
    weights = loop.builder.add(kinds.Softmax(1), [scores], "softmax")
    text = "C[b,n] += A[b,k] * B[b,k,n]"
    mixed = loop.builder.add(product(text, b=b, n=4, k=s), [weights, rows], "mixed")
    mean = loop.builder.add(kinds.Reduce("mean", (1,), False), [rows], "mean")
    added = Elementwise(Apply("add", (Input(0), Input(1))), "float32")
    mixed = loop.builder.add(added, [mixed, mean], "add")
    if depth == 2:
        (mixed,), _ = loop.emit([mixed])
    (last,), _ = outer.emit([mixed])
    return builder.graph({"y": last})


def indexed(sizes: Mapping[str, int]) -> Graph:
    """A loop that reads its slice by the number of the step, and ends by a condition as well."""
    b, s = sizes["b"], sizes["s"]
    builder, x = made(sizes, b, s, 3)
    condition = builder.constant(np.asarray(True))
    loop = LoopBody(builder, "loop", s, condition=condition)
    total = loop.state(builder.constant(np.zeros((b, 3), np.float32)))
    cast = Elementwise(Input(0), "int32")
    number = loop.builder.add(cast, [loop.number()], "cast")
    row = loop.builder.add(kinds.Gather(1), [loop.read(x), number], "row")
    added = Elementwise(Apply("add", (Input(0), Input(1))), "float32")
    total = loop.builder.add(added, [total, row], "sum")
    less = Elementwise(Apply("less", (Input(0), Number(6))), "bool")
    again = loop.builder.add(less, [number], "again")
    (last,), _ = loop.emit([total], [], again)
    return builder.graph({"y": last})


SCALED = Elementwise(Apply("mul", (Input(0), Number(2.0))), "float32")


PADDED: dict[str, Maker] = {
    "elementwise": of("b", "s", 3)(SCALED),
    "softmax": of("b", "s")(kinds.Softmax(1)),
    "log softmax": of("b", "s")(kinds.Softmax(1, log=True)),
    **{
        operation: of("b", "s", 3)(kinds.Reduce(operation, (1,), keeps))
        for operation, keeps in zip(
            ("sum", "mean", "max", "min", "prod", "argmax", "argmin"),
            itertools.cycle((True, False)),
            strict=False,
        )
    },
    "mean over both": of(2, "b", "s")(kinds.Reduce("mean", (1, 2), False)),
    "slice": lambda n: of("b", "s")(
        kinds.Slice((0, 1), (n["b"], n["s"]), (1, 1)))(n),
    "slice by steps": lambda n: of("b", "s")(
        kinds.Slice((0, 0), (n["b"], n["s"]), (1, 2)))(n),
    "pad both ends": of("b", "s")(kinds.Pad((0, 2), (0, 3), 1.5)),
    "pad the front": of("b", "s")(kinds.Pad((0, 1), (0, 0))),
    "attention": attention,
    "convolution": convolution,
    "positions": positions,
    "prefixed": prefixed,
    "quantized": quantized,
    "weight only": weight_only,
    "embedded": embedded,
    "scattered": scattered,
    "cached": cached,
    "dynamically quantized": dynamic,
    "bits": of("b", "s")(kinds.Bitcast("int32")),
    "recurrent": partial(recurrent, backwards=False),
    "recurrent backwards": partial(recurrent, backwards=True),
    "mean of steps": partial(recurrent, backwards=True, running=True),
    "attention in a loop": attentive,
    "attention in two loops": partial(attentive, depth=2),
    "steps by their number": indexed,
    **{
        f"{'descending' if descending else 'ascending'} {count or 'all'}": partial(
            ordered, count=count, descending=descending
        )
        for descending in (False, True)
        for count in (0, 2)
    },
    **{
        f"running {operation} {reverse} {exclusive}": of("b", "s")(
            kinds.Scan(operation, 1, exclusive, reverse)
        )
        for operation in ("sum", "prod", "max", "min")
        for reverse in (False, True)
        for exclusive in (False, True)
    },
}  # fmt: skip


def family(maker: Maker, b: int = 3, s: int = 9) -> Family:
    return Family("net", {"b": range(1, b + 1), "s": range(2, s + 1)}, maker)
