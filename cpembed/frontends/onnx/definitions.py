"""Operators of ONNX that stand for others: the format's own definitions of them."""

# pyright: basic

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.onnx.model import Body, ModelInput, Node, Reader
from cpembed.graph.kinds import TensorType
from cpembed.ir.dtypes import numpy_dtype


def is_defined(node: Node) -> bool:
    """Return True if the format has a definition of a node's operator."""
    if node.domain != "ai.onnx" or any(isinstance(v, Body) for v in node.attributes.values()):
        return False
    return _schema(node.operator, node.version) is not None


@cache
def _schema(operator: str, version: int) -> Any:
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(operator, version, "")
    except Exception:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def definition(node: Node, types: Sequence[TensorType | None]) -> Body:
    """Return the operators that stand for a node with inputs of these types.

    Raises :class:`WorkloadError` for inputs that the definition does not cover.
    """
    import onnx

    def latest(versions: Sequence[int]) -> int:
        return max((v for v in versions if v <= node.version), default=min(versions))

    schema, function = _schema(node.operator, node.version), onnx.FunctionProto()
    arrays = {k: v for k, v in node.attributes.items() if isinstance(v, np.ndarray)}
    tensors = {name: onnx.numpy_helper.from_array(value) for name, value in arrays.items()}
    values = {**node.attributes, **tensors}
    proto = onnx.helper.make_node(node.operator, node.inputs, node.outputs, node.name, **values)
    if schema.function_opset_versions:
        version = latest(schema.function_opset_versions)
        function.ParseFromString(schema.get_function_with_opset_version(version))
    else:
        # Other definitions are made for the types of the inputs.
        version = latest(schema.context_dependent_function_opset_versions)
        messages = [_type_message(kind).SerializeToString() for kind in types]
        try:
            content = schema.get_context_dependent_function_with_opset_version(
                version, proto.SerializeToString(), messages
            )
        except Exception:
            # onnx raises errors of C++ for types that a definition does not have.
            raise WorkloadError("its definition does not cover these inputs") from None
        function.ParseFromString(content)
    if not function.node:
        raise WorkloadError("the format has no definition of it for these inputs")
    attributes = {attribute.name: attribute for attribute in proto.attribute}
    for name, default in schema.attributes.items():
        if name not in attributes and default.default_value.name:
            attributes[name] = default.default_value
    for inner in function.node:
        _resolve_references(inner, attributes)
    versions = {entry.domain or "ai.onnx": entry.version for entry in function.opset_import}
    reader = Reader(Path(node.operator), versions or {"ai.onnx": node.version})
    missing = {n for k, n in enumerate(function.input) if k >= len(types) or types[k] is None}

    def placed(inner: Node) -> Node:
        """Give an inner node the place of the operator, and leave out the inputs that it lacks."""
        inputs = tuple("" if name in missing else name for name in inner.inputs)
        return replace(inner, number=node.number, name=node.name, inputs=inputs)

    nodes = tuple(placed(reader.node(inner)) for inner in function.node)
    inputs = tuple(ModelInput(name, "", None) for name in function.input)
    return Body(inputs, tuple(function.output)[: len(node.outputs)], {}, nodes)


def _resolve_references(inner: Any, attributes: dict[str, Any]) -> None:
    """Replace references to the operator's attributes by the attributes."""
    resolved = []
    for attribute in inner.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in attributes:
                copy = type(attribute)()
                copy.CopyFrom(attributes[attribute.ref_attr_name])
                copy.name = attribute.name
                resolved.append(copy)
            continue
        for deeper in attribute.g.node:
            _resolve_references(deeper, attributes)
        resolved.append(attribute)
    del inner.attribute[:]
    inner.attribute.extend(resolved)


def _type_message(kind: TensorType | None) -> Any:
    import onnx

    if kind is None:
        return onnx.TypeProto()
    number = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(kind.dtype))
    return onnx.helper.make_tensor_type_proto(number, kind.shape)
