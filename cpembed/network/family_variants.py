"""Variant of a library whose sizes are ranges, for another processor than this machine's.

An emulator executes some ten million multiplications in a second, so that only instances and sizes
within a limit are executed by it; the document names those that are left out.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpembed.codegen.host_cpu import Processor
from cpembed.driver.matching import network_units
from cpembed.export.emulated import EmulatedLibrary
from cpembed.export.library import Contents, Library, write_library
from cpembed.export.sized import SizedProgram
from cpembed.graph.family import Family, Sizes
from cpembed.graph.graph import Array
from cpembed.graph.instances import Openness
from cpembed.graph.loop import multiplications
from cpembed.ir.dtypes import as_stored, as_typed
from cpembed.network.build import CompiledNetwork, library_name
from cpembed.network.family import (
    CompiledFamily,
    FamilyPlan,
    Ranges,
    plan_family,
    sized_program,
    with_programs,
)
from cpembed.network.family_service import (
    CHECKS,
    SizeCheck,
    compared,
    family_document,
    instance_inputs,
    instance_run,
    library_outputs,
    sampled,
    wrong_results,
)
from cpembed.network.processor_variants import BuiltVariant, Sample, emulated_run, executed_by
from cpembed.network.run import NetworkRun
from cpembed.network.service import NetworkRequest
from cpembed.steps import Progress
from cpembed.targets.units import FloatType, Units

EMULATED = 10**9
"""Maximum number of multiplications of the instances, and of the sizes, that are emulated."""

# Number of random sizes among which those are looked for that an emulator executes in time.
_DRAWN = 40


@dataclass(frozen=True)
class _Execution:
    """Runs of instances, comparisons of sizes, and checks that an emulator had no time for.

    These are instances (``left_out``) and ends of the ranges (``unchecked``).
    """

    runs: list[NetworkRun | None]
    checks: list[SizeCheck]
    left_out: tuple[Sizes, ...] = ()
    unchecked: tuple[Sizes, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class FamilyVariants:
    """Builder of the variants of a family's library.

    Attributes
    ----------
    family : Family
    facts : Openness
        How its sizes are computed, which is the same for all processors.
    request : NetworkRequest
    ranges : Ranges
    float_type : str or None
        Type to which operands of float products are rounded.
    progress : Progress
    """

    family: Family
    facts: Openness
    request: NetworkRequest
    ranges: Ranges
    float_type: FloatType | None
    progress: Progress

    def variant(self, each: Processor) -> BuiltVariant:
        """Compile and verify the family for the processor that kernels are built for now."""
        family, request = self.family, self.request
        units = network_units(request.target, self.float_type)
        label = request.name or library_name(family.name)
        plan = plan_family(family, units, request.planning, self.ranges, self.progress, self.facts)
        plan = with_programs(plan, label, request.planning, self.progress)
        program = sized_program(plan, label)
        execution, cpu = executed_by(
            each,
            program.features,
            lambda: self._executed_here(plan, program, units),
            lambda emulator: self._emulated(plan, program, units, emulator),
            verifies=request.verifies,
        )
        if execution is None:
            execution = _Execution([None] * len(plan.instances), [])
        cpu["left_out"] = [family.named(at) for at in execution.left_out]
        cpu["unchecked"] = [family.named(at) for at in execution.unchecked]
        document = {**family_document(plan, execution.runs, execution.checks), "cpu": cpu}
        wrong = wrong_results(family, plan, execution.runs, execution.checks)
        work = sum(multiplications(family.graph(check.sizes)) for check in execution.checks)
        return BuiltVariant(each, program, document, wrong, execution.samples, work)

    def _executed_here(self, plan: FamilyPlan, program: SizedProgram, units: Units) -> _Execution:
        """Verify instances and sizes on this machine."""
        family = self.family
        runs = [instance_run(p, self.request, 0, self.progress) for p in plan.instances]
        samples = sampled(family, family.random_sizes(CHECKS, 0), 0)
        with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch:
            library = write_library(program, Path(scratch), Contents(False, False))
            compiled = CompiledFamily.with_interface(family, units, library)
            outputs = library_outputs(family, compiled, samples)
        checks = compared(family, samples, outputs, self.progress, float_type=units.float_type)
        names = [tensor.name for tensor in program.outputs]
        calls = tuple(
            (
                tuple(as_stored(inputs[tensor.name]) for tensor in program.inputs),
                tuple(as_stored(results[name]) for name in names),
            )
            for inputs, results in zip(samples.values(), outputs, strict=True)
        )
        return _Execution(runs, checks, samples=calls)

    def _emulated(
        self, plan: FamilyPlan, program: SizedProgram, units: Units, emulator: str
    ) -> _Execution:
        """Verify the instances and sizes by an emulator for which there is time."""
        family = self.family
        sizes = [p.instance.sizes for p in plan.instances]
        selected = set(self.affordable(sizes))
        runs: list[NetworkRun | None] = []
        for planned in plan.instances:
            run = None
            if planned.instance.sizes in selected and planned.network is not None:
                compiled = CompiledNetwork(planned.plan, planned.network, Library("", Path(), ()))
                inputs = instance_inputs(planned.instance, 0)
                run = emulated_run(compiled, emulator, inputs, self.progress)
            runs.append(run)
        left_out = [at for at in sizes if at not in selected]
        ends = (family.largest, family.least)
        samples = sampled(family, self._affordable_samples(), 0)
        unchecked = [at for at in dict.fromkeys(ends) if at not in samples]
        outputs: list[dict[str, Array]] = []
        threads = plan.instances[0].plan.threads
        with EmulatedLibrary(program, emulator, threads) as library:
            for at, inputs in samples.items():
                library.resize(family.named(at))
                arrays = library.run(*(as_stored(inputs[info.name]) for info in library.inputs))
                outputs.append(self._typed(program, arrays))
        checks = compared(family, samples, outputs, self.progress, float_type=units.float_type)
        return _Execution(runs, checks, tuple(left_out), tuple(unchecked))

    def _typed(self, program: SizedProgram, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return outputs by name in the model's types."""
        types = self.family.graph(self.family.largest).types
        return {
            tensor.name: as_typed(array, types[tensor.name].dtype)
            for tensor, array in zip(program.outputs, arrays, strict=True)
        }

    def _affordable_samples(self) -> list[Sizes]:
        """Return ends of the ranges and random sizes, each with its share of the limit."""
        family = self.family
        drawn = (
            at
            for at in family.random_sizes(_DRAWN, 0)
            if multiplications(family.graph(at)) <= EMULATED // CHECKS
        )
        return [*itertools.islice(drawn, CHECKS)] or [family.least]

    def affordable(self, sizes: Iterable[Sizes]) -> list[Sizes]:
        """Return as many of some sizes as :data:`EMULATED` allows, those of the least work first.

        The one of the least work is always among them.
        """
        ordered = sorted((multiplications(self.family.graph(at)), at) for at in sizes)
        works = itertools.accumulate(work for work, _ in ordered)
        pairs = zip(ordered, works, strict=True)
        return [at for k, ((_, at), total) in enumerate(pairs) if not k or total <= EMULATED]
