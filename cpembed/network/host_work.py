"""Work that the host does for a network on an accelerator: descriptions and estimated times.

The host is taken to be this machine's processor, one thread of it: no specification describes the
one beside an accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.graph.kinds import Elementwise, Kind, Product, TensorType
from cpembed.ir.scalars import Apply, Input, Number, Scalar, substituted
from cpembed.network.operator_costs import estimate_operator_us
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.nest import Tensors
from cpembed.network.operators.operation_counts import WIDTH
from cpembed.targets.capabilities import AnyTarget, host_times
from cpembed.targets.registry import native_targets, open_target


@dataclass(frozen=True)
class HostWork:
    """Part of a network's operator that the host executes.

    Attributes
    ----------
    work : str
        What it is.
    us : float
        Estimated microseconds on one thread of this processor.
    """

    work: str
    us: float

    def to_json(self) -> dict[str, Any]:
        return {"work": self.work, "estimated_us": self.us}


def host_target(accelerator: AnyTarget) -> AnyTarget:
    """Return the target whose constants estimate the host: one of this processor if it has any."""
    native = native_targets()
    return open_target(native[0]) if native else accelerator


def operator_on_host(
    kind: Kind,
    inputs: Tensors,
    outputs: Tensors,
    host: AnyTarget,
) -> HostWork:
    """Return the work of an operator that the host executes as a whole.

    Parameters
    ----------
    kind : Kind
    inputs, outputs : sequence of PlacedTensor
    host : Target
        From :func:`host_target`.
    """
    if isinstance(kind, Product):
        # Multiply-accumulates on vectors, two operations each.
        operations = 2 * kind.computation.macs / WIDTH
        us = operations * host_times(host).operation_ns / 1e3
        epilogue = epilogue_on_host(kind, host)
        us += sum(each.us for each in epilogue)
        return HostWork(" and ".join(["the product", *(each.work for each in epilogue)]), us)
    return HostWork(kind.label, estimate_operator_us(host, kind, inputs, outputs, 1))


def product_on_host(kind: Product, first: TensorType, host: AnyTarget) -> tuple[HostWork, ...]:
    """Return the host's work around a product whose sums the accelerator computes.

    Parameters
    ----------
    kind : Product
    first : TensorType
        Type of the first factor.
    host : Target
        From :func:`host_target`.
    """
    works: list[HostWork] = []
    if kind.padding:
        us = _elementwise_us(Input(0), first.dtype, [first], host)
        works.append(HostWork(f"padding by {kind.padding} in memory", us))
    if any(kind.zero_points):
        # The sums of the windows are those of the factors, once over each.
        us = _elementwise_us(Apply("sub", (Input(0), Number(1))), "int32", [first], host)
        sums = TensorType(kind.shape, kind.computation.output.dtype)
        us += _elementwise_us(Apply("sub", (Input(0), Input(1))), sums.dtype, [sums, sums], host)
        works.append(HostWork("the part of the zero points in the sums", us))
    return (*works, *epilogue_on_host(kind, host))


def epilogue_on_host(kind: Product, host: AnyTarget) -> tuple[HostWork, ...]:
    """Return the epilogue of a product as work of the host; empty if it has none."""
    epilogue = kind.epilogue
    if epilogue is None:
        return ()
    sums = TensorType(kind.shape, kind.computation.output.dtype)
    inputs = [sums]
    value: Scalar = Input(0)
    for operation, is_used in (
        ("add", epilogue.bias),
        ("mul", epilogue.scale),
        ("max", epilogue.relu),
        ("shift_right", bool(epilogue.shift)),
        ("add", bool(epilogue.zero_point)),
    ):
        # Vectors and constants take as long: they stay in registers.
        value = Apply(operation, (value, Number(1))) if is_used else value
    if epilogue.residual is not None:
        inputs.append(replace(sums, dtype=epilogue.residual.dtype))
        value = Apply("add", (value, Input(1)))
    if epilogue.chain is not None:
        # Vectors are constants here too.
        parts = {0: value, 1: Input(1) if epilogue.residual is not None else Number(1)}
        expression = epilogue.chain.expression
        value = substituted(expression, lambda node: parts.get(node.number, Number(1)))
    us = _elementwise_us(value, epilogue.dtype, inputs, host)
    return (HostWork(_epilogue_text(epilogue), us),)


def _epilogue_text(epilogue: Epilogue) -> str:
    residual, chain = epilogue.residual, epilogue.chain
    steps = {
        "bias": epilogue.bias,
        "scale": epilogue.scale,
        "ReLU": epilogue.relu or (residual is not None and residual.relu),
        "shift": bool(epilogue.shift),
        "residual": residual is not None,
        "activation": chain is not None,
    }
    names = [name for name, is_used in steps.items() if is_used]
    return ", ".join([*names, f"results in {epilogue.dtype}"])


def _elementwise_us(
    expression: Scalar, dtype: str, inputs: Sequence[TensorType], host: AnyTarget
) -> float:
    kind: Kind = Elementwise(expression, dtype)
    shape = max((each.shape for each in inputs), key=math.prod)
    placed = [PlacedTensor.plain(each) for each in inputs]
    output = PlacedTensor.plain(TensorType(shape, dtype))
    return estimate_operator_us(host, kind, placed, [output], 1)
