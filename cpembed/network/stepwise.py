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

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.advice import empty_places
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Plan, Request, Selection
from cpembed.errors import CpembedError, LoweringError, WorkloadError
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import Attention, Product, TensorType
from cpembed.graph.passes.second_results import fuse_second_results
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.network.host_work import HostWork, host_target, operator_on_host, product_on_host
from cpembed.network.layout import Layout, is_convolution, padding_of
from cpembed.network.observation import Verdict, difference
from cpembed.network.physical_product import physical_product
from cpembed.network.product_kernels import family_text, utilisation
from cpembed.network.stepwise_chains import (
    FusedAttention,
    executed_chain,
    with_chains,
    with_undefined_rows,
)
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
    """Results of a network that was executed operator by operator."""

    graph: Graph
    target: HardwareSpec
    steps: tuple[StepResult, ...]
    outputs: Mapping[str, Array]
    provenance: str

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

    Raises
    ------
    WorkloadError
        If the inputs are not those of the network.
    """
    check_inputs(graph, inputs)
    machine = open_target(target)
    host = host_target(machine)
    chained = with_chains(graph, machine)
    graph = chained.graph
    if machine.takes_epilogues:
        graph = fuse_second_results(graph)
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
                target=machine, operator=operator, kind=operator.kind, timeout=timeout, save=folder
            )
            step, modes = product_step.run(arrays, selections)
            reason = chained.reasons.get(operator.name)
            step = step if reason is None else replace(step, reason=reason)
        elif operator.name in chained.fused:
            attention = chained.fused[operator.name]
            step, modes = _attention_step(machine, operator, attention, arrays, folder)
        step = replace(step, verdict=_verdict(operator, modes or [expected], expected))
        results = modes[0] if modes else expected
        steps.append(replace(step, host=_host_works(graph, step, host)))
        # Later operators read the target's results, as they would in a library.
        values |= zip(operator.outputs, results, strict=True)
    outputs = {name: values[name] for name in graph.outputs}
    return StepwiseRun(
        graph=graph,
        target=target,
        steps=tuple(steps),
        outputs=outputs,
        provenance=str(machine.provenance),
    )


def _host_works(graph: Graph, step: StepResult, host: AnyTarget) -> tuple[HostWork, ...]:
    """Return what the host does of an operator."""
    operator = step.operator
    if step.executed_on is None:
        return (operator_on_host(graph, operator, host),)
    if not isinstance(operator.kind, Product):
        return ()
    remaining = operator.kind
    if step.stored == _RESULTS:
        remaining = remaining.with_epilogue(None)
    first = graph.types[operator.inputs[0]]
    if _halo(operator, remaining, first) is None:
        remaining = replace(remaining, padding=0)
    return product_on_host(remaining, first, host)


def _verdict(
    operator: Operator, modes: Sequence[tuple[Array, ...]], expected: tuple[Array, ...]
) -> Verdict:
    """Return the comparison of the results in each mode of a target with the definition."""
    verdicts = [
        Verdict(operator.name, difference(result, definition), _tolerance(operator, definition))
        for results in modes
        for result, definition in zip(results, expected, strict=True)
    ]
    failed = [verdict for verdict in verdicts if not verdict.verified]
    return max(failed or verdicts, key=lambda verdict: verdict.max_error)


def _tolerance(operator: Operator, expected: Array) -> float:
    """Return the allowed difference of a result, 0 where integers are exact."""
    kind = operator.kind
    if isinstance(kind, Attention):
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


def _attention_step(
    target: AnyTarget,
    operator: Operator,
    attention: FusedAttention,
    arrays: list[Array],
    save: Path | None,
) -> tuple[StepResult, list[tuple[Array, ...]] | None]:
    """Run an attention as one kernel; no results if the host has to compute it."""
    verdict, candidate = Verdict(operator.name, 0.0, 0.0), attention.candidate
    try:
        outputs = worker.call(
            executed_chain, target.spec, attention, attention.inputs(arrays), save
        )
    except CpembedError as error:
        return StepResult(operator, verdict, reason=str(error)), None
    kind = attention.kind
    (result,) = kind.types([TensorType.of_array(array) for array in arrays])
    step = StepResult(
        operator=operator,
        verdict=verdict,
        executed_on=target.spec.name,
        embedding="; ".join(candidate.identifiers),
        family=attention.family,
        estimated=candidate.estimated_us,
        stored=_RESULTS,
    )
    return step, [
        (with_undefined_rows(kind, arrays, output.reshape(result.shape)),) for output in outputs
    ]


def step_request(
    graph: Graph, operator: Operator, spec: HardwareSpec, timeout: float | None
) -> Request:
    """Return the kernel that a product of a network needs of a target that runs it alone.

    Parameters
    ----------
    graph : Graph
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
    kind, first = operator.kind, graph.types[operator.inputs[0]]
    assert isinstance(kind, Product)
    widths = _halo(operator, kind, first)
    workload = kind.computation if widths is None else _in_memory(kind, first.shape, widths)
    target = open_target(spec)
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


def _halo(operator: Operator, kind: Product, first: TensorType) -> tuple[int, ...] | None:
    """Return the widths of padding that has to be in memory; None if there is none."""
    # Targets pad with zeros only; another zero point becomes part of the image.
    if not kind.padding or not is_convolution(operator):
        return None
    widths = tuple(padding_of(kind, first))
    return widths if any(widths) else None


def _in_memory(kind: Product, shape: tuple[int, ...], widths: tuple[int, ...]) -> Computation:
    layout = Layout.plain(shape).with_halo(widths)
    output = Layout.plain(kind.computation.output.shape)
    return physical_product(kind, layout, output).computation


@dataclass(frozen=True)
class _ProductStep:
    """Execution of one product on the target; ``save`` is the folder for its program."""

    target: AnyTarget
    operator: Operator
    kind: Product
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
        workload, first = self._workload(arrays[0])
        # Repeated blocks are searched once.
        if (workload, epilogue) not in selections:
            selections[workload, epilogue] = self._choose(workload, epilogue)
        selection = selections[workload, epilogue]
        verdict = Verdict(self.operator.name, 0.0, 0.0)
        if isinstance(selection, str):
            return StepResult(self.operator, verdict, reason=selection), None
        inputs = {
            operand.name: array.reshape(operand.shape)
            for operand, array in zip(workload.inputs, (first, arrays[1]), strict=True)
        }
        if epilogue is not None:
            inputs |= self.kind.epilogue_inputs(arrays)
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
        if epilogue is None:
            return step, [self._with_epilogue(sums, arrays) for (sums,) in modes]
        return step, [tuple(x.reshape(self.kind.shape) for x in results) for results in modes]

    def _workload(self, first: Array) -> tuple[Computation, Array]:
        """Return the computation and its first factor, with padding other than 0 in memory."""
        widths = _halo(self.operator, self.kind, TensorType.of_array(first))
        if widths is None:
            return self.kind.computation, first
        margins = [(0, 0), (0, 0), *((w, w) for w in widths)]
        padded = np.pad(first, margins, constant_values=self.kind.padding)
        return _in_memory(self.kind, tuple(first.shape), widths), padded

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
