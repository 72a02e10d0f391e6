"""Libraries of a network for other processors than this machine's, one or several in one library.

Each variant is planned and compiled for its processor by the published figures of it, and verified
where this machine or an emulator executes it: :mod:`cpembed.network.processor_variants` for fixed
sizes, :mod:`cpembed.network.family_variants` for ranges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.codegen.host_cpu import Processor, built_for, needed_features
from cpembed.driver.matching import network_units
from cpembed.errors import InvariantError, WorkloadError
from cpembed.export import loader
from cpembed.export.library import (
    Contents,
    Library,
    has_compiler,
    write_library,
    write_sources,
)
from cpembed.export.variants import VARIANT_VARIABLE, Variant, ordered, write_variants
from cpembed.frontends import load_network
from cpembed.frontends.open_sizes import Request
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph
from cpembed.graph.instances import openness
from cpembed.network.build import require_kernels
from cpembed.network.family import Ranges
from cpembed.network.family_variants import FamilyVariants
from cpembed.network.inputs import random_inputs
from cpembed.network.processor_variants import BuiltVariant, Sample, network_variant
from cpembed.network.service import NetworkRequest, require_none
from cpembed.runtime import worker
from cpembed.steps import Progress, silent, step
from cpembed.targets.processors import processor
from cpembed.targets.units import NATIVE, FloatType


@dataclass(frozen=True)
class ProcessorsResult:
    """Library for one processor or several, and its document."""

    document: dict[str, Any]
    library: Library | None
    variants: tuple[BuiltVariant, ...]

    @property
    def wrong(self) -> tuple[str, ...]:
        """Results of all variants that differ from their definition."""
        return tuple(name for variant in self.variants for name in variant.wrong)

    def require(self) -> None:
        """Raise :class:`InvariantError` if a result differs from its definition."""
        require_none(self.wrong, "results differ from their definition", "command line")


def build_model(
    model: str | Path | Graph | Family,
    folder: str | Path,
    cpu: str | Sequence[str],
    target: str = NATIVE,
    *,
    shapes: Request | None = None,
    ranges: Ranges | None = None,
    name: str | None = None,
    float_type: FloatType | None = None,
    torch: bool = False,
) -> ProcessorsResult:
    """Write the library of a model for other processors than this machine's.

    It is verified on random inputs where this machine or an emulator executes it.

    Parameters
    ----------
    model : str, Path, Graph or Family
        File of an ONNX model or an exported PyTorch program, or what
        :func:`~cpembed.frontends.load_network` read from one.
    folder : str or Path
        Folder of the library; files of the same names are replaced.
    cpu : str or sequence of str
        Processors by LLVM's names, as :func:`build_for_processors` takes them.
    target : str, default "native"
        Target that is preferred for products; by default all of the processor's.
    shapes : mapping, optional
        Sizes that a file leaves open, some of them perhaps ranges, as for
        :func:`~cpembed.frontends.load_network`.
    ranges : Ranges, optional
        How close to a library for each single size a library for ranges is to be.
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
    if isinstance(model, Graph | Family):
        if shapes:
            raise WorkloadError(f"{model.name}: shapes applies to a file, not to a graph")
        network = model
    else:
        network = load_network(model, shapes)
    request = NetworkRequest(
        target, Path(folder), times=False, name=name, contents=Contents(torch=torch)
    )
    result = build_for_processors(network, names, request, ranges, float_type=float_type)
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
    network: Graph | Family,
    names: Sequence[str],
    request: NetworkRequest,
    ranges: Ranges | None = None,
    *,
    float_type: FloatType | None = None,
    progress: Progress = silent,
) -> ProcessorsResult:
    """Write the library of a network for other processors than this machine's.

    Where there is no C compiler for their instruction set, the library's sources are written. No
    file is written if a variant computes wrong results.

    Parameters
    ----------
    network : Graph or Family
        Network as a front end made it, or at every size in some ranges.
    names : sequence of str
        Processors by LLVM's names. If there are several, the library holds a variant for each, and
        one of them has to be a baseline, whose features all have.
    request : NetworkRequest
        Options; its folder is required, and its target is a name.
    ranges : Ranges, optional
        Options of a family.
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
    require_kernels(network.graph(network.largest) if isinstance(network, Family) else network)
    if request.folder is None:
        raise WorkloadError("a library for another processor needs a folder: name one")
    processors = processors_named(names)
    for each in processors:
        with built_for(each):
            network_units(request.target, float_type)
    variants: list[BuiltVariant] = []
    build = _builder(network, request, ranges or Ranges(), float_type, progress)
    for each in processors:
        with built_for(each):
            variants.append(build(each))
    documents = [variant.document for variant in variants]
    document = documents[0]
    if len(variants) > 1:
        document = {"network": network.name, "variants": documents}
    result = ProcessorsResult(document, None, tuple(variants))
    if result.wrong:
        return result
    with built_for(processors[-1]):
        progress("linking", 0, 1)
        library = _written(request, variants)
    return replace(result, library=library)


def _builder(
    network: Graph | Family,
    request: NetworkRequest,
    ranges: Ranges,
    float_type: FloatType | None,
    progress: Progress,
) -> Callable[[Processor], BuiltVariant]:
    """Return the function that builds a variant for the processor that kernels are built for."""
    if isinstance(network, Family):
        facts = openness(network)
        return FamilyVariants(network, facts, request, ranges, float_type, progress).variant
    # Verification needs some data; which one is of no interest.
    inputs = random_inputs(network, 0)
    return lambda each: network_variant(network, each, request, inputs, float_type, progress)


# -- writing --------------------------------------------------------------------------------------


def _written(request: NetworkRequest, variants: Sequence[BuiltVariant]) -> Library:
    """Write the library of all variants, or its sources where nothing links it."""
    folder = request.folder
    assert folder is not None
    linked = has_compiler()
    program, in_place = variants[0].program, variants[0].in_place
    cpus = [
        {
            key: variant.document["cpu"][key]
            for key in ("name", "architecture", "executed", "reason")
        }
        for variant in variants
    ]
    details = {
        **({} if in_place is None else {"in_place": in_place}),
        "cpu": cpus[0] if len(cpus) == 1 else cpus,
        **request.contents.details,
    }
    contents = replace(request.contents, details=details, about=_about(variants))
    if len(variants) == 1:
        write = write_library if linked else write_sources
        return write(program, folder, contents)

    def check(path: Path) -> None:
        # In the worker, since a crash of a kernel would end this process.
        is_forced = bool(os.environ.get(VARIANT_VARIABLE))
        expected = next((each for each in variants if each.executed == "here"), None)
        if not is_forced and expected is not None:
            name = expected.processor.name
            worker.call(_check_selection, path, program.name, name, expected.samples, expected.work)

    return write_variants(
        program.name,
        [Variant(each.processor.name, each.program) for each in variants],
        folder,
        contents,
        check=check,
        linked=linked,
    )


def _about(variants: Sequence[BuiltVariant]) -> str:
    """Describe the processors that a library supports, and the variants that were executed."""
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
    path: Path, name: str, processor_name: str, samples: Sequence[Sample], work: int
) -> None:
    """Raise :class:`InvariantError` if a library selects another variant, or computes otherwise.

    Parameters
    ----------
    path : Path
        Shared library.
    name : str
        Name of the library.
    processor_name : str
        Name of the variant.
    samples : sequence of Sample
        Calls of that variant alone.
    work : int
        Multiplications of them.
    """
    with step("running a library of variants", work), loader.Library(path, name) as library:
        if library.variant != processor_name:
            raise InvariantError(
                f"{name} runs the variant {library.variant} instead of {processor_name}"
            )
        for inputs, expected in samples:
            results = library.run(*inputs)
            for info, result, array in zip(library.outputs, results, expected, strict=True):
                if not np.array_equal(result, array, equal_nan=True):
                    raise InvariantError(
                        f"{name}: {info.name} differs from that of its variant alone"
                    )
