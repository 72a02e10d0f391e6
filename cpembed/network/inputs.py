"""Inputs and outputs of a network as files of numpy."""

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
from cpembed.graph.graph import Array, Graph, check_inputs
from cpembed.graph.kinds import Gather
from cpembed.runtime.measurement.verification import with_special_values

LARGEST_FILE = 1 << 32
"""Bytes of a file of inputs."""

_LARGEST_ELEMENT, _HEADER_BYTES = 16, 1 << 16
"""Bytes of an element of any type, and of what stands before the array in a file."""

LONGEST_NAME = 200
"""Letters of a file's name, without its ending."""


def read_inputs(graph: Graph, path: Path) -> dict[str, Array]:
    """The inputs of a network: a ``.npz`` with an array of each name, or a ``.npy`` of the only
    one. Nothing is converted.

    Raises :class:`WorkloadError`, which names the file, for anything else.
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
        if os.fstat(file.fileno()).st_size > LARGEST_FILE:
            raise WorkloadError(f"{path}: more than 4 GiB: not a file of inputs")
        if zipfile.is_zipfile(file):
            _check_unpacked(graph, path, file)
        file.seek(0)
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
    except Exception as error:  # Of a damaged file numpy and zipfile raise anything.
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
    """A file ``NAME.npy`` for each output: :func:`file_names`."""
    make_folder(folder)
    for name, file in file_names(outputs).items():
        content = io.BytesIO()
        np.save(content, outputs[name], allow_pickle=False)
        write_whole(folder / f"{file}.npy", content.getvalue())


def file_names(names: Iterable[str]) -> dict[str, str]:
    """For each tensor a file's name of its own: letters that such a name should not have replaced,
    the end of a long one cut off, and a number where that makes two alike.

    >>> file_names(["out/sum:0", "out sum 0", "logits"])
    {'out/sum:0': 'out_sum_0', 'out sum 0': 'out_sum_0-2', 'logits': 'logits'}
    """
    found: dict[str, str] = {}
    # Upper and lower case are one name on some file systems.
    taken: set[str] = set()
    for name in names:
        short = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:LONGEST_NAME].lstrip(".") or "_"
        file, number = short, 2
        while file.lower() in taken:
            file, number = f"{short}-{number}", number + 1
        taken.add(file.lower())
        found[name] = file
    return found


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Inputs of a network: floats normally distributed, integers over what a byte holds."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, kind in graph.inputs.items():
        if kind.dtype.startswith("float"):
            found[name] = random.normal(size=kind.shape).astype(kind.dtype)
        elif kind.dtype == "bool":
            found[name] = random.integers(0, 2, kind.shape).astype(np.bool_)
        else:
            limits = np.iinfo(kind.dtype)
            low, high = max(limits.min, -128), min(limits.max, 255)
            low = 0 if limits.bits > 8 else low
            found[name] = random.integers(low, high, kind.shape, kind.dtype, endpoint=True)
    return found


def special_inputs(graph: Graph, inputs: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
    """The inputs with special values among them
    (:func:`~cpembed.runtime.measurement.verification.with_special_values`). Booleans, single
    elements, and integers by which a gather finds elements are the same arrays."""
    generator = np.random.default_rng(seed)
    indices = _read_as_indices(graph)
    return {
        name: array
        if name in indices or array.size < 2 or array.dtype == np.bool_
        else with_special_values(array, generator)
        for name, array in inputs.items()
    }


def _read_as_indices(graph: Graph) -> set[str]:
    """Tensors from which the indices of a gather are computed."""
    found: set[str] = set()
    for operator in reversed(graph.operators):
        if isinstance(operator.kind, Gather):
            found.add(operator.inputs[1])
        if found.intersection(operator.outputs):
            found.update(operator.inputs)
    return found
