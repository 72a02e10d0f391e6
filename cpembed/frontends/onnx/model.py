# pyright: basic
"""An ONNX model as plain values, its reading from a file, and the format's definitions.

Nothing in a file is executed, and nothing outside the model's folder is read.
"""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import ModelError
from cpembed.files import read_regular
from cpembed.frontends.narrow import IN_BYTES
from cpembed.graph.kinds.base import Array

LARGEST_FILE = 2**31 - 1
"""Maximum size in bytes of one protobuf message."""
ELEMENT_TYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
    "uint32", "int64", "uint64", "bool",
)  # fmt: skip
_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})
"""Types several of whose elements share a byte in a file."""
_EXTERNAL_BYTES, _EXTERNAL_SHARE = 64 << 20, 4
"""Maximum size in bytes of all tensors in other files, beyond a multiple of the files' size.

Several tensors may lie in the same place.
"""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node ``outputs = operator(inputs)``; the empty name stands for an input that is left out.

    The number is its place in the file, from 1, and the version that of the domain's operators.
    Attributes are numbers, texts, tuples of these, arrays, and graphs (:class:`Body`).
    """

    number: int
    operator: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{f'{self.operator} {self.name}'.strip()} (node {self.number})"

    @property
    def key(self) -> str:
        """The operator's name, preceded by its domain where that is not the standard one."""
        is_standard = self.domain in ("ai.onnx", "")
        return self.operator if is_standard else f"{self.domain}.{self.operator}"


@dataclass(frozen=True)
class ModelInput:
    """A tensor as the file declares it; the element type is empty where it is open.

    A size is a number or the name of an open one (empty without a name); None stands for an open
    number of dimensions.
    """

    name: str
    dtype: str
    sizes: tuple[int | str, ...] | None


@dataclass(frozen=True)
class Body:
    """The graph of a model, or of a branch of one of its operators.

    ``declared`` are the types that the file states for tensors of the graph, by name.
    """

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    nodes: tuple[Node, ...]
    declared: Mapping[str, ModelInput] = field(default_factory=dict[str, ModelInput])

    def branches(self) -> Iterator[Body]:
        """Yield the graphs inside its nodes, at any depth."""
        for node in self.nodes:
            for value in node.attributes.values():
                if isinstance(value, Body):
                    yield value
                    yield from value.branches()


@dataclass(frozen=True)
class Model:
    """A model with the name that messages and reports use."""

    name: str
    body: Body


def read_model(path: Path) -> Model:
    """Read the model in a file.

    Raises :class:`ModelError`, in one line, for a file that cannot be read or is no model.
    """
    try:
        import onnx
    except ImportError:
        raise ModelError(
            f"{path}: ONNX models are read with the package onnx: pip install 'cpembed[network]'"
        ) from None
    content = _read_bytes(path)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:
        raise ModelError(
            f"{path}: not an ONNX model, or a part of one ({one_line(error)}): get the whole file"
        ) from None
    if not proto.HasField("graph") or not proto.graph.node:
        raise ModelError(f"{path}: holds no graph of operators: not an ONNX model")
    _check(proto, content, path)
    if proto.functions:
        proto = _inlined(proto, path)
    versions = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    return Model(path.name, Reader(path, versions).body(proto.graph))


def _read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, LARGEST_FILE)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ModelError(
                f"{path}: {error.strerror}, the 2 GiB of a protobuf message: save its tensors as "
                "external data"
            ) from None
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _check(proto: Any, content: bytes, path: Path) -> None:
    """Run the format's checks, except of tensors outside the file, which are checked when read."""
    import onnx

    try:
        onnx.checker.check_model(_checkable(proto, content))
    except Exception as error:
        raise ModelError(f"{path}: not a valid model: {one_line(error)}") from None


def _checkable(proto: Any, content: bytes) -> Any:
    """Return the checker's input: the file's bytes, or a model without parts that it rejects."""
    import onnx

    outputs, tensors = proto.graph.output, proto.graph.initializer
    is_complete = all(o.type.HasField("tensor_type") and _has_shape(o) for o in outputs)
    if is_complete and not any(map(_is_external, tensors)):
        # A copy of the model, and its text, would take as long as all else.
        return content
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    graph = checked.graph
    for output in graph.output:
        # Exporters leave out the types of outputs, without which the checker rejects a model.
        if not output.type.WhichOneof("value"):
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    inputs = {value.name for value in graph.input}
    internal = [tensor for tensor in graph.initializer if not _is_external(tensor)]
    for tensor in graph.initializer:
        if _is_external(tensor) and tensor.name not in inputs:
            # The checker would open the file; it accepts an input of the same type as well.
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del graph.initializer[:]
    graph.initializer.extend(internal)
    return checked


def _has_shape(output: Any) -> bool:
    return output.type.tensor_type.HasField("shape")


def _inlined(proto: Any, path: Path) -> Any:
    """Replace each call of a function that the model defines by the function's nodes."""
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise ModelError(f"{path}: its functions cannot be inlined: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    """Return the text of an exception as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _is_external(tensor: Any) -> bool:
    return tensor.data_location == tensor.EXTERNAL


def _sizes(tensor: Any) -> tuple[int | str, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") else _size_name(d.dim_param)
        for d in tensor.shape.dim
    )


def _size_name(name: str) -> str:
    """Return the name of an open size; empty for a placeholder, which names no size.

    Exporters write ``?`` or ``None`` for any size that they do not know: two of them may differ.

    >>> _size_name("batch"), _size_name("?"), _size_name("None")
    ('batch', '', '')
    """
    is_placeholder = name in ("None", "-1") or not any(letter.isalnum() for letter in name)
    return "" if is_placeholder else name


class Reader:
    """Conversion of the messages of one file, whose operators have these versions by domain."""

    def __init__(self, path: Path, versions: Mapping[str, int]) -> None:
        self.path = path
        self.versions = versions
        # Unique in the file: branches count with the graph around them.
        self.numbers = iter(range(1, 1 << 62))
        self._files: set[Path] = set()
        self._bytes_left = _EXTERNAL_BYTES

    def _error(self, text: str) -> ModelError:
        return ModelError(f"{self.path}: {text}")

    def body(self, graph: Any, is_branch: bool = False) -> Body:
        """Convert a graph; the inputs of a branch take the types of their arguments."""
        self._check_names(graph)
        constants = {t.name: self.array(t, f"constant {t.name}") for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            raise self._error(
                f"constant {sparse.values.name} is sparse: save the model with dense constants"
            )
        inputs = tuple(self._inputs(graph, constants, is_branch))
        outputs = tuple(value.name for value in graph.output)
        nodes = tuple(self.node(node) for node in graph.node)
        return Body(inputs, outputs, constants, nodes, self._declared(graph))

    def _declared(self, graph: Any) -> dict[str, ModelInput]:
        """Return the declared types of a graph's tensors, as far as they can be read."""
        declared: dict[str, ModelInput] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type"):
                tensor = value.type.tensor_type
                dtype = ""
                with contextlib.suppress(ModelError):
                    dtype = self._dtype(tensor.elem_type, value.name)
                declared[value.name] = ModelInput(value.name, dtype, _sizes(tensor))
        return declared

    def _check_names(self, graph: Any) -> None:
        """Reject names that a library of C cannot have: its strings end at the first NUL."""
        names = [value.name for value in (*graph.input, *graph.output, *graph.initializer)]
        for node in graph.node:
            names += [node.name, *node.input, *node.output]
        for name in (graph.name, *names):
            # Protobuf returns bytes where a text is not UTF-8.
            if isinstance(name, bytes) or "\0" in name:
                fault = "is no text" if isinstance(name, bytes) else "holds a NUL"
                raise self._error(f"the name {name!r} {fault}: export it without")

    def _inputs(
        self, graph: Any, constants: Mapping[str, Array], is_branch: bool
    ) -> Iterator[ModelInput]:
        for value in graph.input:
            if is_branch:
                yield ModelInput(value.name, "", None)
            elif value.name not in constants:
                if not value.type.HasField("tensor_type"):
                    raise self._error(f"input {value.name} is no tensor: give a tensor")
                tensor = value.type.tensor_type
                dtype = self._dtype(tensor.elem_type, f"input {value.name}")
                yield ModelInput(value.name, dtype, _sizes(tensor))

    def node(self, node: Any) -> Node:
        """Convert a node; numbers are given in the order of the calls."""
        domain = node.domain or "ai.onnx"
        converted = Node(
            number=next(self.numbers),
            operator=node.op_type,
            domain=domain,
            version=self.versions.get(domain, 1),
            name=node.name,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={},
        )
        attributes = {a.name: self._attribute(a, str(converted)) for a in node.attribute}
        return replace(converted, attributes=attributes)

    def _attribute(self, attribute: Any, place: str) -> Any:
        import onnx

        label = f"attribute {attribute.name} of {place}"
        if attribute.type == onnx.AttributeProto.TENSOR:
            return self.array(attribute.t, label)
        if attribute.type == onnx.AttributeProto.GRAPH:
            return self.body(attribute.g, is_branch=True)
        try:
            value = onnx.helper.get_attribute_value(attribute)
        except Exception as error:
            raise self._error(f"{label}: {one_line(error)}") from None
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, int | float):
            return value
        if attribute.type == onnx.AttributeProto.STRINGS:
            return tuple(text.decode("utf-8", "replace") for text in value)
        if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            return tuple(value)
        raise self._error(f"{label} is of a kind that is not read: leave it out")

    def _dtype(self, number: int, label: str) -> str:
        import onnx

        try:
            name = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)))
        except Exception:
            raise self._error(f"{label} has no element type") from None
        # onnx maps texts to objects of Python.
        name = "string" if name == "object" else name
        if name not in ELEMENT_TYPES and name not in IN_BYTES:
            raise self._error(
                f"{label} is of type {name}, which no network here takes: convert it "
                "to float32 or integers"
            )
        return name

    def array(self, tensor: Any, label: str) -> Array:
        """Return the elements of a tensor, which may lie in another file of the model's folder.

        Raises :class:`ModelError`, which names the tensor by the ``label``, for a damaged one.
        """
        import onnx

        dtype = self._dtype(tensor.data_type, label)
        shape = tuple(tensor.dims)
        if any(size < 0 for size in shape):
            raise self._error(f"{label} has the shape {list(shape)}")
        try:
            if _is_external(tensor):
                return self._external(tensor, dtype, shape, label)
            array = onnx.numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:
            raise self._error(f"{label} is damaged: {one_line(error)}") from None
        if array.shape != shape:
            raise self._error(f"{label} is damaged: not {math.prod(shape)} elements")
        return array

    def _external(self, tensor: Any, dtype: str, shape: tuple[int, ...], label: str) -> Array:
        """Read a tensor from another file."""
        import onnx

        entries = {entry.key: entry.value for entry in tensor.external_data}
        place = entries.get("location", "")
        file = self._external_file(place, label)
        element = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        # Several elements share a byte.
        is_packed = dtype in _PACKED
        try:
            offset = int(entries.get("offset", "0"))
            size = math.prod(shape) * element.itemsize
            if is_packed:
                bits = 2 if dtype.endswith("int2") else 4
                size = -(-math.prod(shape) * bits // 8)
            length = int(entries.get("length", str(size)))
        except ValueError:
            offset = size = length = -1
        if offset < 0 or length != size or offset + size > file.stat().st_size:
            raise self._error(
                f"{label} does not lie in {place!r}, which is shorter or of another "
                "size: get the whole file"
            )
        # A file counts once, however many tensors lie in it.
        if file not in self._files:
            self._files.add(file)
            self._bytes_left += _EXTERNAL_SHARE * file.stat().st_size
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise self._error(
                f"{label} overlaps other tensors: at most {_EXTERNAL_SHARE} times the "
                "bytes of the external files are read"
            )
        with file.open("rb") as opened:
            opened.seek(offset)
            contents = opened.read(size)
        if is_packed:
            copy = onnx.TensorProto(data_type=tensor.data_type, dims=shape, raw_data=contents)
            return onnx.numpy_helper.to_array(copy)
        return np.frombuffer(contents, element).reshape(shape)

    def _external_file(self, place: str, label: str) -> Path:
        """Return the file of external data; reject one outside the model's folder, and links."""
        folder, parts = self.path.resolve().parent, Path(place).parts
        if not place or Path(place).is_absolute() or ".." in parts or "\\" in place:
            raise self._error(
                f"{label} lies in {place!r}: external data is read from the model's own folder only"
            )
        try:
            # A link could lead out of the folder.
            linked = any((folder / Path(*parts[:k])).is_symlink() for k in range(1, len(parts) + 1))
            is_file = (folder / place).is_file()
        except (OSError, ValueError):
            # The name is too long, or holds a NUL.
            linked = is_file = False
        if linked or not is_file:
            reason = "which is a link" if linked else "which is no file"
            raise self._error(f"{label} lies in {place!r}, {reason}: copy it there")
        return folder / place
