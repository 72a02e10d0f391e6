"""Commands ``network`` and ``build`` of a network whose sizes are ranges, as one JSON document.

Every instance is compared operator by operator with the definitions, as a network of fixed sizes
is. Then the library is run at both ends of the ranges and at random sizes, and its outputs compared
with those of the graph that a front end reads at just these sizes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.driver.matching import network_units
from cpembed.errors import BackendUnavailable
from cpembed.export.library import Contents, Library, write_library
from cpembed.graph.family import Family, Filling, Sizes, shape_text
from cpembed.graph.graph import Array, Graph, evaluate
from cpembed.graph.instances import Instance
from cpembed.graph.loop import multiplications, nested_operators
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.build import CompiledNetwork
from cpembed.network.family import (
    CompiledFamily,
    FamilyPlan,
    PlannedInstance,
    Ranges,
    compile_family,
    plan_family,
)
from cpembed.network.inputs import random_inputs
from cpembed.network.observation import difference
from cpembed.network.plan import Planning
from cpembed.network.run import NetworkRun, run_network
from cpembed.network.service import (
    NetworkRequest,
    WrongResultError,
    float_types,
    links,
    network_document,
    require_none,
    written_unless_wrong,
)
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import provenance
from cpembed.steps import Progress, silent, step
from cpembed.targets.units import FloatType, Units

CHECKS = 8
"""Number of sizes at which the library is compared with the model."""

# Largest error of a whole network relative to the largest magnitude of an output: of floats, which
# are summed in another order, and where a quantum, or a rounding to fewer bits, makes others.
_TOLERANCE, _ROUNDED_TOLERANCE = 2e-3, 0.1

# Largest share of integers, such as those of an argmax, that may differ.
_DIFFERENT = 0.05


@dataclass(frozen=True)
class SizeCheck:
    """Comparison of the library's outputs with the model's at some sizes."""

    sizes: Sizes
    max_error: float
    tolerance: float

    @property
    def verified(self) -> bool:
        """True if the outputs are within the tolerance."""
        return self.max_error <= self.tolerance


@dataclass(frozen=True)
class FamilyResult:
    """Document that ``--json`` prints, and the library that was written, if any.

    Attributes
    ----------
    wrong : tuple of str
        Operators that differ from their definition, and sizes at which outputs do.
    """

    document: dict[str, Any]
    library: Library | None
    wrong: tuple[str, ...] = ()

    def require(self) -> None:
        """Raise :class:`InvariantError` if something is wrong."""
        require_none(self.wrong, _FAULT, "command line")


_FAULT = "results differ from the model's"


def network_family(
    family: Family,
    request: NetworkRequest,
    ranges: Ranges | None = None,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> FamilyResult:
    """Plan, compile and verify a network whose sizes are ranges, and write its library if asked to.

    Parameters
    ----------
    family : Family
    request : NetworkRequest
    ranges : Ranges, optional
    seed : int, default 0
        Seed of random inputs and sizes.
    progress : Progress, optional

    Raises
    ------
    BackendUnavailable
        For a target that has no libraries.
    WorkloadError, LoweringError
        As :func:`~cpembed.network.family.compile_family` raises them.
    """
    units = network_units(request.target)
    _require_links(family, units)
    drafts: list[tuple[FamilyPlan, list[NetworkRun | None], list[SizeCheck]]] = []

    def check(plan: FamilyPlan, draft: CompiledFamily) -> None:
        runs, checks = _checked(plan, draft, request, seed, progress)
        drafts.append((plan, runs, checks))
        if wrong_results(family, plan, runs, checks):
            raise WrongResultError

    def write(folder: Path) -> Library:
        return compile_family(
            family,
            units,
            folder,
            request.planning,
            ranges=ranges,
            name=request.name,
            contents=request.contents,
            progress=progress,
            check=check,
        ).library

    library = written_unless_wrong(request.folder, write)
    plan, runs, checks = drafts[0]
    document = family_document(plan, runs, checks)
    return FamilyResult(document, library, wrong_results(family, plan, runs, checks))


def family_plan(
    family: Family,
    target: str | HardwareSpec | Units,
    planning: Planning,
    ranges: Ranges | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Plan a network whose sizes are ranges without compiling it, and return the document.

    Parameters
    ----------
    family : Family
    target : str, HardwareSpec or Units
        As :func:`~cpembed.driver.matching.network_units` takes it.
    planning : Planning
    ranges : Ranges, optional
    progress : Progress, optional

    Raises
    ------
    BackendUnavailable
        For a target that has no libraries.
    """
    units = network_units(target)
    _require_links(family, units)
    plan = plan_family(family, units, planning, ranges or Ranges(), progress)
    return family_document(plan, [None] * len(plan.instances), [])


def _require_links(family: Family, units: Units) -> None:
    if not links(units):
        raise BackendUnavailable(
            f"{units.name} has no libraries, which ranges of sizes need: give one size instead of "
            f"{family.ranges_text}"
        )


# -- verification ---------------------------------------------------------------------------------


def require_defined_sizes(plan: FamilyPlan, draft: CompiledFamily, request: NetworkRequest) -> None:
    """Raise :class:`InvariantError` unless a draft's results are as defined.

    Parameters
    ----------
    plan : FamilyPlan
    draft : CompiledFamily
    request : NetworkRequest
    """
    runs, checks = _checked(plan, draft, request, 0, silent)
    require_none(wrong_results(plan.family, plan, runs, checks), _FAULT, "model")


def _checked(
    plan: FamilyPlan, draft: CompiledFamily, request: NetworkRequest, seed: int, progress: Progress
) -> tuple[list[NetworkRun | None], list[SizeCheck]]:
    """Run the instances of a draft one by one, and the draft at several sizes."""
    runs = [instance_run(p, request, seed, progress) for p in plan.instances]
    if not request.verifies:
        return runs, []
    float_type = network_units(request.target).float_type
    return runs, check_sizes(plan.family, draft, seed, progress, float_type=float_type)


def instance_run(
    planned: PlannedInstance, request: NetworkRequest, seed: int, progress: Progress
) -> NetworkRun | None:
    """Verify and time an instance as a library of its own, operator by operator.

    Parameters
    ----------
    planned : PlannedInstance
    request : NetworkRequest
    seed : int
        Seed of random inputs.
    progress : Progress
    """
    if not (request.verifies or request.times) or planned.network is None:
        return None
    network = planned.network
    with tempfile.TemporaryDirectory(prefix="cpembed-") as folder:
        library = write_library(
            replace(network.program, name="instance"),
            Path(folder),
            Contents(False, False),
            options=("-O1",),
        )
        return run_network(
            CompiledNetwork(planned.plan, network, library),
            instance_inputs(planned.instance, seed),
            verifies=request.verifies,
            times=request.times,
            progress=progress,
        )


def instance_inputs(instance: Instance, seed: int) -> dict[str, Array]:
    """Return random inputs of an instance, whose loops execute all steps."""
    inputs = random_inputs(instance.graph, seed)
    for filler in instance.fillers:
        if filler.kind is Filling.COUNT:
            inputs[filler.name] = np.asarray(filler.size, np.int64)
    return inputs


def check_sizes(
    family: Family,
    compiled: CompiledFamily,
    seed: int,
    progress: Progress = silent,
    *,
    float_type: FloatType = "float32",
) -> list[SizeCheck]:
    """Compare a library with the model's graphs at both ends of the ranges and at random sizes.

    Parameters
    ----------
    family : Family
    compiled : CompiledFamily
    seed : int
        Seed of the sizes and the inputs.
    progress : Progress, optional
    float_type : str, default "float32"
        Type to which operands of float products are rounded.
    """
    samples = sampled(family, family.random_sizes(CHECKS, seed), seed)
    outputs = library_outputs(family, compiled, samples)
    return compared(family, samples, outputs, progress, float_type=float_type)


def sampled(family: Family, sizes: Iterable[Sizes], seed: int) -> dict[Sizes, dict[str, Array]]:
    """Return random inputs at some sizes.

    Parameters
    ----------
    family : Family
    sizes : iterable of Sizes
    seed : int
    """
    return {at: random_inputs(family.graph(at), seed + k) for k, at in enumerate(sizes)}


def compared(
    family: Family,
    samples: Mapping[Sizes, Mapping[str, Array]],
    outputs: Sequence[Mapping[str, Array]],
    progress: Progress = silent,
    *,
    float_type: FloatType = "float32",
) -> list[SizeCheck]:
    """Compare outputs of a library with the model's graphs.

    Parameters
    ----------
    family : Family
    samples : mapping
        Inputs by sizes.
    outputs : sequence of mapping
        Outputs of the library for each of the samples.
    progress : Progress, optional
    float_type : str, default "float32"
        Type to which operands of float products are rounded.
    """
    checks: list[SizeCheck] = []
    for (at, arrays), actual in zip(samples.items(), outputs, strict=True):
        progress("comparing sizes", len(checks), len(samples))
        graph = family.graph(at)
        expected = evaluate(graph, arrays, lambda name: False)
        error = max(_error(actual[name], expected[name]) for name in graph.outputs)
        checks.append(SizeCheck(at, error, _tolerance(graph, float_type)))
    return checks


def library_outputs(
    family: Family, compiled: CompiledFamily, samples: Mapping[Sizes, Mapping[str, Array]]
) -> list[dict[str, Array]]:
    """Run a library in the worker, which a crash ends.

    Parameters
    ----------
    family : Family
    compiled : CompiledFamily
    samples : mapping
        Inputs by sizes.
    """
    macs = sum(multiplications(family.graph(at)) for at in samples)
    return worker.call(_outputs, compiled, [*samples.values()], macs)


def _outputs(
    compiled: CompiledFamily, inputs: Sequence[Mapping[str, Array]], macs: int
) -> list[dict[str, Array]]:
    """Run a library on several inputs; in the worker, which a crash ends."""
    with step("running a network at several sizes", 4 * macs), compiled.open() as running:
        return [running.run(arrays) for arrays in inputs]


def _error(actual: Array, expected: Array) -> float:
    """Return the largest error relative to the largest magnitude, infinite for another shape."""
    same_type = actual.shape == expected.shape and actual.dtype == expected.dtype
    if same_type and expected.dtype.kind in "iub":
        different = np.count_nonzero(actual != expected)
        return 0.0 if different <= _DIFFERENT * expected.size else math.inf
    magnitudes = np.abs(expected.astype(np.float64))
    size = float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0)) or 1.0
    return difference(actual, expected) / size


def _tolerance(graph: Graph, float_type: FloatType) -> float:
    """Return the largest relative error of a network's outputs."""
    dtypes = [float_type]
    dtypes += [
        inner.types[name].dtype
        for operator, inner, _ in nested_operators(graph)
        for name in operator.outputs
    ]
    rounds = not {"int8", "uint8", "bfloat16"}.isdisjoint(dtypes)
    return _ROUNDED_TOLERANCE if rounds else _TOLERANCE


def wrong_results(
    family: Family,
    plan: FamilyPlan,
    runs: Sequence[NetworkRun | None],
    checks: Sequence[SizeCheck],
) -> tuple[str, ...]:
    """Return wrong results: those of operators of instances, and of sizes.

    Parameters
    ----------
    family : Family
    plan : FamilyPlan
    runs : sequence of NetworkRun or None
        Verification of each instance.
    checks : sequence of SizeCheck
    """
    operators = [
        f"{verdict.operator} at {family.text(planned.instance.sizes)}"
        for planned, run in zip(plan.instances, runs, strict=True)
        if run is not None
        for verdict in run.failed
    ]
    sizes = [f"outputs at {family.text(c.sizes)}" for c in checks if not c.verified]
    return (*operators, *sizes)


# -- document -------------------------------------------------------------------------------------


def family_document(
    plan: FamilyPlan, runs: Sequence[NetworkRun | None], checks: Sequence[SizeCheck]
) -> dict[str, Any]:
    """Return ranges, instances, checks and losses as a document.

    Parameters
    ----------
    plan : FamilyPlan
    runs : sequence of NetworkRun or None
        Verification of each instance.
    checks : sequence of SizeCheck
    """
    family, facts = plan.family, plan.facts
    graph, units = family.graph(family.largest), plan.instances[0].plan.units
    constants: dict[str, int] = {}
    instances: list[dict[str, Any]] = []
    for planned, run in zip(plan.instances, runs, strict=True):
        compiled = None
        if planned.network is not None:
            compiled = CompiledNetwork(planned.plan, planned.network, Library("", Path(), ()))
            buffers = planned.network.program.buffers
            constants |= {b.name: b.bytes for b in buffers if b.data is not None}
        instances.append(
            {
                "sizes": family.named(planned.instance.sizes),
                "covers": {
                    symbol: [low, high]
                    for symbol, low, high in zip(
                        family.symbols, planned.instance.least, planned.instance.most, strict=True
                    )
                },
                "network": network_document(planned.plan, compiled, run),
            }
        )
    return {
        "network": graph.name,
        "target": units.name,
        "units": list(units.members),
        **float_types(graph, units),
        "threads": plan.instances[0].plan.threads,
        "ranges": {name: [r[0], r[-1]] for name, r in family.ranges.items()},
        "modes": {name: mode.value for name, mode in facts.modes.items()},
        "reasons": dict(facts.reasons),
        "inputs": dict(zip(graph.inputs, map(shape_text, facts.inputs), strict=True)),
        "outputs": dict(zip(graph.outputs, map(shape_text, facts.outputs), strict=True)),
        "instances": instances,
        "loss": {
            "largest": plan.loss.largest,
            "mean": plan.loss.mean,
            "at": family.named(plan.loss.sizes),
        },
        "bytes_constants": sum(constants.values()),
        "checks": [
            {
                "sizes": family.named(c.sizes),
                "max_error": c.max_error if np.isfinite(c.max_error) else None,
                "tolerance": c.tolerance,
                "verified": c.verified,
            }
            for c in checks
        ],
        **provenance(),
    }
