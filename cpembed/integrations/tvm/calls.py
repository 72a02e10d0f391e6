"""Relax code of a kernel: calls of its TensorIR functions on flat views of tensors.

Each function is compiled here, for its own target and with its own settings of TVM's passes, as a
module that the relax module imports.
"""
# pyright: basic

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from cpembed.codegen.recorded import FunctionCall, Memory, compiled
from cpembed.codegen.script import storage_dtype
from cpembed.integrations.tvm.kernels import Kernel


@dataclass
class Imports:
    """Compiled functions of a module, by their symbols."""

    target: Any
    """What functions are compiled for that have no target of their own."""
    modules: dict[str, Any] = field(default_factory=dict[str, Any])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])

    def symbol(self, call: FunctionCall) -> str:
        """The symbol of a function, compiled where it is new."""
        target, function = call.target or self.target, call.function()
        text = f"{function.script()}{call.functions}{target}{call.options}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        symbol = f"cpembed_{_identifier(call.name)}_{digest}"
        if symbol not in self.modules:
            self.modules[symbol] = compiled(call, symbol, target)
            self.functions[symbol] = function
        return symbol


def emit_calls(
    builder: Any, kernel: Kernel, arguments: Mapping[str, Any], result: Any, imports: Imports
) -> Any:
    """An expression of type ``result`` for a kernel on relax expressions by input, with a
    ``relax.BlockBuilder``."""
    calls = kernel.calls
    values: dict[int, Any] = {}
    for name, argument in arguments.items():
        memory = calls.given[name]
        values[id(memory)] = builder.emit(
            _viewed(argument, [memory.elements], storage_dtype(memory.dtype))
        )
    for call in (*calls.prepare, *calls.run):
        _emit(builder, call, values, imports)
    found = values[id(calls.given[kernel.output])]
    return _viewed(found, [int(size) for size in result.shape], str(result.dtype))


def _emit(builder: Any, call: FunctionCall, values: dict[int, Any], imports: Imports) -> None:
    read = call.buffers[: len(call.buffers) - call.written]
    written = call.buffers[len(call.buffers) - call.written :]
    given = [_value(memory, values) for memory in read]
    types: Any = [_flat(memory) for memory in written]
    types = types[0] if len(types) == 1 else types
    made = relax.call_dps_packed(imports.symbol(call), relax.Tuple(given), types)
    found = builder.emit(made)
    for number, memory in enumerate(written):
        one = found if len(written) == 1 else builder.emit(relax.TupleGetItem(found, number))
        values[id(memory)] = one


def _value(memory: Memory, values: Mapping[int, Any]) -> Any:
    if memory.contents is not None:
        return relax.const(memory.contents.reshape(-1))
    return values[id(memory)]


def _flat(memory: Memory) -> relax.TensorType:
    shape: list[Any] = [memory.elements]
    return relax.TensorType(shape, storage_dtype(memory.dtype))


def _viewed(value: Any, shape: Any, dtype: Any) -> Any:
    """The same memory in another shape, or as another type of the same size."""
    if str(value.ty.dtype) == dtype:
        return relax.op.reshape(value, shape)
    return relax.op.memory.view(value, shape, dtype)


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)
