"""Derived programs written out by hand: what a back end must handle, without the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import DerivedProgram, Loop, PackedDimension, PackedOperand
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import gemm

Term = tuple[str, int] | tuple[str, int, int, int | None]


def expr(*terms: Term, constant: int = 0) -> IndexExpr:
    return IndexExpr.sum([IndexTerm(*term) for term in terms], constant)


def packed(
    workload: Computation,
    name: str,
    dimensions: Sequence[tuple[str, int, str | None, IndexExpr]],
    source: Sequence[IndexExpr],
) -> PackedOperand:
    """``dimensions``: name, extent, lane, access."""
    operand = workload.operand(name)
    return PackedOperand(
        name=name,
        dtype=operand.dtype,
        original_shape=operand.shape,
        dimensions=tuple(PackedDimension(d, extent, lane) for d, extent, lane, _ in dimensions),
        source=tuple(source),
        access=tuple(access for *_, access in dimensions),
    )


def assemble(
    workload: Computation,
    spec: HardwareSpec,
    lanes: Mapping[str, tuple[str, int]],
    operands: Sequence[PackedOperand],
) -> DerivedProgram:
    """``lanes``: instruction axis -> workload axis and the extent used of it."""
    tile = dict(lanes.values())
    loops: list[Loop] = []
    axis_map: dict[str, IndexExpr] = {}
    for axis in workload.axes:
        size = tile.get(axis.name, 1)
        loops.append(Loop(f"{axis.name}.o", -(-axis.extent // size), axis.kind))
        axis_map[axis.name] = expr((f"{axis.name}.o", size))
    for lane, (axis, _) in lanes.items():
        axis_map[axis] = axis_map[axis] + IndexExpr.iterator(lane)
    kinds = {axis.name: axis.kind for axis in workload.axes}
    computation = spec.instruction.computation
    names = [operand.name for operand in computation.operands]
    roles = dict(zip(names, (operand.name for operand in operands), strict=True))
    return DerivedProgram(
        workload=workload,
        instruction=spec.instruction,
        embedding=Embedding(
            operands=roles,
            extents={lane: size for lane, (_, size) in lanes.items()},
            digits={lane: (Digit(axis, size),) for lane, (axis, size) in lanes.items()},
        ),
        loops=tuple(sorted(loops, key=lambda loop: loop.kind is AxisKind.REDUCTION)),
        instruction_axes=tuple(
            Loop(lane, size, kinds[axis]) for lane, (axis, size) in lanes.items()
        ),
        axis_map=axis_map,
        operands=tuple(operands),
        roles=roles,
    )


def conv2d_program(
    spec: HardwareSpec,
    *,
    sizes: Mapping[str, int],
    layout: str = "NHWC",
    pad: int = 0,
    stride: int = 1,
    dilation: int = 1,
    rows: int = 1,
    depth: int = 4,
    dtype: str = "uint8,int8",
) -> DerivedProgram:
    """y is the filters, z the input channels, x (where the instruction has it) ``rows`` columns."""
    workload = conv2d(
        **sizes, layout=layout, pad=pad, stride=stride, dilation=dilation, dtype=dtype
    )
    size = workload.extents
    columns = spec.instruction.axis("y").maximum
    has_rows = "x" in spec.instruction.extents
    rows = rows if has_rows else 1
    count = {"k": -(-size["k"] // columns), "c": -(-size["c"] // depth), "q": -(-size["q"] // rows)}
    row = [("x", 1)] if has_rows else []
    h = expr(("p.o", stride), ("r.o", dilation))
    w = expr(("q.o", rows * stride), *((x, stride) for x, _ in row), ("s.o", dilation))
    reach = (stride * (count["q"] * rows - 1) + dilation * (size["s"] - 1)) + 1
    height = stride * (size["p"] - 1) + dilation * (size["r"] - 1) + 1
    plane = [("h", height, None, h), ("w", reach, "x" if has_rows else None, w)]
    channel = ("ci", count["c"], None, expr(("c.o", 1)))
    outer = [channel, *plane] if layout == "NCHW" else [*plane, channel]
    batch = ("n", size["n"], None, expr(("n.o", 1)))
    image = [batch, *outer, ("zi", depth, "z", expr(("z", 1)))]
    coordinates = {
        "n": expr(("n", 1)),
        "h": expr(("h", 1), constant=-pad),
        "w": expr(("w", 1), constant=-pad),
        "c": expr(("ci", depth), ("zi", 1)),
    }
    filters = [
        ("ko", count["k"], None, expr(("k.o", 1))),
        ("r", size["r"], None, expr(("r.o", 1))),
        ("s", size["s"], None, expr(("s.o", 1))),
        channel,
        *_filter_tile(spec, columns, depth),
    ]
    in_filter = expr(("ci", depth), *_filter_depth(spec))
    weights = {
        "k": expr(("ko", columns), ("yi", 1)),
        "c": in_filter,
        "r": expr(("r", 1)),
        "s": expr(("s", 1)),
    }
    output = [
        batch,
        ("p", size["p"], None, expr(("p.o", 1))),
        ("q", count["q"], None, expr(("q.o", 1))),
        *([("xi", rows, "x", expr(("x", 1)))] if has_rows else []),
        ("ko", count["k"], None, expr(("k.o", 1))),
        ("yi", columns, "y", expr(("y", 1))),
    ]
    results = {
        "n": expr(("n", 1)),
        "p": expr(("p", 1)),
        "q": expr(("q", rows), *([("xi", 1)] if has_rows else [])),
        "k": expr(("ko", columns), ("yi", 1)),
    }
    order = ("nchw", "kcrs", "nkpq") if layout == "NCHW" else ("nhwc", "krsc", "npqk")
    lanes = {"x": ("q", rows)} if has_rows else {}
    return assemble(
        workload,
        spec,
        {**lanes, "y": ("k", columns), "z": ("c", depth)},
        (
            packed(workload, "I", image, [coordinates[i] for i in order[0]]),
            packed(workload, "W", filters, [weights[i] for i in order[1]]),
            packed(workload, "O", output, [results[i] for i in order[2]]),
        ),
    )


def gemm_program(
    spec: HardwareSpec,
    *,
    m: int,
    n: int,
    k: int,
    rows: int = 1,
    depth: int = 4,
    dtype: str = "uint8,int8",
    in_place: bool = False,
) -> DerivedProgram:
    """x and y are the output's rows and columns, z the reduction.

    ``in_place`` keeps A and C row-major, which at dividing sizes is their original layout.
    """
    workload = gemm(m=m, n=n, k=k, dtype=dtype)
    columns = spec.instruction.axis("y").maximum
    has_rows = "x" in spec.instruction.extents
    rows = rows if has_rows else 1
    row_term = [("x", 1)] if has_rows else []
    mo = ("mo", -(-m // rows), None, expr(("m.o", 1)))
    no = ("no", -(-n // columns), None, expr(("n.o", 1)))
    ko = ("ko", -(-k // depth), None, expr(("k.o", 1)))
    xi = [("xi", rows, "x", expr(("x", 1)))] if has_rows else []
    yi, zi = ("yi", columns, "y", expr(("y", 1))), ("zi", depth, "z", expr(("z", 1)))
    a = [mo, *xi, ko, zi] if in_place else [mo, ko, *xi, zi]
    c = [mo, *xi, no, yi] if in_place else [mo, no, *xi, yi]
    m_index = expr(("mo", rows), *(("xi", 1) for _ in row_term))
    n_index = expr(("no", columns), ("yi", 1))
    lanes = {"x": ("m", rows)} if has_rows else {}
    return assemble(
        workload,
        spec,
        {**lanes, "y": ("n", columns), "z": ("k", depth)},
        (
            packed(workload, "A", a, [m_index, expr(("ko", depth), ("zi", 1))]),
            packed(
                workload,
                "B",
                [no, ko, *_filter_tile(spec, columns, depth)],
                [expr(("ko", depth), *_filter_depth(spec)), n_index],
            ),
            packed(workload, "C", c, [m_index, n_index]),
        ),
    )


def _interleave(spec: HardwareSpec) -> int | None:
    """Depth elements that lie together for one column; None where a whole column does."""
    tile = spec.instruction.memory["B"].tile
    return next((d.modulus for d in tile if d.axis == "z" and d.modulus), None)


def _filter_tile(
    spec: HardwareSpec, columns: int, depth: int
) -> list[tuple[str, int, str | None, IndexExpr]]:
    group = _interleave(spec)
    column = ("yi", columns, "y", expr(("y", 1)))
    if group is None:
        return [column, ("zi", depth, "z", expr(("z", 1)))]
    return [
        ("zq", depth // group, "z", expr(("z", 1, group, None))),
        column,
        ("zr", group, "z", expr(("z", 1, 1, group))),
    ]


def _filter_depth(spec: HardwareSpec) -> list[Term]:
    group = _interleave(spec)
    return [("zi", 1)] if group is None else [("zq", group), ("zr", 1)]
