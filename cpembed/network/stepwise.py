"""Run a network product by product, on a target that no library of this machine holds.

The target is simulated or emulated. It computes products with their epilogues, or sums whose
epilogue the host computes, and some targets attention as one kernel. The host computes the rest by
its definition. Each of its steps is listed with the time that a kernel of it is estimated to take
(:mod:`cpembed.network.host_work`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import RESIDUAL, Epilogue
from cpembed.driver.advice import empty_places
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Plan, Request, Selection
from cpembed.errors import CpembedError, LoweringError, WorkloadError
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import Attention, Kind, Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.network.host_work import HostWork, host_target, operator_on_host, product_on_host
from cpembed.network.layer_chains import ProductPair
from cpembed.network.observation import Verdict, difference
from cpembed.network.pair_executions import PairPolicy
from cpembed.network.product_kernels import family_text, utilisation
from cpembed.network.stepwise_chains import ChainedGraph, executed_chain, with_chains
from cpembed.network.stepwise_layouts import StepLayouts
from cpembed.runtime import worker
from cpembed.steps import Progress
from cpembed.targets.capabilities import AnyTarget
from cpembed.targets.choice import built_first
from cpembed.targets.outputs import exact_epilogue
from cpembed.targets.outputs import save as save_artifact
from cpembed.targets.registry import open_target
from cpembed.targets.units import multiplies
from cpembed.workloads.chains import TOLERANCES

_RESULTS = "results"
"""Entry of :attr:`StepResult.stored` where the target computes a product's epilogue."""


@dataclass(frozen=True)
class StepResult:
    """Operator that was executed, on the target or by the host.

    Attributes
    ----------
    executed_on : str, optional
        Name of the target; None for the host.
    embedding, family : str, optional
        Identifier of the embedding, and the axes that it maps to each other.
    utilisation : float, optional
        Useful fraction of the executed operations.
    amount, estimated : float, optional
        Measured and estimated time in ``unit``, if there is one.
    unit : str
        Unit of the times: us or cycles.
    reason : str, optional
        Why the host, or another target, executed the operator, or why most of the unit is idle.
    stored : str
        Results that the target stored: sums, sums that the host scaled, or those of the epilogue.
    host : tuple of HostWork
        Steps of the operator that the host executes.
    """

    operator: Operator
    verdict: Verdict
    executed_on: str | None = None
    embedding: str | None = None
    family: str | None = None
    utilisation: float | None = None
    amount: float | None = None
    estimated: float | None = None
    unit: str = "us"
    reason: str | None = None
    stored: str = ""
    host: tuple[HostWork, ...] = ()


@dataclass(frozen=True)
class StepwiseRun:
    """Results of a network that was executed operator by operator.

    Attributes
    ----------
    chained : ChainedGraph
        Network with its layouts, in which chains that are one kernel are one operator.
    """

    chained: ChainedGraph
    target: HardwareSpec
    steps: tuple[StepResult, ...]
    outputs: Mapping[str, Array]
    provenance: str

    @property
    def graph(self) -> Graph:
        """Network that was executed."""
        return self.chained.graph

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts on operators that differ from their definition."""
        return tuple(step.verdict for step in self.steps if not step.verdict.verified)


def run_stepwise(
    graph: Graph,
    target: HardwareSpec,
    inputs: Mapping[str, Array],
    *,
    progress: Progress,
    timeout: float | None = None,
    save: Path | None = None,
    pairs: PairPolicy = "auto",
) -> StepwiseRun:
    """Run a network that was prepared for the target, operator by operator.

    Parameters
    ----------
    graph : Graph
    target : HardwareSpec
    inputs : mapping from str to ndarray
    progress : Progress
    timeout : float, optional
        Seconds of each search for embeddings.
    save : Path, optional
        Folder for the program of each product, if the target has programs.
    pairs : PairPolicy, default "auto"
        Where pairs of products are one kernel, on targets that make kernels of chains.

    Raises
    ------
    WorkloadError
        If the inputs are not those of the network.
    """
    check_inputs(graph, inputs)
    machine = open_target(target)
    host = host_target(machine)
    chained = with_chains(graph, machine, pairs)
    graph = chained.graph
    selections: dict[tuple[Computation, Any], Selection | str] = {}
    values: dict[str, Array] = {**graph.constants, **inputs}
    steps: list[StepResult] = []
    for number, operator in enumerate(graph.operators):
        progress(f"running {operator.name}", number, len(graph.operators))
        arrays = [values[name] for name in operator.inputs]
        expected = operator.kind.evaluate(arrays)
        step, modes = StepResult(operator, Verdict(operator.name, 0.0, 0.0)), [expected]
        folder = None if save is None else save / _file_name(number, operator.name)
        if isinstance(operator.kind, Product):
            product_step = _ProductStep(
                target=machine,
                operator=operator,
                kind=operator.kind,
                layouts=chained.layouts,
                timeout=timeout,
                save=folder,
            )
            step, modes = product_step.run(arrays, selections)
        elif operator.name in chained.fused:
            step, modes = _chain_step(machine, operator, chained, arrays, folder)
        step = replace(step, verdict=_verdict(operator, modes or [expected], expected, arrays))
        results = modes[0] if modes else expected
        steps.append(replace(step, host=_host_works(chained, step, host)))
        # Later operators read the target's results, as they would in a library.
        values |= zip(operator.outputs, results, strict=True)
    outputs = {name: values[name] for name in graph.outputs}
    return StepwiseRun(
        chained=chained,
        target=target,
        steps=tuple(steps),
        outputs=outputs,
        provenance=str(machine.provenance),
    )


def _host_works(chained: ChainedGraph, step: StepResult, host: AnyTarget) -> tuple[HostWork, ...]:
    """Return what the host does of an operator, conversions of layouts included."""
    operator, layouts = step.operator, chained.layouts
    parts = chained.parts(operator)
    works = [work for part in parts for work in layouts.conversion_work(part, host)]
    if step.executed_on is None:
        for part in parts:
            read, written = layouts.placed(part, part.inputs), layouts.placed(part, part.outputs)
            works.append(operator_on_host(part.kind, read, written, host))
        return tuple(works)
    if not isinstance(operator.kind, Product):
        return tuple(works)
    remaining = operator.kind
    if step.stored == _RESULTS:
        remaining = remaining.with_epilogue(None)
    first = layouts.graph.types[operator.inputs[0]]
    if not layouts.product(operator, operator.kind).first.has_halo:
        remaining = replace(remaining, padding=0)
    return (*works, *product_on_host(remaining, first, host))


def _verdict(
    operator: Operator,
    modes: Sequence[tuple[Array, ...]],
    expected: tuple[Array, ...],
    arrays: Sequence[Array],
) -> Verdict:
    """Return the comparison of the results in each mode of a target with the definition."""
    kind = operator.kind
    # Errors of a pair are relative to the largest sum, which its epilogue may make small.
    sums = kind.sums(arrays) if isinstance(kind, ProductPair) else None
    verdicts = [
        Verdict(
            operator.name,
            difference(result, definition),
            max(_tolerance(kind, each) for each in (definition, sums) if each is not None),
        )
        for results in modes
        for result, definition in zip(results, expected, strict=True)
    ]
    failed = [verdict for verdict in verdicts if not verdict.verified]
    return max(failed or verdicts, key=lambda verdict: verdict.max_error)


def _tolerance(kind: Kind, expected: Array) -> float:
    """Return the allowed difference of a result, 0 where integers are exact."""
    if isinstance(kind, Attention | ProductPair):
        return TOLERANCES.get(kind.factors, 0.0) * _largest(expected)
    if not isinstance(kind, Product):
        return 0.0
    has_functions = kind.epilogue is not None and kind.epilogue.computes_functions
    if is_integer(kind.computation.output.dtype) and not has_functions:
        return 0.0
    # What is rounded to an integer may be rounded the other way.
    if is_integer(expected.dtype.name):
        return 1.0
    # Targets add in another order than the definition, some in 16 bits of mantissa or fewer.
    return 1e-3 * _largest(expected)


def _largest(array: Array) -> float:
    finite = np.abs(array.astype(np.float64))
    return float(finite[np.isfinite(finite)].max(initial=0.0))


def _chain_step(
    target: AnyTarget,
    operator: Operator,
    chained: ChainedGraph,
    arrays: list[Array],
    save: Path | None,
) -> tuple[StepResult, list[tuple[Array, ...]] | None]:
    """Run a chain as one kernel; no results if the host has to compute it."""
    fused = chained.fused[operator.name]
    verdict, candidate = Verdict(operator.name, 0.0, 0.0), fused.candidate
    try:
        outputs = worker.call(executed_chain, target.spec, candidate, fused.inputs(arrays), save)
    except CpembedError as error:
        return StepResult(operator, verdict, reason=str(error)), None
    step = StepResult(
        operator=operator,
        verdict=verdict,
        executed_on=target.spec.name,
        embedding="; ".join(candidate.identifiers),
        family="; ".join(candidate.mappings),
        utilisation=min(each.overheads.utilisation for each in candidate.products),
        estimated=candidate.estimated_us,
        stored=_RESULTS,
    )
    return step, [(fused.result(arrays, output),) for output in outputs]


def step_request(
    layouts: StepLayouts, operator: Operator, spec: HardwareSpec, timeout: float | None
) -> Request:
    """Return the kernel that a product of a network needs of a target that runs it alone.

    Parameters
    ----------
    layouts : StepLayouts
        Layouts of the graph.
    operator : Operator
        Product of the graph.
    spec : HardwareSpec
    timeout : float, optional
        Seconds of the search for embeddings.

    Raises
    ------
    BackendUnavailable
        If nothing executes the target.
    """
    kind = operator.kind
    assert isinstance(kind, Product)
    target = open_target(spec)
    workload = layouts.product(operator, kind).computation
    return _request(target, workload, _epilogue(target, kind), timeout)


def _request(
    target: AnyTarget, workload: Computation, epilogue: Epilogue | None, timeout: float | None
) -> Request:
    # Without an epilogue of the product, one that stores the sums as they are.
    stored = epilogue or exact_epilogue(target, workload)
    return Request(workload, target.spec, KernelOptions(timeout=timeout), epilogue=stored)


def _epilogue(target: AnyTarget, kind: Product) -> Epilogue | None:
    """Return the epilogue of a product that the target computes; None to leave it to the host."""
    # What zero points subtract from the sums comes before the epilogue.
    return kind.epilogue if target.takes_epilogues and not any(kind.zero_points) else None


@dataclass(frozen=True)
class _ProductStep:
    """Execution of one product on the target; ``save`` is the folder for its program."""

    target: AnyTarget
    operator: Operator
    kind: Product
    layouts: StepLayouts
    timeout: float | None
    save: Path | None

    def run(
        self, arrays: list[Array], selections: dict[tuple[Computation, Any], Selection | str]
    ) -> tuple[StepResult, list[tuple[Array, ...]] | None]:
        """Run the product; return its results in each mode, None if the host has to compute it."""
        epilogue = _epilogue(self.target, self.kind)
        if epilogue is not None:
            step, results = self._run_with(epilogue, arrays, selections)
            if results is not None:
                return step, results
        # The sums alone, if no kernel computes the epilogue.
        return self._run_with(None, arrays, selections)

    def _run_with(
        self,
        epilogue: Epilogue | None,
        arrays: list[Array],
        selections: dict[tuple[Computation, Any], Selection | str],
    ) -> tuple[StepResult, list[tuple[Array, ...]] | None]:
        """Run the product with the product's epilogue, or without one."""
        try:
            placed = self.layouts.product(self.operator, self.kind)
        except LoweringError as error:
            return StepResult(
                self.operator, Verdict(self.operator.name, 0.0, 0.0), reason=str(error)
            ), None
        workload = placed.computation
        # Repeated blocks are searched once.
        if (workload, epilogue) not in selections:
            selections[workload, epilogue] = self._choose(workload, epilogue)
        selection = selections[workload, epilogue]
        verdict = Verdict(self.operator.name, 0.0, 0.0)
        if isinstance(selection, str):
            return StepResult(self.operator, verdict, reason=selection), None
        image = placed.first.buffer_of(arrays[0], self.kind.padding)
        inputs = {
            operand.name: array.reshape(operand.shape)
            for operand, array in zip(workload.inputs, (image, arrays[1]), strict=True)
        }
        if epilogue is not None:
            inputs |= self.kind.epilogue_inputs(arrays)
        if RESIDUAL in inputs:
            inputs[RESIDUAL] = placed.output.buffer_of(inputs[RESIDUAL])
        try:
            modes, amount, embedding = worker.call(_executed, selection.plan, inputs, self.save)
        except CpembedError as error:
            return StepResult(self.operator, verdict, reason=str(error)), None
        candidate = selection.ranked
        step = StepResult(
            operator=self.operator,
            verdict=verdict,
            executed_on=selection.solved.target.name,
            embedding=embedding,
            family=family_text(candidate.embedding),
            utilisation=utilisation(self.kind.computation, candidate.overheads.occupancy),
            amount=amount,
            estimated=selection.choice.estimated,
            unit=selection.plan.target.unit,
            reason=empty_places(selection.solved, candidate, selection.choice.model)
            if selection.substitution is None
            else f"not on {self.target.spec.name}",
            stored=_RESULTS
            if epilogue is not None
            else "sums, scaled by the host"
            if self.kind.epilogue is not None
            else "sums",
        )
        in_order = [tuple(map(placed.output.elements_of, results)) for results in modes]
        if epilogue is None:
            return step, [self._with_epilogue(sums, arrays) for (sums,) in in_order]
        return step, in_order

    def _choose(self, workload: Computation, epilogue: Epilogue | None) -> Selection | str:
        spec, types = self.target.spec, [operand.dtype for operand in workload.inputs]
        if not multiplies(spec, types):
            return f"{spec.name} does not multiply {' by '.join(types)}"
        try:
            outcome = choose(_request(self.target, workload, epilogue, self.timeout))
        except (LoweringError, WorkloadError) as error:
            return str(error)
        if not isinstance(outcome, Selection):
            conflict = outcome.conflict
            return "no embedding found in time" if conflict is None else conflict.words[0]
        return outcome if outcome.plan.native else "; ".join(outcome.plan.missing)

    def _with_epilogue(self, sums: Array, arrays: list[Array]) -> tuple[Array, ...]:
        """Return the results of the product, whose epilogue the host applies to the sums."""
        kind = self.kind
        sums = sums.reshape(kind.computation.output.shape)
        sums = sums - self._corrections(arrays) if any(kind.zero_points) else sums
        return kind.results(sums, arrays)

    def _corrections(self, arrays: list[Array]) -> Array:
        """Return the part of the sums that zero points subtract."""
        plain = replace(self.kind, zero_points=(0, 0), epilogue=None)
        exact = replace(self.kind, epilogue=None)
        return plain.sums(*arrays[:2]) - exact.sums(*arrays[:2])


def _executed(
    plan: Plan, inputs: dict[str, Array], save: Path | None
) -> tuple[list[tuple[NDArray[Any], ...]], float | None, str]:
    """Return results by mode, their time in the target's unit, the embedding; in the worker."""
    target = plan.target
    artifact, choice = built_first(target, plan.choices, plan.epilogue)
    execution = target.execute(artifact, inputs)
    timing = target.time(artifact, inputs)
    latency = None if timing.latency_us is None else timing.latency_us.median
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        save_artifact(target, artifact, save)
    amount = timing.cycles if target.unit == "cycles" else latency
    both = (execution.outputs, execution.seconds) if execution.seconds else (execution.outputs,)
    return list(zip(*both, strict=True)), amount, choice.ranked.identifier


def _file_name(number: int, name: str) -> str:
    letters = "".join(c if c.isalnum() else "_" for c in name)[:60]
    return f"{number:03d}_{letters}"
