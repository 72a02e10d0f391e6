"""Relax code of a VTA program: pack what varies, execute, unpack."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from cpembed.kernel.layout_transform import Direction
from cpembed.targets.vta.lower import LoweredVta
from cpembed.targets.vta.moves import move_source
from cpembed.targets.vta.relax_execution import EXECUTE, saved
from cpembed.transform.program import PackedOperand

_OPAQUE = 8
"""``relay::kOpaque``: the pattern of a function that is fused with nothing."""


def emit(builder: Any, lowered: LoweredVta, arguments: Mapping[str, Any], result: Any) -> Any:
    """An expression of type ``result`` for the operator on relax expressions or arrays,
    with a ``relax.BlockBuilder``.

    Arrays are packed here and travel in the program's memory; expressions are packed when the
    module runs, by generated TensorIR functions.
    """
    program = lowered.empty_image()
    varying: dict[str, Any] = {}
    for tensor in lowered.nest.inputs:
        argument = arguments[tensor.name]
        if isinstance(argument, np.ndarray):
            whole = argument.reshape(tensor.packed.original_shape)
            program.tensor(tensor.name)[...] = lowered.pack(tensor.name, whole)
        else:
            varying[tensor.name] = _moved(builder, tensor.packed, Direction.PACK, argument)
    stored = lowered.stored
    names = tvm.ir.StringImm(" ".join(varying))
    passed = relax.Tuple([relax.const(saved(program)), names, *varying.values()])
    packed = relax.call_dps_packed(EXECUTE, passed, _flat(stored.elements, stored.dtype))
    image = builder.emit(packed)
    return relax.op.reshape(_moved(builder, stored, Direction.UNPACK, image), result.shape)


def _moved(builder: Any, operand: PackedOperand, direction: Direction, value: Any) -> Any:
    """The elements of an operand in the other layout, both flat."""
    original = int(np.prod(operand.original_shape))
    packs = direction is Direction.PACK
    flat = builder.emit(relax.op.reshape(value, (original,))) if packs else value
    name = f"{direction.value}_{operand.name}".replace(".", "_")
    function = builder.add_func(_function(operand, direction), name)
    size = operand.elements if packs else original
    return builder.emit(relax.call_tir(function, relax.Tuple([flat]), _flat(size, operand.dtype)))


def _flat(elements: int, dtype: str) -> relax.TensorType:
    shape: list[Any] = [elements]
    return relax.TensorType(shape, dtype)


def _function(operand: PackedOperand, direction: Direction) -> Any:
    function = tvm.script.from_source(move_source(operand, direction)).without_attr("global_symbol")
    return function.with_attrs({"op_pattern": _OPAQUE, "tirx.is_scheduled": True})
