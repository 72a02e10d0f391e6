"""Models compiled and loaded in one call, with sizes that are fixed or ranges."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cpembed.errors import WorkloadError
from cpembed.frontends import load_network
from cpembed.frontends.open_sizes import Request
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.network import build
from cpembed.network.build import RunningNetwork
from cpembed.network.family import Ranges, RunningFamily, compile_family


def compile_sizes(
    model: str | Path | Graph | Family,
    target: str | HardwareSpec,
    *,
    shapes: Request | None = None,
    ranges: Ranges | None = None,
    folder: Path | None = None,
    threads: int = 0,
) -> RunningNetwork | RunningFamily:
    """Compile a network and load it, so that it can be called with arrays.

    Parameters
    ----------
    model : str, Path, Graph or Family
        File of an ONNX model or an exported PyTorch program, or what
        :func:`~cpembed.frontends.load_network` read from one.
    target : str or HardwareSpec
        Target by name, file or value, whose kernels run on this machine.
    shapes : mapping, optional
        Sizes that a file leaves open, as for :func:`~cpembed.frontends.load_network`. If one is a
        range, such as ``{"batch": range(1, 17)}``, the network takes arrays of any size in it.
    ranges : Ranges, optional
        How close to a library for each single size such a library is to be.
    folder : Path, optional
        Folder for the library; by default a temporary one.
    threads : int
        Number of threads; 0 for as many as the process has for kernels.

    Returns
    -------
    RunningNetwork or RunningFamily
        ``network(x)`` computes the outputs.

    Raises
    ------
    ModelError
        If the file is not understood.
    BackendUnavailable, LoweringError
        As :func:`~cpembed.network.build.compile_model` does.
    """
    if isinstance(model, str | Path):
        network = load_network(model, shapes)
    elif shapes:
        raise WorkloadError(f"{model.name}: shapes apply to a file: a graph has its sizes")
    else:
        network = model
    if not isinstance(network, Family):
        return build.compile_model(network, target, folder=folder, threads=threads)
    if folder is not None:
        return compile_family(network, target, folder, ranges=ranges).open(threads)
    scratch = tempfile.TemporaryDirectory(prefix="cpembed-")
    running = compile_family(network, target, Path(scratch.name), ranges=ranges).open(threads)
    # Its finalizer removes the folder once the network is no longer used.
    running.scratch = scratch
    return running
