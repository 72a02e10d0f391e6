"""What moving elements takes, by the figures of the machine: of operators between products, and of
conversions from one layout to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpembed.graph.kinds import Kind, LayerNorm, Pool, Softmax
from cpembed.ir.dtypes import size_bytes
from cpembed.network.generated import Placed
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.figures import figures

_PASSES: Mapping[type[Kind], float] = {Softmax: 4.0, LayerNorm: 4.0}
"""How often an element is looked at, where it is more than once."""


def conversion_us(source: Placed, target: Placed, threads: int) -> float:
    """Microseconds of copying a tensor into another layout."""
    return _moved_us([source], [target], threads)


def estimate_us(
    kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> float:
    """Microseconds of an operator that is no product."""
    passes = _PASSES.get(type(kind), 1.0)
    if isinstance(kind, Pool):
        taps, strides = 1, 1
        for window, stride in zip(kind.window, kind.strides, strict=True):
            taps, strides = taps * window, strides * stride
        passes = max(1.0, taps / strides)
    return _moved_us(inputs, outputs, threads) * passes


def _moved_us(inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int) -> float:
    machine, constants = calibration(), figures()
    lines_ns = 0.0
    for tensor in (*inputs, *outputs):
        lines = tensor.type.elements * size_bytes(tensor.stored) / constants.line_bytes
        lines_ns += lines * machine.copy_ns_per_line / 2
    orders = {_order(tensor) for tensor in (*inputs, *outputs) if tensor.type.elements > 1}
    factor = 1.0 if len(orders) <= 1 else constants.transposed
    launch = machine.launch_us if threads > 1 else machine.call_us
    return launch + lines_ns * factor / threads / 1e3


def _order(tensor: Placed) -> tuple[tuple[int, ...], int]:
    """The order of the axes that have more than one element."""
    layout = tensor.layout
    order = tuple(axis for axis in layout.order if layout.shape[axis] > 1)
    return order, layout.block
