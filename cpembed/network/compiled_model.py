"""Models compiled and loaded in one call, with sizes that are fixed or ranges."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpembed.driver.matching import network_units
from cpembed.driver.options import MethodName, merged
from cpembed.errors import WorkloadError
from cpembed.frontends import Fallback, load_network
from cpembed.frontends.binding import bind_inputs
from cpembed.frontends.open_sizes import Request
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.network import build
from cpembed.network.build import RunningNetwork
from cpembed.network.family import (
    CompiledFamily,
    FamilyPlan,
    Ranges,
    RunningFamily,
    compile_family,
)
from cpembed.network.family_service import require_defined_sizes
from cpembed.network.pair_executions import PairPolicy
from cpembed.network.plan import Planning
from cpembed.network.service import NetworkRequest, require_defined_results
from cpembed.targets.units import NATIVE, FloatType, Units

if TYPE_CHECKING:
    from cpembed.network.parts import PartedNetwork


VERIFY_VARIABLE = "CPEMBED_VERIFY"
"""Environment variable that, unless empty, makes :func:`compile_sizes` verify its networks."""


@dataclass(frozen=True)
class CompileOptions:
    """Options of :func:`compile_sizes`.

    Attributes
    ----------
    shapes : mapping, optional
        Sizes that a file leaves open, as for :func:`~cpembed.frontends.load_network`. If one is a
        range, such as ``{"batch": range(1, 17)}``, the network takes arrays of any size in it.
    outputs : sequence of str, default those of the model
        Tensors to compute, intermediate ones too.
    fallback : str or mapping, optional
        What computes operators of a file that are not read: ``onnxruntime`` or ``torch``, or a
        function of inputs and attributes for each of them, by its name in the model. The operators
        around them are libraries of their own.
    constants : mapping from str to value, optional
        Inputs that are the same in every call, as :func:`~cpembed.frontends.load_model` takes them.
    ranges : Ranges, optional
        How close to a library for each single size a library for ranges is to be.
    float_type : str, optional
        ``bfloat16`` to round the operands of float products to it, ``float32`` to round none; by
        default what the named target multiplies, float32 for ``native``.
    method : str, default "auto"
        Method of convolutions of floats: ``auto`` for the fastest, ``implicit`` for their own sums,
        another name for this method wherever it is possible.
    pairs : str, default "auto"
        Where a convolution and what reads its rows are one kernel: ``auto`` for where that is
        faster, ``always`` for wherever it is possible, ``never`` for nowhere.
    folder : Path, optional
        Folder for the library; by default a temporary one.
    threads : int
        Number of threads; 0 for as many as the process has for kernels.
    verify : bool, optional
        Compare each operator with its definition, on random inputs and on special values, before
        the network is returned; by default if :data:`VERIFY_VARIABLE` is set.
    """

    shapes: Request | None = None
    outputs: Sequence[str] = ()
    fallback: Fallback = None
    constants: Mapping[str, Any] | None = None
    ranges: Ranges | None = None
    float_type: FloatType | None = None
    method: MethodName = "auto"
    pairs: PairPolicy = "auto"
    folder: Path | None = None
    threads: int = 0
    verify: bool | None = None

    @property
    def verifies(self) -> bool:
        """True if results are compared with their definitions."""
        return bool(os.environ.get(VERIFY_VARIABLE)) if self.verify is None else self.verify


def compile_sizes(
    model: str | Path | Graph | Family,
    target: str | HardwareSpec | Units = NATIVE,
    options: CompileOptions | None = None,
    **keywords: Any,
) -> RunningNetwork | RunningFamily | PartedNetwork:
    """Compile a network and load it, so that it can be called with arrays.

    Parameters
    ----------
    model : str, Path, Graph or Family
        File of an ONNX model or an exported PyTorch program, or what
        :func:`~cpembed.frontends.load_network` read from one.
    target : str, HardwareSpec or Units, default "native"
        All instructions of this processor, or a target by name, file or value whose kernels run on
        this machine.
    options : CompileOptions, optional
        Its fields may also be given as keywords.

    Returns
    -------
    RunningNetwork, RunningFamily or PartedNetwork
        ``network(x)`` computes the outputs.

    Raises
    ------
    ModelError
        If the file is not understood.
    WorkloadError
        For an option of files with a graph.
    BackendUnavailable, LoweringError
        As :func:`~cpembed.network.build.compile_model` does.
    InvariantError
        If ``verify`` shows that an operator differs from its definition.
    """
    options = merged(CompileOptions, options, keywords)
    # Before the model is read, which may take seconds.
    units = network_units(target, options.float_type)
    network = _network(model, options)
    planning = Planning(method=options.method, pairs=options.pairs)
    if not isinstance(network, Family):
        return build.compile_model(
            network,
            units,
            folder=options.folder,
            threads=options.threads,
            planning=planning,
            check=require_defined_results if options.verifies else None,
        )

    def check(plan: FamilyPlan, draft: CompiledFamily) -> None:
        if options.verifies:
            request = NetworkRequest(units, times=False)
            require_defined_sizes(plan, draft, request)

    def compiled(directory: Path) -> RunningFamily:
        ranges = options.ranges
        family = compile_family(network, units, directory, planning, ranges=ranges, check=check)
        return family.open(options.threads)

    return build.in_folder(options.folder, compiled)


def _network(model: str | Path | Graph | Family, options: CompileOptions) -> Graph | Family:
    """Return the network of a call of :func:`compile_sizes`, read from its file if it is one."""
    if isinstance(model, str | Path):
        return load_network(
            model, options.shapes, options.outputs, options.fallback, options.constants
        )
    for name, value in (
        ("shapes", options.shapes),
        ("outputs", options.outputs),
        ("fallback", options.fallback),
    ):
        if value:
            raise WorkloadError(f"{model.name}: {name} applies to a file, not to a graph")
    return _bound(model, options.constants or {})


def _bound(model: Graph | Family, constants: Mapping[str, Any]) -> Graph | Family:
    """Return a model of which some inputs are constants."""
    if not isinstance(model, Family):
        return bind_inputs(model, constants)
    return Family(model.name, model.ranges, lambda sizes: bind_inputs(model.read(sizes), constants))
