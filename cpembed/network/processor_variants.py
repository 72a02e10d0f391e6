"""Variant of a network's library for another processor than this machine's: compiled, verified.

What this machine can execute, itself or by an emulator, is verified like any network; of the rest
the document says that it was not executed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from cpembed.codegen.host_cpu import Processor, runs_here
from cpembed.driver.matching import network_units
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.export import loader
from cpembed.export.emulated import EmulatedLibrary, emulator_of
from cpembed.export.library import Contents, Library, write_library
from cpembed.export.program import Program
from cpembed.export.sized import SizedProgram
from cpembed.graph.graph import Array, Graph
from cpembed.ir.dtypes import as_stored
from cpembed.network.build import CompiledNetwork, in_place, library_name, prepared_and_named
from cpembed.network.plan import plan_network
from cpembed.network.program import network_program
from cpembed.network.run import NetworkRun, run_network, verify_rounds
from cpembed.network.service import NetworkRequest, float_types, network_document
from cpembed.steps import Progress
from cpembed.targets.processors import described
from cpembed.targets.units import FloatType

Sample = tuple[tuple[Array, ...], tuple[Array, ...]]
"""Inputs and outputs of a call, in the order of a library's tensors and in storage types."""


@dataclass(frozen=True)
class BuiltVariant:
    """Network compiled for a processor.

    Attributes
    ----------
    processor : Processor
    program : Program or SizedProgram
        Program of the library.
    document : dict
        Document of the network, with the processor as ``cpu``, which says how it was executed:
        ``here`` or ``emulated``, or not at all and why.
    wrong : tuple of str
        Results that differ from their definition.
    samples : tuple of Sample
        Calls that were executed here.
    work : int
        Multiplications of these calls.
    in_place : mapping from str to str
        Inputs whose memory outputs may have.
    """

    processor: Processor
    program: Program | SizedProgram
    document: dict[str, Any]
    wrong: tuple[str, ...]
    samples: tuple[Sample, ...] = ()
    work: int = 0
    in_place: Mapping[str, str] | None = None

    @property
    def executed(self) -> str | None:
        """``here``, ``emulated``, or None."""
        return self.document["cpu"]["executed"]


def network_variant(
    graph: Graph,
    each: Processor,
    request: NetworkRequest,
    inputs: Mapping[str, Array],
    float_type: FloatType | None,
    progress: Progress,
) -> BuiltVariant:
    """Compile and verify a network for the processor that kernels are built for now.

    Parameters
    ----------
    graph : Graph
        Network as a front end made it.
    each : Processor
        That processor.
    request : NetworkRequest
    inputs : mapping from str to ndarray
        Inputs of the verification.
    float_type : str, optional
        Type to which operands of float products are rounded.
    progress : Progress
    """
    units = network_units(request.target, float_type)
    plan = plan_network(prepared_and_named(graph, units), units, request.planning, progress)
    name = request.name or library_name(graph.name)
    network = network_program(plan, name, request.planning.cache, progress)
    compiled = CompiledNetwork(plan, network, Library(name, Path(), ()))

    def run_here() -> NetworkRun:
        with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch:
            files = Contents(python=False, example=False)
            library = write_library(network.program, Path(scratch), files)
            draft = replace(compiled, library=library)
            return run_network(draft, inputs, times=False, progress=progress)

    run, cpu = executed_by(
        each,
        network.program.features,
        run_here,
        lambda emulator: emulated_run(compiled, emulator, inputs, progress),
        verifies=request.verifies,
    )
    document = {**network_document(plan, compiled, run), **float_types(graph, units), "cpu": cpu}
    failed = () if run is None else tuple(verdict.operator for verdict in run.failed)
    samples: tuple[Sample, ...] = ()
    if run is not None and cpu["executed"] == "here":
        names = [buffer.name for buffer in SizedProgram.sized(network.program).outputs]
        by_buffer = {network.results[n]: as_stored(array) for n, array in run.outputs.items()}
        arguments = tuple(
            as_stored(inputs[b.name]) for b in SizedProgram.sized(network.program).inputs
        )
        samples = ((arguments, tuple(by_buffer[name] for name in names)),)
    work = document["totals"]["macs"]
    return BuiltVariant(
        each, network.program, document, failed, samples, work, in_place(plan.graph)
    )


Run = TypeVar("Run")


def executed_by(
    each: Processor,
    features: tuple[str, ...],
    native: Callable[[], Run],
    emulated: Callable[[str], Run],
    *,
    verifies: bool = True,
) -> tuple[Run | None, dict[str, Any]]:
    """Execute code for a processor where that is possible; return the run, and ``cpu``'s document.

    Parameters
    ----------
    each : Processor
    features : tuple of str
        Features that the code needs.
    native : callable
        Function that executes it on this machine.
    emulated : callable
        Function that executes it by an emulator, whose path it takes.
    verifies : bool, default True
        False to execute nothing.
    """
    run, executed, reason = None, None, None
    emulator = emulator_of(each.architecture)
    if not verifies:
        reason = "not verified, as requested"
    elif runs_here(features):
        run, executed = native(), "here"
    elif emulator is None:
        reason = f"this machine is no {each.name}, and qemu-{each.architecture} is not installed"
    else:
        try:
            run, executed = emulated(emulator), "emulated"
        # Nothing links a program for the emulator, or that lacks a feature too.
        except (BackendUnavailable, LoweringError) as error:
            reason = f"this machine is no {each.name}, and {error}"
    cpu = {**described(each), "cpu_features": list(features)}
    return run, {**cpu, "executed": executed, "reason": reason}


def emulated_run(
    compiled: CompiledNetwork, emulator: str, inputs: Mapping[str, Array], progress: Progress
) -> NetworkRun:
    """Verify a network under an emulator, once more with special values in the inputs.

    Parameters
    ----------
    compiled : CompiledNetwork
    emulator : str
        Path of the emulator.
    inputs : mapping from str to ndarray
    progress : Progress
    """

    def report(phase: str, count: int) -> None:
        progress(phase, count, len(compiled.graph.operators))

    with EmulatedLibrary(compiled.network.program, emulator, compiled.plan.threads) as emulated:
        # It has the members that verification calls.
        library = cast(loader.Library, emulated)
        verdicts, special_verdicts, changed = verify_rounds(compiled, library, inputs, report)
        results = emulated.run(*(as_stored(inputs[info.name]) for info in emulated.inputs))
        outputs = compiled.outputs_by_name(library, results)
    return NetworkRun(outputs, tuple(verdicts), None, tuple(special_verdicts), changed)
