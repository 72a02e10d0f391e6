# pyright: basic
"""Operators of ONNX that another runtime, or a function of the caller, computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from cpembed.errors import BackendUnavailable, ModelError
from cpembed.frontends import Callback, Fallback
from cpembed.frontends.builder import zeros_of
from cpembed.frontends.onnx.call import Call
from cpembed.frontends.onnx.model import Body, Node
from cpembed.graph.kinds import Foreign, TensorType
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import numpy_dtype

ONNXRUNTIME = "onnxruntime"


def check_fallback(model: str, fallback: Fallback) -> None:
    """Raise an error for a fallback that ONNX models do not have, or that is not installed."""
    if isinstance(fallback, str):
        if fallback != ONNXRUNTIME:
            raise ModelError(f"{model}: fallback {fallback}: an ONNX model has {ONNXRUNTIME}")
        if find_spec(ONNXRUNTIME) is None:
            raise BackendUnavailable(
                f"{model}: --fallback {ONNXRUNTIME} needs it: pip install onnxruntime"
            )


def covers(fallback: Fallback, node: Node) -> bool:
    """Return True if a fallback computes a node that is not read."""
    if fallback is None:
        return False
    return isinstance(fallback, str) or node.key in fallback


def emit_foreign(call: Call, fallback: Fallback) -> list[str]:
    """Emit a node as an operator that the fallback computes.

    Parameters
    ----------
    call : Call
        The node.
    fallback : Fallback
        One that covers it.

    Raises
    ------
    ModelError
        For a node with branches, and for results whose sizes depend on elements.
    """
    node = call.node
    if any(isinstance(value, Body) for value in node.attributes.values()):
        call.reject("it has branches, which no fallback takes: cut the network before it")
    tensors = [tensor for tensor in call.inputs if tensor is not None]
    if isinstance(fallback, str):
        kind = _in_onnxruntime(call)
        # Constants are part of the session.
        tensors = [tensor for tensor in tensors if call.builder.value(tensor) is None]
        if not tensors:
            tensors = [call.tensor(np.zeros((), np.float32))]
    else:
        kind = _callback(call, cast("Mapping[str, Callback]", fallback)[node.key])
    return list(call.emit_all(kind, *tensors))


def _in_onnxruntime(call: Call) -> Foreign:
    """Return an operator that a session of a model with this node alone computes."""
    import onnx
    import onnxruntime

    node = call.node
    arrays = {k: v for k, v in node.attributes.items() if isinstance(v, np.ndarray)}
    values: dict[str, Any] = {
        **node.attributes,
        **{k: onnx.numpy_helper.from_array(v) for k, v in arrays.items()},
    }
    names = ["" if tensor is None else f"input{k}" for k, tensor in enumerate(call.inputs)]
    outputs = [f"output{k}" if name else "" for k, name in enumerate(node.outputs)]
    proto = onnx.helper.make_node(
        node.operator, names, outputs, domain=node.domain if "." in node.key else "", **values
    )
    inputs: list[Any] = []
    constants: list[Any] = []
    for name, tensor in zip(names, call.inputs, strict=True):
        if tensor is None:
            continue
        value, kind = call.builder.value(tensor), call.builder.types[tensor]
        if value is not None:
            constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        else:
            number = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(kind.dtype))
            inputs.append(onnx.helper.make_tensor_value_info(name, number, kind.shape))
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = onnx.helper.make_graph([proto], "fallback", inputs, results, constants)
    versions = [onnx.helper.make_opsetid("", node.version if "." not in node.key else 21)]
    if "." in node.key:
        versions.append(onnx.helper.make_opsetid(node.domain, node.version))
    model = onnx.helper.make_model(graph, opset_imports=versions, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        # It raises errors of C++ for operators that it does not have.
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"onnxruntime does not run it either: {reason}") from None
    order = [value.name for value in inputs]
    types = [_result_type(call, output) for output in session.get_outputs()]
    if not all(kind.shape for kind in types):
        # onnxruntime also says "no dimensions" of results whose shapes it does not derive.
        varying = [t for t in call.inputs if t is not None and call.builder.value(t) is None]
        zeros = [zeros_of(call.builder.types[tensor]) for tensor in varying]
        computed: Any = session.run(None, dict(zip(order, zeros, strict=True)))
        types = [TensorType(a.shape, kind.dtype) for a, kind in zip(computed, types, strict=True)]

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        results: Any = session.run(None, dict(zip(order, arrays, strict=False)))
        return results

    return Foreign(node.key, tuple(types), ONNXRUNTIME, run)


_ELEMENTS = {
    "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16",
    "bool": "bool",
}  # fmt: skip
"""Element types by onnxruntime's names, where these are not numpy's."""


def _result_type(call: Call, output: Any) -> TensorType:
    shape = tuple(output.shape)
    if not all(isinstance(size, int) for size in shape):
        call.reject(
            "the sizes of its results depend on elements, so that nothing after it could be "
            "compiled: cut the network before it with --outputs"
        )
    name = str(output.type).removeprefix("tensor(").removesuffix(")")
    return TensorType(shape, _ELEMENTS.get(name, name))


def _callback(call: Call, function: Callback) -> Foreign:
    """Return an operator that a function computes; its types are those of results for zeros."""
    attributes = dict(call.node.attributes)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        try:
            results = function(arrays, attributes)
        except Exception as error:
            # A function raises what it likes, which says nothing of the network.
            reason = " ".join(str(error).split())
            raise ModelError(
                f"{call.place_name}: the fallback of {call.node.key}, {_name(function)}, failed: "
                f"{type(error).__name__}: {reason}"
            ) from error
        return [results] if isinstance(results, np.ndarray) else list(results)

    kinds = [call.builder.types[tensor] for tensor in call.inputs if tensor is not None]
    zeros = [zeros_of(kind) for kind in kinds]
    types = tuple(TensorType.of_array(np.asarray(array)) for array in run(zeros))
    return Foreign(call.node.key, types, "callback", run)


def _name(function: Callback) -> str:
    return getattr(function, "__qualname__", repr(function))
