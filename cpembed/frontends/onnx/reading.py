# pyright: basic
"""From a file to a :class:`Model`: nothing in it is run, and nothing outside its folder is read."""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import ModelError
from cpembed.files import read_regular
from cpembed.frontends.onnx.model import FOUR_BITS, Body, Model, ModelInput, Node
from cpembed.graph.kinds.base import Array

LARGEST_FILE = 2**31 - 1
"""Bytes of one protobuf message."""
ELEMENT_TYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
    "uint32", "int64", "uint64", "bool",
)  # fmt: skip


def read_model(path: Path) -> Model:
    """The model in a file.

    Raises :class:`ModelError`, one line, where it cannot be read or is not one.
    """
    try:
        import onnx
    except ImportError:
        raise ModelError(
            f"{path}: ONNX models are read with the package onnx: pip install 'cpembed[network]'"
        ) from None
    data = _bytes(path)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:
        raise ModelError(
            f"{path}: not an ONNX model, or a part of one ({one_line(error)}): get the whole file"
        ) from None
    if not proto.HasField("graph") or not proto.graph.node:
        raise ModelError(f"{path}: holds no graph of operators: not an ONNX model")
    _check(proto, path)
    if proto.functions:
        proto = _inlined(proto, path)
    versions = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    return Model(path.name, Reading(path, versions).body(proto.graph))


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path, LARGEST_FILE)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ModelError(
                f"{path}: {error.strerror}, the 2 GiB of a protobuf message: save its tensors as "
                "external data"
            ) from None
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _check(proto: Any, path: Path) -> None:
    """The checks of the format itself. Tensors outside the file are checked where they are read."""
    import onnx

    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    proto = checked
    for output in proto.graph.output:
        # Exporters leave out the types of outputs, without which the checker refuses a model.
        if not output.type.WhichOneof("value"):
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    if any(_is_external(tensor) for tensor in proto.graph.initializer):
        for tensor in proto.graph.initializer:
            if _is_external(tensor):
                # To the checker an input of the same type is as good.
                value = onnx.helper.make_tensor_value_info(
                    tensor.name, tensor.data_type, list(tensor.dims)
                )
                if tensor.name not in {given.name for given in proto.graph.input}:
                    proto.graph.input.append(value)
        kept = [t for t in proto.graph.initializer if not _is_external(t)]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)
    try:
        onnx.checker.check_model(proto)
    except Exception as error:
        raise ModelError(f"{path}: not a valid model: {one_line(error)}") from None


def _inlined(proto: Any, path: Path) -> Any:
    """The model without functions of its own: each call is replaced by what it stands for."""
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise ModelError(f"{path}: its functions cannot be inlined: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    """What a library says, as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _is_external(tensor: Any) -> bool:
    return tensor.data_location == tensor.EXTERNAL


def _sizes(tensor: Any) -> tuple[int | str, ...] | None:
    """Of a tensor's type: a number, or the name of an open size, for each dimension."""
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)


_REPEATED_BYTES, _REPEATED_SHARE = 64 << 20, 4
"""Tensors in other files have at most these bytes together, and so many times those of the files:
several tensors may lie in the same place."""


class Reading:
    """The conversion of one file's messages."""

    def __init__(self, path: Path, versions: Mapping[str, int]) -> None:
        self.path = path
        self.versions = versions
        self.numbers = iter(range(1, 1 << 62))
        self._files: set[Path] = set()
        self._room = _REPEATED_BYTES

    def body(self, graph: Any, inner: bool = False) -> Body:
        """A graph; ``inner``: an operator's, whose inputs have the types that they are given."""
        self._check_names(graph)
        constants = {t.name: self.array(t, f"constant {t.name}") for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            raise ModelError(
                f"{self.path}: constant {sparse.values.name} is sparse: save the model with dense "
                "constants"
            )
        inputs = tuple(self._inputs(graph, constants, inner))
        outputs = tuple(value.name for value in graph.output)
        nodes = tuple(self.node(node) for node in graph.node)
        return Body(inputs, outputs, constants, nodes, self._declared(graph))

    def _declared(self, graph: Any) -> dict[str, ModelInput]:
        """What the file says of the tensors of a graph, as far as that can be read."""
        found: dict[str, ModelInput] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type"):
                tensor = value.type.tensor_type
                dtype = ""
                with contextlib.suppress(ModelError):
                    dtype = self._dtype(tensor.elem_type, value.name)
                found[value.name] = ModelInput(value.name, dtype, _sizes(tensor))
        return found

    def _check_names(self, graph: Any) -> None:
        """Refuse what no library can have as a name: C's end at the first NUL."""
        names = [value.name for value in (*graph.input, *graph.output, *graph.initializer)]
        for node in graph.node:
            names += [node.name, *node.input, *node.output]
        for name in (graph.name, *names):
            # What is not UTF-8 comes as bytes.
            if isinstance(name, bytes) or "\0" in name:
                fault = "is no text" if isinstance(name, bytes) else "holds a NUL"
                raise ModelError(f"{self.path}: the name {name!r} {fault}: export it without")

    def _inputs(
        self, graph: Any, constants: Mapping[str, Array], inner: bool
    ) -> Iterator[ModelInput]:
        for value in graph.input:
            if inner:
                yield ModelInput(value.name, "", None)
                continue
            if value.name in constants:
                continue
            if not value.type.HasField("tensor_type"):
                raise ModelError(f"{self.path}: input {value.name} is no tensor: give a tensor")
            tensor = value.type.tensor_type
            dtype = self._dtype(tensor.elem_type, f"input {value.name}")
            yield ModelInput(value.name, dtype, _sizes(tensor))

    def node(self, node: Any) -> Node:
        number = next(self.numbers)
        where = f"{node.op_type} {node.name}".strip() + f" (node {number})"
        domain = node.domain or "ai.onnx"
        attributes = {a.name: self._attribute(a, where) for a in node.attribute}
        version = self.versions.get(domain, 1)
        return Node(
            number, node.op_type, domain, version, node.name, tuple(node.input),
            tuple(node.output), attributes,
        )  # fmt: skip

    def _attribute(self, attribute: Any, where: str) -> Any:
        import onnx

        what = f"attribute {attribute.name} of {where}"
        if attribute.type == onnx.AttributeProto.TENSOR:
            return self.array(attribute.t, what)
        if attribute.type == onnx.AttributeProto.GRAPH:
            return self.body(attribute.g, inner=True)
        try:
            value = onnx.helper.get_attribute_value(attribute)
        except Exception as error:
            raise ModelError(f"{self.path}: {what}: {one_line(error)}") from None
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, int | float):
            return value
        if attribute.type == onnx.AttributeProto.STRINGS:
            return tuple(text.decode("utf-8", "replace") for text in value)
        if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            return tuple(value)
        raise ModelError(f"{self.path}: {what} is of a kind that is not read: leave it out")

    def _dtype(self, number: int, what: str) -> str:
        import onnx

        try:
            name = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)))
        except Exception:
            raise ModelError(f"{self.path}: {what} has no element type") from None
        name = "string" if name == "object" else name
        if name not in ELEMENT_TYPES and name not in FOUR_BITS:
            raise ModelError(
                f"{self.path}: {what} is of type {name}, which no network here takes: convert it "
                "to float32 or integers"
            )
        return name

    def array(self, tensor: Any, what: str) -> Array:
        """A tensor of the file, or of one beside it."""
        import onnx

        dtype = self._dtype(tensor.data_type, what)
        shape = tuple(tensor.dims)
        if any(size < 0 for size in shape):
            raise ModelError(f"{self.path}: {what} has the shape {list(shape)}")
        try:
            if _is_external(tensor):
                return self._external(tensor, dtype, shape, what)
            array = onnx.numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{self.path}: {what} is damaged: {one_line(error)}") from None
        if array.shape != shape:
            raise ModelError(f"{self.path}: {what} is damaged: not {math.prod(shape)} elements")
        return array

    def _external(self, tensor: Any, dtype: str, shape: tuple[int, ...], what: str) -> Array:
        """The elements of a file beside the model, which has to lie in the model's folder."""
        import onnx

        said = {entry.key: entry.value for entry in tensor.external_data}
        place = said.get("location", "")
        folder = self.path.resolve().parent
        file = folder / place
        parts = Path(place).parts
        if not place or Path(place).is_absolute() or ".." in parts or "\\" in place:
            raise ModelError(
                f"{self.path}: {what} lies in {place!r}: external data is read from the model's "
                "own folder only"
            )
        try:
            linked = any((folder / Path(*parts[:k])).is_symlink() for k in range(1, len(parts) + 1))
            is_file = file.is_file()
        except (OSError, ValueError):
            # A name that is too long, or holds a NUL.
            linked = is_file = False
        if linked or not is_file:
            reason = "which is a link" if linked else "which is no file"
            raise ModelError(f"{self.path}: {what} lies in {place!r}, {reason}: copy it there")
        element = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if dtype in FOUR_BITS:
            raise ModelError(f"{self.path}: {what} of {dtype} as external data: store bytes")
        try:
            offset = int(said.get("offset", "0"))
            size = math.prod(shape) * element.itemsize
            length = int(said.get("length", str(size)))
        except ValueError:
            offset = size = length = -1
        if offset < 0 or length != size or offset + size > file.stat().st_size:
            raise ModelError(
                f"{self.path}: {what} does not lie in {place!r}, which is shorter or of another "
                "size: get the whole file"
            )
        if file not in self._files:
            self._files.add(file)
            self._room += _REPEATED_SHARE * file.stat().st_size
        self._room -= size
        if self._room < 0:
            raise ModelError(
                f"{self.path}: {what} lies where others do: external data are read as "
                f"{_REPEATED_SHARE} times the bytes of their files at most"
            )
        with file.open("rb") as opened:
            opened.seek(offset)
            return np.frombuffer(opened.read(size), element).reshape(shape)
