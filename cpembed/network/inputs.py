"""Inputs and outputs of a network as files of numpy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.errors import CpembedError, WorkloadError
from cpembed.graph.graph import Array, Graph, check_inputs

LARGEST_FILE = 1 << 32
"""Bytes of a file of inputs."""

LONGEST_NAME = 200
"""Letters of a file's name, without its ending."""


def read_inputs(graph: Graph, path: Path) -> dict[str, Array]:
    """The inputs of a network: a ``.npz`` with an array of each name, or a ``.npy`` of the only
    one. Nothing is converted.

    Raises :class:`WorkloadError`, which names the file, for anything else.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise WorkloadError(f"{path}: more than 4 GiB: not a file of inputs")
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if len(graph.inputs) != 1:
                names = ", ".join(graph.inputs)
                raise WorkloadError(f"{path} has one array, the network takes {names}: give a .npz")
            arrays: dict[str, Array] = {next(iter(graph.inputs)): loaded}
        else:
            with loaded:
                arrays = {name: loaded[name] for name in loaded.files}
    except WorkloadError:
        raise
    except Exception as error:  # Of a damaged file numpy and zipfile raise anything.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WorkloadError(f"{path} is no file of arrays (.npy, .npz): {reason}") from None
    check_inputs(graph, arrays)
    return arrays


def write_outputs(folder: Path, outputs: Mapping[str, Array]) -> None:
    """A file ``NAME.npy`` for each output: :func:`file_names`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in file_names(outputs).items():
            np.save(folder / f"{file}.npy", outputs[name])
    except OSError as error:
        raise CpembedError(f"{folder} cannot be written: {error.strerror or error}") from None


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
