"""Inputs and outputs of a network: files of numpy, random inputs, special values."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.files import make_folder, open_regular, write_whole
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import CacheUpdate, Gather, GroupedGather
from cpembed.graph.loop import Loop, nested_operators
from cpembed.ir.dtypes import is_integer, numpy_dtype
from cpembed.runtime.measurement.verification_data import with_special_values

# Maximum size of a file of inputs, in bytes.
_LARGEST_FILE = 1 << 32

# Maximum number of bytes of an element, and of the header of an array in a file.
_LARGEST_ELEMENT, _HEADER_BYTES = 16, 1 << 16

# Maximum number of letters of a file's name without its ending: file systems allow 255 bytes.
_LONGEST_NAME = 200


def read_inputs(graph: Graph, path: Path) -> dict[str, Array]:
    """Read a network's inputs: a ``.npz`` with an array per name, or a ``.npy`` of the only one.

    Types and shapes must be those of the network. Raises :class:`WorkloadError`, which names the
    file, if they are not.
    """
    try:
        file = os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from None
    with file:
        arrays = _arrays(graph, path, file)
    check_inputs(graph, arrays)
    return arrays


def _arrays(graph: Graph, path: Path, file: BinaryIO) -> dict[str, Array]:
    try:
        if os.fstat(file.fileno()).st_size > _LARGEST_FILE:
            raise WorkloadError(f"{path}: more than 4 GiB: not a file of inputs")
        # A small zip may unpack to any size.
        if zipfile.is_zipfile(file):
            _check_unpacked(graph, path, file)
        file.seek(0)
        # Pickles, which numpy would load for arrays of objects, could run code.
        loaded: Any = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if len(graph.inputs) != 1:
                names = ", ".join(graph.inputs)
                raise WorkloadError(f"{path} has one array, the network takes {names}: give a .npz")
            return {next(iter(graph.inputs)): loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except WorkloadError:
        raise
    except Exception as error:  # numpy and zipfile raise anything for a damaged file.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WorkloadError(f"{path} is no file of arrays (.npy, .npz): {reason}") from None


def _check_unpacked(graph: Graph, path: Path, file: BinaryIO) -> None:
    """Raise :class:`WorkloadError` for a zip that unpacks to more bytes than the inputs have."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    sizes = (kind.elements * _LARGEST_ELEMENT for kind in graph.inputs.values())
    largest = sum(sizes) + _HEADER_BYTES * len(graph.inputs)
    if unpacked > largest:
        raise WorkloadError(
            f"{path}: its arrays have {unpacked:,} bytes unpacked, more than the network's inputs: "
            f"give {', '.join(graph.inputs)} only"
        )


def write_outputs(folder: Path, outputs: Mapping[str, Array]) -> None:
    """Write a file ``NAME.npy`` per output, named by :func:`file_names`."""
    make_folder(folder)
    for name, file in file_names(outputs).items():
        content = io.BytesIO()
        np.save(content, outputs[name], allow_pickle=False)
        write_whole(folder / f"{file}.npy", content.getvalue())


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a unique file name per tensor.

    Unsuitable letters are replaced, long names are cut, and names that become equal are numbered.

    >>> file_names(["out/sum:0", "out sum 0", "logits"])
    {'out/sum:0': 'out_sum_0', 'out sum 0': 'out_sum_0-2', 'logits': 'logits'}
    """
    files: dict[str, str] = {}
    # Some file systems do not distinguish upper and lower case.
    used: set[str] = set()
    for name in names:
        short = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:_LONGEST_NAME].lstrip(".") or "_"
        file, number = short, 2
        while file.lower() in used:
            file, number = f"{short}-{number}", number + 1
        used.add(file.lower())
        files[name] = file
    return files


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Return random inputs: normally distributed floats, integers within the range of a byte.

    Integers from which indices are computed are smaller than what they select from.
    """
    random = np.random.default_rng(seed)
    sizes = _sizes_by_index(graph)
    inputs: dict[str, Array] = {}
    for name, kind in graph.inputs.items():
        if not is_integer(kind.dtype):
            inputs[name] = random.normal(size=kind.shape).astype(numpy_dtype(kind.dtype))
        elif kind.dtype == "bool":
            inputs[name] = random.integers(0, 2, kind.shape).astype(np.bool_)
        else:
            limits = np.iinfo(kind.dtype)
            low, high = max(limits.min, -128), min(limits.max, 255)
            low = 0 if limits.bits > 8 or name in sizes else low
            high = max(low, min(high, sizes.get(name, high + 1) - 1))
            inputs[name] = random.integers(low, high, kind.shape, kind.dtype, endpoint=True)
    return inputs


def special_inputs(graph: Graph, inputs: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
    """Return inputs with special values among them.

    Booleans, single elements, and integers from which indices of a gather are computed stay the
    same arrays. The values are those of
    :func:`~cpembed.runtime.measurement.verification_data.with_special_values`.

    Parameters
    ----------
    graph : Graph
    inputs : mapping from str to ndarray
    seed : int, default 0
        Seed of the positions that get special values.
    """
    # A special value may keep a condition true for ever.
    if any(o.kind.steps is None for o, _, _ in nested_operators(graph) if isinstance(o.kind, Loop)):
        return dict(inputs)
    generator = np.random.default_rng(seed)
    indices = _sizes_by_index(graph)
    return {
        name: array
        if name in indices or array.size < 2 or array.dtype == np.bool_
        else with_special_values(array, generator)
        for name, array in inputs.items()
    }


def _sizes_by_index(graph: Graph) -> dict[str, int]:
    """Return the tensors from which indices of a gather are computed, with the least axis' size."""
    sizes: dict[str, int] = {}
    for operator in reversed(graph.operators):
        read = min((sizes[name] for name in operator.outputs if name in sizes), default=None)
        limits = [] if read is None else [(name, read) for name in operator.inputs]
        indexed = _indexed_size(graph, operator)
        if indexed is not None:
            # The last input of these operators has the indices.
            limits.append((operator.inputs[-1], indexed))
        if isinstance(operator.kind, Loop):
            # States may carry an index from any input to a gather of the body.
            inside = _sizes_by_index(operator.kind.body).values()
            limits += [(name, min(inside)) for name in operator.inputs if inside]
        for name, size in limits:
            sizes[name] = min(size, sizes.get(name, size))
    return sizes


def _indexed_size(graph: Graph, operator: Operator) -> int | None:
    """Return the size of the axis that an operator's indices select from; None without indices."""
    kind = operator.kind
    if isinstance(kind, Gather | CacheUpdate):
        return graph.types[operator.inputs[0]].shape[kind.axis]
    return kind.weights.rows if isinstance(kind, GroupedGather) else None
