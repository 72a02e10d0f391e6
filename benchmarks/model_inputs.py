"""Sizes and inputs with which onnxruntime runs a model, and its results for other last bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_IMAGES = ((224, 224), (48, 320), (320, 320), (640, 640), (32, 128), (64, 64), (112, 112), (32, 32))
_SEQUENCES = tuple((size, size) for size in (64, 16, 128, 512, 400, 1024, 16000, 8, 2, 1))
"""Rows and columns of images, and sizes of other axes, in the order in which they are tried."""

_TYPES: Mapping[str, str] = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16", "int32": "int32",
    "uint32": "uint32", "int64": "int64", "uint64": "uint64",
}  # fmt: skip
"""Element types of numpy by onnxruntime's names."""


_COUNT = re.compile("num_|seq|len|nodes|edges|atoms|frames|tokens")
"""Names of sizes that are no batch, wherever they stand."""


@dataclass(frozen=True)
class Declared:
    """Input of a model; a size is a number, or the name of an open one, or None."""

    name: str
    dtype: str
    sizes: tuple[int | str | None, ...]


class Reference:
    """Session of onnxruntime on one thread.

    With a ``seed`` the last bits of the model's weights are changed at random.
    """

    def __init__(self, path: Path, *, seed: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # By default sums of uint8 times int8 saturate on a processor that has AVX2 alone.
        options.add_session_config_entry("session.x64quantprecision", "1")
        self.path = path
        source = str(path) if seed is None else _with_other_bits(path, seed)
        self._session: Any = onnxruntime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [
            Declared(value.name, _dtype(value.type), tuple(value.shape))
            for value in self._session.get_inputs()
        ]
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs by name."""
        results = self._session.run(None, dict(inputs))
        return dict(zip(self._outputs, (np.asarray(array) for array in results), strict=True))


_LEAST_WEIGHTS = 16
"""Minimum number of elements of weights: exponents and limits of clipping stay as they are."""


def _with_other_bits(path: Path, seed: int) -> bytes:
    """Return a model whose weights of float32 differ in their last bits."""
    import onnx

    model = onnx.load(path)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size >= _LEAST_WEIGHTS:
            changed = perturbed({"": array}, seed)[""]
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    return model.SerializeToString()


def _dtype(text: str) -> str:
    name = text.removeprefix("tensor(").removesuffix(")")
    if name not in _TYPES:
        raise ValueError(f"an input of type {text}")
    return _TYPES[name]


@dataclass(frozen=True)
class Candidate:
    """Shapes of all inputs, with the size of their axes of time and the largest integer.

    ``numbers`` are values of inputs by name.
    """

    declared: tuple[Declared, ...]
    shapes: Mapping[str, tuple[int, ...]]
    length: int
    largest: int
    numbers: Mapping[str, float]

    @property
    def open_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs that have an open size."""
        return {
            value.name: self.shapes[value.name]
            for value in self.declared
            if not all(isinstance(size, int) and size >= 0 for size in value.sizes)
        }

    def arrays(self, seed: int) -> dict[str, Array]:
        """Return random inputs."""
        random = np.random.default_rng(seed)
        return {v.name: self._array(v, self.shapes[v.name], random) for v in self.declared}

    def _array(self, value: Declared, shape: tuple[int, ...], random: np.random.Generator) -> Array:
        """Return a random input; what its name says of its values is heeded."""
        name = value.name.lower()
        dtype = np.dtype(value.dtype)
        if value.name in self.numbers:
            return np.full(shape, self.numbers[value.name], dtype)
        if dtype == np.bool_:
            return random.integers(0, 2, shape).astype(np.bool_)
        if dtype.kind == "f":
            return random.normal(size=shape).astype(dtype)
        if re.fullmatch(r"sr|.*sample_?rate.*", name):
            return np.full(shape, 16000, dtype)
        if re.search(r"len(gth)?s?$|_num$", name):
            return np.full(shape, self.length, dtype)
        if "mask" in name:
            return np.ones(shape, dtype)
        if "type" in name:
            return np.zeros(shape, dtype)
        largest = min(self.largest, int(np.iinfo(dtype).max))
        least = -128 if dtype == np.int8 else 0
        return random.integers(least, largest, shape, dtype, endpoint=True)


def candidates(declared: Sequence[Declared], bound: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield shapes of all inputs, the usual ones first.

    Parameters
    ----------
    declared : sequence of Declared
    bound : mapping
        Shapes that are prescribed, as lists, and numbers of inputs, by the inputs' names.
    """
    sizes = {name: tuple(value) for name, value in bound.items() if isinstance(value, list)}
    numbers = {name: value for name, value in bound.items() if not isinstance(value, list)}
    has_image = any(len(value.sizes) == 4 for value in declared)
    sides = (*_IMAGES, *_SEQUENCES) if has_image else _SEQUENCES
    is_open = any(_open(size) for value in declared for size in value.sizes)
    for rows, columns in sides if is_open else (_SEQUENCES[0],):
        shapes = {
            value.name: sizes.get(value.name) or _filled(value, rows, columns) for value in declared
        }
        for largest in (255, 20, 1):
            yield Candidate(tuple(declared), shapes, columns, largest, numbers)
            if not any(np.dtype(value.dtype).kind in "iu" for value in declared):
                break


def _open(size: int | str | None) -> bool:
    return not isinstance(size, int) or size < 0


def _filled(value: Declared, rows: int, columns: int) -> tuple[int, ...]:
    """Return a shape: batches of one, images of three channels, all else of one length."""
    shape: list[int] = []
    for axis, size in enumerate(value.sizes):
        rank = len(value.sizes)
        if isinstance(size, int) and size >= 0:
            shape.append(size)
        elif _COUNT.search(str(size)):
            shape.append(columns)
        elif "batch" in str(size).lower() or (axis == 0 and rank > 1):
            shape.append(1)
        elif axis == 1 and rank == 4 and all(_open(extent) for extent in value.sizes[2:]):
            shape.append(3)
        else:
            last = rank - 2 if value.sizes[-1] in (1, 3) else rank - 1
            shape.append(columns if axis == last else rows)
    return tuple(shape)


def perturbed(inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Return inputs whose floats differ in their last bit, up or down at random."""
    random = np.random.default_rng(seed)
    results: dict[str, Array] = {}
    for name, array in inputs.items():
        if array.dtype.kind == "f":
            signs = random.integers(-1, 2, array.shape).astype(array.dtype)
            # A sum of arrays without dimensions is no array.
            changed = np.asarray(array + signs * np.spacing(np.abs(array)))
            results[name] = changed.astype(array.dtype)
        else:
            results[name] = array
    return results
