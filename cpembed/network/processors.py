"""Libraries of a network for other processors than this machine's, one or several in one library.

Each variant is planned and compiled for its processor by the published figures of it. What this
machine can execute, itself or by an emulator, is verified like any network; of the rest the
document says that it was not executed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from cpembed.codegen.host_cpu import (
    Processor,
    built_for,
    needed_features,
    runs_here,
)
from cpembed.driver.matching import network_units
from cpembed.errors import BackendUnavailable, InvariantError, LoweringError, WorkloadError
from cpembed.export import loader
from cpembed.export.emulated import EmulatedLibrary, emulator_of
from cpembed.export.library import (
    Contents,
    Library,
    has_compiler,
    write_library,
    write_sources,
)
from cpembed.export.variants import VARIANT_VARIABLE, Variant, ordered, write_variants
from cpembed.frontends import load_model
from cpembed.graph.graph import Array, Graph, check_inputs
from cpembed.graph.kinds import Product
from cpembed.ir.dtypes import as_stored, as_typed
from cpembed.network.build import (
    CompiledNetwork,
    in_place,
    library_name,
    prepared_and_named,
    require_kernels,
)
from cpembed.network.inputs import random_inputs, special_inputs
from cpembed.network.plan import plan_network
from cpembed.network.program import network_program
from cpembed.network.run import NetworkRun, Verdict, run_network, verify_network
from cpembed.network.service import NetworkRequest, float_types, network_document
from cpembed.runtime import worker
from cpembed.steps import Progress, silent, step
from cpembed.targets.processors import described, processor
from cpembed.targets.units import NATIVE, FloatType


@dataclass(frozen=True)
class BuiltVariant:
    """Network compiled for a processor.

    Attributes
    ----------
    processor : Processor
    compiled : CompiledNetwork
        Plan and program; its library is in the folder of all variants.
    run : NetworkRun, optional
        Verification; None if this machine does not execute the variant.
    executed : str, optional
        ``here`` or ``emulated``; None if it was not executed.
    reason : str
        Reason why it was not.
    document : dict
        Document of the network, with the processor as ``cpu``.
    """

    processor: Processor
    compiled: CompiledNetwork
    run: NetworkRun | None
    executed: str | None
    reason: str
    document: dict[str, Any]


@dataclass(frozen=True)
class ProcessorsResult:
    """Library for one processor or several, and its document."""

    document: dict[str, Any]
    library: Library | None
    variants: tuple[BuiltVariant, ...]

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts on operators that differ from their definition."""
        runs = [variant.run for variant in self.variants if variant.run is not None]
        return tuple(verdict for run in runs for verdict in run.failed)

    def require(self) -> None:
        """Raise :class:`InvariantError` if an operator differs from its definition."""
        if self.failed:
            names = ", ".join(verdict.operator for verdict in self.failed[:3])
            raise InvariantError(
                f"{len(self.failed)} operators differ from their definition ({names}): please "
                "report this command line"
            )


def build_model(
    model: str | Path | Graph,
    folder: str | Path,
    cpu: str | Sequence[str],
    target: str = NATIVE,
    *,
    name: str | None = None,
    float_type: FloatType | None = None,
    torch: bool = False,
) -> ProcessorsResult:
    """Write the library of a model for other processors than this machine's.

    It is verified on random inputs where this machine or an emulator executes it.

    Parameters
    ----------
    model : str, Path or Graph
        File of an ONNX model or an exported PyTorch program, or its graph.
    folder : str or Path
        Folder of the library; files of the same names are replaced.
    cpu : str or sequence of str
        Processors by LLVM's names, as :func:`build_for_processors` takes them.
    target : str, default "native"
        Target that is preferred for products; by default all of the processor's.
    name : str, optional
        Name of the library; by default the model's.
    float_type : str, optional
        Type to which operands of float products are rounded.
    torch : bool
        Write an operator of PyTorch too.

    Raises
    ------
    ModelError
        If the file is not understood.
    InvariantError
        If results are wrong; no file is written then.
    SpecError, WorkloadError, BackendUnavailable, LoweringError
        As :func:`build_for_processors`.
    """
    names = (cpu,) if isinstance(cpu, str) else tuple(cpu)
    # Before the model is read, which may take seconds.
    processors_named(names)
    graph = model if isinstance(model, Graph) else load_model(model)
    request = NetworkRequest(
        target, Path(folder), times=False, name=name, contents=Contents(torch=torch)
    )
    inputs = random_inputs(graph, 0)
    result = build_for_processors(graph, names, request, inputs, float_type=float_type)
    result.require()
    return result


def processors_named(names: Sequence[str]) -> tuple[Processor, ...]:
    """Return the processors of a library in the order in which it tries their variants.

    Raises
    ------
    SpecError
        If a name is unknown.
    WorkloadError
        If one library cannot hold variants for them: they have different instruction sets, or the
        same features, or none is a baseline.
    """
    selected = {each.name: each for each in map(processor, names)}
    architectures = sorted({each.architecture for each in selected.values()})
    if len(architectures) > 1:
        raise WorkloadError(
            f"{', '.join(selected)}: a library has one instruction set, not "
            f"{' and '.join(architectures)}: build one for each"
        )
    features: dict[str, tuple[str, ...]] = {}
    for name, each in selected.items():
        with built_for(each):
            features[name] = needed_features()
    return tuple(selected[name] for name in ordered(features))


def build_for_processors(
    graph: Graph,
    names: Sequence[str],
    request: NetworkRequest,
    inputs: Mapping[str, Array],
    *,
    float_type: FloatType | None = None,
    progress: Progress = silent,
) -> ProcessorsResult:
    """Write the library of a network for other processors than this machine's.

    Where there is no C compiler for their instruction set, the library's sources are written. No
    file is written if a variant computes wrong results.

    Parameters
    ----------
    graph : Graph
        Network as a front end made it.
    names : sequence of str
        Processors by LLVM's names. If there are several, the library holds a variant for each, and
        one of them has to be a baseline, whose features all have.
    request : NetworkRequest
        Options; its folder is required, and its target is a name.
    inputs : mapping from str to ndarray
        Inputs of the verification.
    float_type : str, optional
        Type to which operands of float products are rounded.
    progress : Progress, optional

    Raises
    ------
    SpecError, WorkloadError
        As :func:`processors_named`.
    BackendUnavailable
        If a processor has no instruction that is a target.
    LoweringError
        If an operator has no kernel.
    """
    require_kernels(graph)
    check_inputs(graph, inputs)
    if request.folder is None:
        raise WorkloadError("a library for another processor needs a folder: name one")
    processors = processors_named(names)
    for each in processors:
        with built_for(each):
            network_units(request.target, float_type)
    variants: list[BuiltVariant] = []
    for each in processors:
        with built_for(each):
            variants.append(_variant(graph, each, request, inputs, float_type, progress))
    documents = [variant.document for variant in variants]
    document = documents[0]
    if len(variants) > 1:
        document = {"network": graph.name, "variants": documents}
    result = ProcessorsResult(document, None, tuple(variants))
    if result.failed:
        return result
    with built_for(processors[-1]):
        progress("linking", 0, 1)
        library = _written(request, variants, inputs)
    return replace(result, library=library)


def _variant(
    graph: Graph,
    each: Processor,
    request: NetworkRequest,
    inputs: Mapping[str, Array],
    float_type: FloatType | None,
    progress: Progress,
) -> BuiltVariant:
    """Compile and verify a network for the processor that kernels are built for now."""
    units = network_units(request.target, float_type)
    plan = plan_network(prepared_and_named(graph, units), units, request.planning, progress)
    name = request.name or library_name(graph.name)
    network = network_program(plan, name, request.planning.cache, progress)
    folder = request.folder
    assert folder is not None
    compiled = CompiledNetwork(plan, network, Library(name, folder, ()))
    run, executed, reason = None, None, "not verified, as requested"
    if request.verifies:
        run, executed, reason = _verified(compiled, each, inputs, progress)
    details = {
        **described(each),
        "cpu_features": list(network.program.features),
        "executed": executed,
        "reason": reason or None,
    }
    document = {
        **network_document(plan, compiled, run),
        **float_types(graph, units),
        "cpu": details,
    }
    return BuiltVariant(each, compiled, run, executed, reason, document)


def _verified(
    compiled: CompiledNetwork, each: Processor, inputs: Mapping[str, Array], progress: Progress
) -> tuple[NetworkRun | None, str | None, str]:
    """Return the run of a variant and how it was executed, or why it was not."""
    program = compiled.network.program
    if runs_here(program.features):
        with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch:
            files = Contents(python=False, example=False)
            library = write_library(program, Path(scratch), files)
            draft = replace(compiled, library=library)
            return run_network(draft, inputs, times=False, progress=progress), "here", ""
    emulator = emulator_of(each.architecture)
    reason = f"this machine is no {each.name}"
    if emulator is None:
        return None, None, f"{reason}, and qemu-{each.architecture} is not installed"
    try:
        return _emulated(compiled, emulator, inputs, progress), "emulated", ""
    # Nothing links a program for the emulator, or that lacks a feature too.
    except (BackendUnavailable, LoweringError) as error:
        return None, None, f"{reason}, and {error}"


def _emulated(
    compiled: CompiledNetwork, emulator: str, inputs: Mapping[str, Array], progress: Progress
) -> NetworkRun:
    """Verify a network under an emulator, once more with special values in the inputs."""
    graph, network = compiled.graph, compiled.network
    special = special_inputs(graph, inputs)
    changed = tuple(name for name, array in special.items() if array is not inputs[name])
    verdicts: list[list[Verdict]] = [[], []]
    with EmulatedLibrary(network.program, emulator, compiled.plan.threads) as emulated:
        # It has the members that verification calls.
        library = cast(loader.Library, emulated)
        rounds: list[Mapping[str, Array]] = [inputs, *([special] if changed else [])]
        for number, values in enumerate(rounds):
            phase = "verifying with special values" if number else "verifying"

            def report(count: int, phase: str = phase) -> None:
                progress(phase, count, len(graph.operators))

            verdicts[number] = verify_network(compiled.plan, network, library, values, report)
        results = emulated.run(*(as_stored(inputs[info.name]) for info in emulated.inputs))
        names = [info.name for info in emulated.outputs]
    by_buffer = dict(zip(names, results, strict=True))
    outputs = {
        name: as_typed(by_buffer[network.results[name]], graph.types[name].dtype)
        for name in graph.outputs
    }
    return NetworkRun(outputs, tuple(verdicts[0]), None, tuple(verdicts[1]), changed)


# -- writing --------------------------------------------------------------------------------------


def _written(
    request: NetworkRequest, variants: Sequence[BuiltVariant], inputs: Mapping[str, Array]
) -> Library:
    """Write the library of all variants, or its sources where nothing links it."""
    folder = request.folder
    assert folder is not None
    linked = has_compiler()
    first = variants[0].compiled
    cpus = [
        {
            key: variant.document["cpu"][key]
            for key in ("name", "architecture", "executed", "reason")
        }
        for variant in variants
    ]
    details = {
        "in_place": in_place(first.plan.graph),
        "cpu": cpus[0] if len(cpus) == 1 else cpus,
        **request.contents.details,
    }
    contents = replace(request.contents, details=details, about=_about(variants))
    program = first.network.program
    if len(variants) == 1:
        write = write_library if linked else write_sources
        return write(program, folder, contents)

    def check(path: Path) -> None:
        # In the worker, since a crash of a kernel would end this process.
        is_forced = bool(os.environ.get(VARIANT_VARIABLE))
        if not is_forced and any(each.executed == "here" for each in variants):
            worker.call(_check_selection, path, program.name, variants, inputs)

    return write_variants(
        program.name,
        [Variant(each.processor.name, each.compiled.network.program) for each in variants],
        folder,
        contents,
        check=check,
        linked=linked,
    )


def _about(variants: Sequence[BuiltVariant]) -> str:
    """Describe for which processors a library is, and what was executed."""
    names = ", ".join(each.processor.name for each in variants)
    missing = [each for each in variants if each.executed is None]
    text = f"Compiled for {names}."
    if len(variants) > 1:
        text += (
            " The first of these that the processor supports runs, or the one that the environment "
            "variable CPEMBED_VARIANT names."
        )
    for each in missing:
        text += f" The code for {each.processor.name} was not executed when it was built."
    return text


def _check_selection(
    path: Path, name: str, variants: Sequence[BuiltVariant], inputs: Mapping[str, Array]
) -> None:
    """Raise :class:`InvariantError` if a library selects another variant, or computes otherwise."""
    expected = next(each for each in variants if each.executed == "here")
    assert expected.run is not None
    products = [o.kind for o in expected.compiled.graph.operators if isinstance(o.kind, Product)]
    work = sum(kind.computation.macs for kind in products)
    with step("running a library of variants", work), loader.Library(path, name) as library:
        if library.variant != expected.processor.name:
            raise InvariantError(
                f"{name} runs the variant {library.variant} instead of {expected.processor.name}"
            )
        results = library.run(*(as_stored(inputs[info.name]) for info in library.inputs))
        buffers = expected.compiled.network.results
        by_buffer = dict(zip((info.name for info in library.outputs), results, strict=True))
        for output, array in expected.run.outputs.items():
            if not np.array_equal(by_buffer[buffers[output]], as_stored(array), equal_nan=True):
                raise InvariantError(f"{name}: {output} differs from that of its variant alone")
