"""Relax modules whose functions are scheduled for a GPU, executed here without one.

Bindings are evaluated in their order; each call of a TensorIR function runs its kernels in the
executor of CUDA text.
"""
# pyright: basic

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.script import storage_dtype
from cpembed.errors import LoweringError
from cpembed.ir.dtypes import numpy_dtype
from cpembed.targets.cuda.build import parameter_names
from cpembed.targets.cuda.defects import PASS_OPTIONS
from cpembed.targets.cuda.execute import flat, unwritten
from cpembed.targets.cuda.executor import Counters, Launch, Order, compile_text

Array = NDArray[Any]

_SHARED_BYTES = 163 * 1024
"""What a block may have at most: how much of it a kernel takes is not in the text."""


@dataclass(frozen=True)
class _Kernel:
    launch: Launch
    parameters: tuple[str, ...]


@dataclass
class Emulation:
    """A module's ``main``, executed; ``counted``: what its kernels did, by their names."""

    module: Any
    functions: Mapping[str, Any]
    target: Any
    order: Order | int = Order.FORWARD
    counted: dict[str, Counters] = field(default_factory=dict[str, Counters])

    def __post_init__(self) -> None:
        tvm = runtime.tvm()
        from tvm import tirx

        made = {str(v.name_hint): f for v, f in self.module.functions_items()}
        self._functions: dict[str, Any] = {
            **{name: f for name, f in made.items() if isinstance(f, tirx.PrimFunc)},
            **self.functions,
        }
        named = {name: f.with_attr("global_symbol", name) for name, f in self._functions.items()}
        with self.target, tvm.transform.PassContext(config=PASS_OPTIONS):
            built = tvm.tirx.build(tvm.IRModule(named), target=self.target)
        self.source = built.imports[0].inspect_source()
        self._program = compile_text(self.source)

    def run(self, *inputs: Array) -> Array:
        """The result of ``main``.

        Raises :class:`LoweringError` for what is no operation of scheduled modules, and
        :class:`~cpembed.errors.ExecutionFault` for kernels that do what a GPU does not define.
        """
        main = self.module["main"]
        values: list[tuple[Any, Any]] = list(zip(main.params, inputs, strict=True))
        for block in main.body.blocks:
            for binding in block.bindings:
                values.append((binding.var, self._value(binding.value, values)))
        return self._value(main.body.body, values)

    def _value(self, node: Any, values: Sequence[tuple[Any, Any]]) -> Any:
        from tvm import ir, relax

        if isinstance(node, ir.GenericConst):
            held: Any = node
            return held.value.numpy()
        if isinstance(node, ir.Var):
            return next(value for variable, value in values if variable.same_as(node))
        if isinstance(node, relax.Tuple):
            return [self._value(one, values) for one in node.fields]
        if isinstance(node, relax.TupleGetItem):
            return self._value(node.tuple_value, values)[node.index]
        if isinstance(node, ir.Call):
            return self._called(node, values)
        raise LoweringError(f"{type(node).__name__} is no operation of a scheduled module")

    def _called(self, call: Any, values: Sequence[tuple[Any, Any]]) -> Any:
        name = getattr(call.op, "name", "")
        if name in ("relax.call_tir", "relax.call_dps_packed"):
            callee = call.args[0]
            symbol = callee.name_hint if name == "relax.call_tir" else callee.global_symbol
            return self._run(str(symbol), self._value(call.args[1], values), call.ty)
        if name in ("relax.reshape", "relax.memory.view"):
            shape = [int(size) for size in call.ty.shape]
            array = np.ascontiguousarray(self._value(call.args[0], values)).reshape(-1)
            return array.view(numpy_dtype(str(call.ty.dtype))).reshape(shape)
        raise LoweringError(f"{name} is no operation of a scheduled module")

    def _run(self, name: str, given: Sequence[Array], result: Any) -> Any:
        function = self._functions[name]
        outputs = [
            _unwritten(ty) for ty in (result.fields if hasattr(result, "fields") else [result])
        ]
        parameters = [str(parameter.name) for parameter in function.params]
        memory = dict(zip(parameters, [*given, *outputs], strict=True))
        for array, parameter in zip([*given, *outputs], function.params, strict=True):
            if array.size != math.prod(int(size) for size in parameter.shape):
                raise LoweringError(f"{name} is called on {array.size} elements")
        nests: list[Any] = []
        _parts(function.body, memory, nests)
        for kernel in _kernels(name, nests, self.source):
            arguments = [flat(memory[parameter]) for parameter in kernel.parameters]
            counters = self._program.run(kernel.launch, arguments, order=self.order)
            self.counted[kernel.launch.kernel] = counters
        return outputs[0] if len(outputs) == 1 else outputs


def _unwritten(tensor: Any) -> Array:
    shape, dtype = [int(size) for size in tensor.shape], str(tensor.dtype)
    found = unwritten(math.prod(shape), storage_dtype(dtype))
    return found.view(numpy_dtype(dtype)).reshape(shape)


def _parts(statement: Any, memory: dict[str, Array], nests: list[Any]) -> None:
    """The loop nests of a function, each a kernel, and memory for what it allocates; other views of
    a tensor are the same memory."""
    if hasattr(statement, "seq"):
        for inner in statement.seq:
            _parts(inner, memory, nests)
    elif hasattr(statement, "block") and not statement.block.iter_vars:
        for buffer in statement.block.alloc_buffers:
            memory[str(buffer.name)] = _unwritten(buffer)
        _parts(statement.block.body, memory, nests)
    elif hasattr(statement, "buffer") and hasattr(statement, "data"):
        memory[str(statement.buffer.name)] = memory[str(statement.data.args[0].name)]
    else:
        nests.append(statement)


def _kernels(name: str, nests: Sequence[Any], source: str) -> Iterator[_Kernel]:
    """The kernels of a function, one for each of its loop nests, in their order."""
    shared = _SHARED_BYTES if "extern __shared__" in source else 0
    for number, nest in enumerate(nests):
        symbol = f"{name}_kernel" + (f"_{number}" if number else "")
        extents = dict[str, int]()
        _bindings(nest, extents)
        launch = Launch(symbol, _sizes(extents, "block"), _sizes(extents, "thread"), shared)
        yield _Kernel(launch, tuple(parameter_names(source, symbol)))


def _sizes(extents: Mapping[str, int], kind: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(f"{kind}Idx.{axis}", 1) for axis in "xyz")
    return x, y, z


def _bindings(statement: Any, extents: dict[str, int]) -> None:
    """The threads that loops are bound to."""
    tag = getattr(getattr(statement, "thread_binding", None), "thread_tag", "")
    if tag:
        extents[str(tag)] = int(statement.extent)
    for name in ("body", "block", "then_case", "else_case"):
        inner = getattr(statement, name, None)
        if inner is not None:
            _bindings(inner, extents)
    for inner in getattr(statement, "seq", ()):
        _bindings(inner, extents)
