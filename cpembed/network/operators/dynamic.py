"""The kernel that quantizes a tensor by its own range: its extrema first, then its elements, on one
thread, since the second walk needs the whole of the first."""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds import DynamicQuantize
from cpembed.network.operators.emission import Kernel
from cpembed.network.operators.intrinsics import nearest
from cpembed.network.operators.lanes import LANE, Reduction, accumulators, local, vectorized
from cpembed.network.operators.nest import View, axes, nest_over
from cpembed.network.operators.placed import Placed
from cpembed.network.operators.values import limited, number


def dynamic_quantize_plan(
    kind: DynamicQuantize, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """A NaN is passed over where the range is taken, and stored as 0."""
    source, output = inputs[0], outputs[0]
    given = axes(len(source.shape))
    views = [View(output.layout, given), View(source.layout, given)]
    nest = nest_over(source.shape, views, ordered_by=1)
    reduction = Reduction.of(nest, lambda loop: True)
    kernel = Kernel(inputs, outputs, 1)
    script = kernel.script
    with kernel.written():
        low, high = (_extreme(kernel, reduction, what) for what in ("min", "max"))
        scale = local(kernel, 1, "float32")
        script.line(f"{scale}[0] = ({high} - {low}) / T.float32(255.0)")
        script.line(
            f"{scale}[0] = T.Select({scale}[0] == T.float32(0.0), T.float32(1.0), {scale}[0])"
        )
        zero = local(kernel, 1, "float32")
        value = nearest(f"(T.float32(0.0) - {low}) / {scale}[0]")
        value = number(kernel.let, value, "float32")
        script.line(f"{zero}[0] = {limited(value, 'float32', 0, 255)}")
        script.line(f"out1[0] = {scale}[0]")
        script.line(f'out2[0] = T.cast(T.cast({zero}[0], "int32"), "uint8")')
        points = nest_over(source.shape, views)
        with kernel.points(points):
            rounded = nearest(f"in0[{points.places[1]}] / {scale}[0]")
            moved = number(kernel.let, f"{rounded} + {zero}[0]", "float32")
            kept = limited(moved, "float32", 0, 255)
            script.line(f'out0[{points.places[0]}] = T.cast(T.cast({kept}, "int32"), "uint8")')
    return kernel.plan("dynamic quantize")


def _extreme(kernel: Kernel, reduction: Reduction, what: str) -> str:
    """The least or largest element, and 0."""

    def join(first: str, second: str) -> str:
        # Of a NaN and another number, TVM takes the second.
        return f"T.{what}({second}, {first})"

    name = accumulators(kernel, reduction.size, "float32", "T.float32(0.0)")

    def take(lane: str, places: Sequence[str]) -> None:
        kernel.script.line(f"{name}[{lane}] = {join(f'{name}[{lane}]', f'in0[{places[1]}]')}")

    reduction.sweep(kernel, take)
    total = reduction.combined(kernel, name, "float32", join)
    found = local(kernel, 1, "float32")
    with vectorized(kernel, 1):
        kernel.script.line(f"{found}[0] = {total(LANE)}")
    return f"{found}[0]"
