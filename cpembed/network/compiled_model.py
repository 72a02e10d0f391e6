"""Models compiled and loaded in one call, with sizes that are fixed or ranges."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpembed.driver.matching import network_units
from cpembed.errors import WorkloadError
from cpembed.frontends import load_network
from cpembed.frontends.binding import bind_inputs
from cpembed.frontends.open_sizes import Request
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.network import build
from cpembed.network.build import RunningNetwork
from cpembed.network.family import Ranges, RunningFamily, compile_family
from cpembed.targets.units import NATIVE, FloatType, Units


def compile_sizes(
    model: str | Path | Graph | Family,
    target: str | HardwareSpec | Units = NATIVE,
    *,
    shapes: Request | None = None,
    constants: Mapping[str, Any] | None = None,
    ranges: Ranges | None = None,
    float_type: FloatType | None = None,
    folder: Path | None = None,
    threads: int = 0,
) -> RunningNetwork | RunningFamily:
    """Compile a network and load it, so that it can be called with arrays.

    Parameters
    ----------
    model : str, Path, Graph or Family
        File of an ONNX model or an exported PyTorch program, or what
        :func:`~cpembed.frontends.load_network` read from one.
    target : str, HardwareSpec or Units, default "native"
        All instructions of this processor, or a target by name, file or value whose kernels run on
        this machine.
    shapes : mapping, optional
        Sizes that a file leaves open, as for :func:`~cpembed.frontends.load_network`. If one is a
        range, such as ``{"batch": range(1, 17)}``, the network takes arrays of any size in it.
    constants : mapping from str to value, optional
        Inputs that are the same in every call, as :func:`~cpembed.frontends.load_model` takes them.
    ranges : Ranges, optional
        How close to a library for each single size such a library is to be.
    folder : Path, optional
        Folder for the library; by default a temporary one.
    float_type : str, optional
        ``bfloat16`` to round the operands of float products to it, ``float32`` to round none; by
        default what the named target multiplies, float32 for ``native``.
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
    # Before the model is read, which may take seconds.
    units = network_units(target, float_type)
    if isinstance(model, str | Path):
        network = load_network(model, shapes, constants)
    elif shapes:
        raise WorkloadError(f"{model.name}: shapes apply to a file: a graph has its sizes")
    else:
        network = _bound(model, constants or {})
    if not isinstance(network, Family):
        return build.compile_model(network, units, folder=folder, threads=threads)
    if folder is not None:
        return compile_family(network, units, folder, ranges=ranges).open(threads)
    scratch = tempfile.TemporaryDirectory(prefix="cpembed-")
    running = compile_family(network, units, Path(scratch.name), ranges=ranges).open(threads)
    # Its finalizer removes the folder once the network is no longer used.
    running.scratch = scratch
    return running


def _bound(model: Graph | Family, constants: Mapping[str, Any]) -> Graph | Family:
    """Return a model of which some inputs are constants."""
    if not isinstance(model, Family):
        return bind_inputs(model, constants)
    return Family(model.name, model.ranges, lambda sizes: bind_inputs(model.read(sizes), constants))
