"""Emulation of Relax modules whose functions are scheduled for a GPU.

Bindings are evaluated in their order; each call of a TensorIR function runs its kernels in the
executor of CUDA text.
"""
# pyright: basic

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.plan import storage_dtype
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.cuda.build import PASS_OPTIONS, flat_bits, parameter_names
from cpembed.targets.cuda.emulator.executor import (
    Counters,
    DeviceArray,
    Launch,
    Order,
    compile_text,
)

Array = NDArray[Any]

# The text does not say how much dynamic shared memory a kernel uses; this is the maximum of sm_80.
_SHARED_BYTES = 163 * 1024


@dataclass
class Emulation:
    """Emulated execution of the function ``main`` of a Relax module."""

    module: Any
    """Relax module."""
    functions: Mapping[str, Any]
    """TensorIR functions that are called by name, in addition to those of the module."""
    target: Any
    """TVM's target."""
    order: Order | int = Order.FORWARD
    """Order of threads, or the seed of a random one."""
    kernel_counters: dict[str, Counters] = field(default_factory=dict[str, Counters])
    """Counters of each kernel in its last launch."""

    def __post_init__(self) -> None:
        tvm = runtime.tvm()
        from tvm import tirx

        members = {str(v.name_hint): f for v, f in self.module.functions_items()}
        self._functions: dict[str, Any] = {
            **{name: f for name, f in members.items() if isinstance(f, tirx.PrimFunc)},
            **self.functions,
        }
        symbols = {name: f.with_attr("global_symbol", name) for name, f in self._functions.items()}
        # All functions in one text: it is compiled once, whichever of them main calls.
        with self.target, tvm.transform.PassContext(config=PASS_OPTIONS):
            built = tvm.tirx.build(tvm.IRModule(symbols), target=self.target)
        self.source = built.imports[0].inspect_source()
        self._program = compile_text(self.source)

    def run(self, *inputs: Array) -> Array:
        """Return the result of ``main``.

        Raises :class:`LoweringError` for operations that scheduled modules do not have, and
        :class:`~cpembed.errors.ExecutionFault` for kernels that do what a GPU leaves undefined.
        """
        main = self.module["main"]
        values: list[tuple[Any, Any]] = list(zip(main.params, inputs, strict=True))
        for block in main.body.blocks:
            for binding in block.bindings:
                values.append((binding.var, self._evaluate(binding.value, values)))
        return self._evaluate(main.body.body, values)

    def _evaluate(self, node: Any, values: Sequence[tuple[Any, Any]]) -> Any:
        from tvm import ir, relax

        if isinstance(node, ir.GenericConst):
            constant: Any = node
            return constant.value.numpy()
        if isinstance(node, ir.Var):
            return next(value for variable, value in values if variable.same_as(node))
        if isinstance(node, relax.Tuple):
            return [self._evaluate(item, values) for item in node.fields]
        if isinstance(node, relax.TupleGetItem):
            return self._evaluate(node.tuple_value, values)[node.index]
        if isinstance(node, ir.Call):
            return self._call(node, values)
        raise LoweringError(f"{type(node).__name__} is no operation of a scheduled module")

    def _call(self, call: Any, values: Sequence[tuple[Any, Any]]) -> Any:
        name = getattr(call.op, "name", "")
        if name in ("relax.call_tir", "relax.call_dps_packed"):
            callee = call.args[0]
            symbol = callee.name_hint if name == "relax.call_tir" else callee.global_symbol
            return self._launch(str(symbol), self._evaluate(call.args[1], values), call.ty)
        if name in ("relax.reshape", "relax.memory.view"):
            shape = [int(size) for size in call.ty.shape]
            array = np.ascontiguousarray(self._evaluate(call.args[0], values)).reshape(-1)
            return array.view(numpy_dtype(str(call.ty.dtype))).reshape(shape)
        raise LoweringError(f"{name} is no operation of a scheduled module")

    def _launch(self, name: str, inputs: Sequence[Array], result: Any) -> Any:
        """Run the kernels of a function, one for each of its loop nests."""
        function = self._functions[name]
        types = result.fields if hasattr(result, "fields") else [result]
        outputs = [_unwritten(tensor) for tensor in types]
        memory: dict[str, Array | DeviceArray] = {}
        arrays = [*map(flat_bits, inputs), *outputs]
        for array, parameter in zip(arrays, function.params, strict=True):
            if (array.array if isinstance(array, DeviceArray) else array).size != math.prod(
                int(size) for size in parameter.shape
            ):
                raise LoweringError(f"{name} is called on a tensor of another size")
            memory[str(parameter.name)] = array
        nests: list[Any] = []
        _collect_nests(function.body, memory, nests)
        shared = _SHARED_BYTES if "extern __shared__" in self.source else 0
        for number, nest in enumerate(nests):
            symbol = f"{name}_kernel" + (f"_{number}" if number else "")
            extents = dict[str, int]()
            _collect_threads(nest, extents)
            launch = Launch(symbol, _sizes(extents, "block"), _sizes(extents, "thread"), shared)
            arguments = [memory[p] for p in parameter_names(self.source, symbol)]
            self.kernel_counters[symbol] = self._program.run(launch, arguments, order=self.order)
        results = [
            _shaped(output.require_written(name), tensor)
            for output, tensor in zip(outputs, types, strict=True)
        ]
        return results[0] if len(results) == 1 else results


def _unwritten(tensor: Any) -> DeviceArray:
    elements = math.prod(int(size) for size in tensor.shape)
    return DeviceArray.unwritten(elements, storage_dtype(str(tensor.dtype)))


def _shaped(array: Array, tensor: Any) -> Array:
    shape = [int(size) for size in tensor.shape]
    return array.view(numpy_dtype(str(tensor.dtype))).reshape(shape)


def _collect_nests(
    statement: Any, memory: dict[str, Array | DeviceArray], nests: list[Any]
) -> None:
    """Append the loop nests of a function, each of which is a kernel.

    Memory is added for the buffers that it allocates; another view of a tensor is the same memory.
    """
    if hasattr(statement, "seq"):
        for inner in statement.seq:
            _collect_nests(inner, memory, nests)
    elif hasattr(statement, "block") and not statement.block.iter_vars:
        for buffer in statement.block.alloc_buffers:
            memory[str(buffer.name)] = _unwritten(buffer)
        _collect_nests(statement.block.body, memory, nests)
    elif hasattr(statement, "buffer") and hasattr(statement, "data"):
        memory[str(statement.buffer.name)] = memory[str(statement.data.args[0].name)]
    else:
        nests.append(statement)


def _collect_threads(statement: Any, extents: dict[str, int]) -> None:
    """Add the extents of loops by the threads that they are bound to."""
    tag = getattr(getattr(statement, "thread_binding", None), "thread_tag", "")
    if tag:
        extents[str(tag)] = int(statement.extent)
    for name in ("body", "block", "then_case", "else_case"):
        inner = getattr(statement, name, None)
        if inner is not None:
            _collect_threads(inner, extents)
    for inner in getattr(statement, "seq", ()):
        _collect_threads(inner, extents)


def _sizes(extents: Mapping[str, int], kind: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(f"{kind}Idx.{axis}", 1) for axis in "xyz")
    return x, y, z
