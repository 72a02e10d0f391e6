"""Run a network product by product, on a target that no library of this machine holds.

The target is simulated or emulated. The host computes the rest by its definition: operators between
products, and epilogues that the target cannot compute. Each such step is listed with the time that
a kernel of it is estimated to take (:mod:`cpembed.network.host_work`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.driver.advice import empty_places
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Plan, Request, Selection
from cpembed.errors import CpembedError, LoweringError, WorkloadError
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import Product, TensorType
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.network.host_work import HostWork, host_target, operator_on_host, product_on_host
from cpembed.network.layout import Layout, is_convolution, padding_of
from cpembed.network.observation import Verdict, difference
from cpembed.network.physical_product import physical_product
from cpembed.network.product_kernels import family_text, utilisation
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import provenance
from cpembed.steps import Progress
from cpembed.targets.capabilities import AnyTarget
from cpembed.targets.choice import built_first
from cpembed.targets.outputs import exact_epilogue
from cpembed.targets.outputs import save as save_artifact
from cpembed.targets.registry import open_target
from cpembed.targets.units import multiplies


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
        Results that the target stored: sums, or sums that the host scaled.
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
    selections: dict[Computation, Selection | str] = {}
    values: dict[str, Array] = {**graph.constants, **inputs}
    steps: list[StepResult] = []
    for number, operator in enumerate(graph.operators):
        progress(f"running {operator.name}", number, len(graph.operators))
        arrays = [values[name] for name in operator.inputs]
        expected = operator.kind.evaluate(arrays)
        step, results = None, expected
        if isinstance(operator.kind, Product):
            folder = None if save is None else save / _file_name(number, operator.name)
            product_step = _ProductStep(
                target=machine, operator=operator, kind=operator.kind, timeout=timeout, save=folder
            )
            step, result = product_step.run(arrays, selections)
            results = (result,) if result is not None else expected
        error = max(difference(a, b) for a, b in zip(results, expected, strict=True))
        verdict = Verdict(operator.name, error, _tolerance(operator, expected))
        step = StepResult(operator, verdict) if step is None else replace(step, verdict=verdict)
        if isinstance(operator.kind, Product) and step.executed_on is not None:
            works = product_on_host(operator.kind, graph.types[operator.inputs[0]], host)
        else:
            works = (operator_on_host(graph, operator, host),)
        steps.append(replace(step, host=works))
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


def _tolerance(operator: Operator, expected: tuple[Array, ...]) -> float:
    """Return the allowed difference, 0 for integers."""
    kind = operator.kind
    if not isinstance(kind, Product) or is_integer(kind.computation.output.dtype):
        return 0.0
    # Targets add in another order than the definition, some in 16 bits of mantissa or fewer.
    sizes = [float(np.abs(array.astype(np.float64)).max()) for array in expected if array.size]
    return 1e-3 * max(sizes, default=0.0)


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
    return _request(open_target(spec), workload, timeout)


def _request(target: AnyTarget, workload: Computation, timeout: float | None) -> Request:
    # An epilogue that stores the sums as they are; the product's own one is left to the host.
    exact = exact_epilogue(target, workload)
    return Request(workload, target.spec, KernelOptions(timeout=timeout), epilogue=exact)


def _halo(operator: Operator, kind: Product, first: TensorType) -> tuple[int, ...] | None:
    """Return the widths of padding that has to be in memory; None if there is none."""
    # Targets pad with zeros only; another zero point becomes part of the image.
    if not kind.padding or not is_convolution(operator):
        return None
    return tuple(padding_of(kind, first))


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
        self, arrays: list[Array], selections: dict[Computation, Selection | str]
    ) -> tuple[StepResult, Array | None]:
        """Run the product and return its result; None if the host has to compute it."""
        workload, first = self._workload(arrays[0])
        # Repeated blocks are searched once.
        if workload not in selections:
            selections[workload] = self._choose(workload)
        selection = selections[workload]
        verdict = Verdict(self.operator.name, 0.0, 0.0)
        if isinstance(selection, str):
            return StepResult(self.operator, verdict, reason=selection), None
        inputs = {
            operand.name: array.reshape(operand.shape)
            for operand, array in zip(workload.inputs, (first, arrays[1]), strict=True)
        }
        try:
            sums, amount, embedding = worker.call(_executed, selection.plan, inputs, self.save)
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
            stored="sums, scaled by the host" if self.kind.epilogue is not None else "sums",
        )
        return step, self._with_epilogue(sums, arrays)

    def _workload(self, first: Array) -> tuple[Computation, Array]:
        """Return the computation and its first factor, with padding other than 0 in memory."""
        widths = _halo(self.operator, self.kind, TensorType.of_array(first))
        if widths is None:
            return self.kind.computation, first
        margins = [(0, 0), (0, 0), *((w, w) for w in widths)]
        padded = np.pad(first, margins, constant_values=self.kind.padding)
        return _in_memory(self.kind, tuple(first.shape), widths), padded

    def _choose(self, workload: Computation) -> Selection | str:
        spec, types = self.target.spec, [operand.dtype for operand in workload.inputs]
        if not multiplies(spec, types):
            return f"{spec.name} does not multiply {' by '.join(types)}"
        try:
            outcome = choose(_request(self.target, workload, self.timeout))
        except (LoweringError, WorkloadError) as error:
            return str(error)
        if not isinstance(outcome, Selection):
            conflict = outcome.conflict
            return "no embedding found in time" if conflict is None else conflict.words[0]
        return outcome if outcome.plan.native else "; ".join(outcome.plan.missing)

    def _with_epilogue(self, sums: Array, arrays: list[Array]) -> Array:
        """Return the result of the product, whose epilogue the host applies to the sums."""
        kind = self.kind
        sums = sums.reshape(kind.computation.output.shape)
        sums = sums - self._corrections(arrays) if any(kind.zero_points) else sums
        return kind.finished(sums, arrays)

    def _corrections(self, arrays: list[Array]) -> Array:
        """Return the part of the sums that zero points subtract."""
        plain = replace(self.kind, zero_points=(0, 0), epilogue=None)
        exact = replace(self.kind, epilogue=None)
        return plain.sums(*arrays[:2]) - exact.sums(*arrays[:2])


def _executed(
    plan: Plan, inputs: dict[str, Array], save: Path | None
) -> tuple[NDArray[Any], float | None, str]:
    """Return the sums, their time in the target's unit, and the embedding; runs in the worker."""
    target = plan.target
    artifact, choice = built_first(target, plan.choices, plan.epilogue)
    execution = target.execute(artifact, inputs)
    timing = target.time(artifact, inputs)
    latency = None if timing.latency_us is None else timing.latency_us.median
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        save_artifact(target, artifact, save)
    amount = timing.cycles if target.unit == "cycles" else latency
    return execution.outputs[0], amount, choice.ranked.identifier


def _file_name(number: int, name: str) -> str:
    letters = "".join(c if c.isalnum() else "_" for c in name)[:60]
    return f"{number:03d}_{letters}"


def stepwise_document(run: StepwiseRun) -> dict[str, Any]:
    """Return the document of a run; times are in the target's unit."""
    graph, unit = run.graph, open_target(run.target).unit
    products = [s for s in run.steps if isinstance(s.operator.kind, Product)]
    amounts = [s.amount for s in products if s.amount is not None]
    # Estimates in cycles are no times, and are only listed per operator.
    estimates = [s.estimated for s in products if s.estimated is not None and s.unit == "us"]
    return {
        "network": graph.name,
        "target": run.target.name,
        "units": [run.target.name],
        "threads": 1,
        "provenance": run.provenance,
        "unit": unit,
        "operators": [_step_document(graph, step) for step in run.steps],
        # The host stores tensors row-major, and targets pack them for themselves.
        "tensors": {
            name: {
                "shape": list(kind.shape),
                "dtype": kind.dtype,
                "layout": str(Layout.plain(kind.shape)),
                "conversions": [],
            }
            for name, kind in graph.types.items()
            if not graph.is_constant(name)
        },
        "totals": {
            "predicted_us": sum(estimates) if estimates else None,
            "measured_us": None,
            "cold_us": None,
            f"total_{unit}": sum(amounts) if amounts else None,
            "operators": len(graph.operators),
            "products": len(products),
            "embedded": sum(s.executed_on is not None for s in products),
            "on_target": sum(s.executed_on == run.target.name for s in products),
            "macs": sum(_macs(s.operator) for s in products),
            "host_us": sum(work.us for step in run.steps for work in step.host),
            "conversions": 0,
        },
        "assignment": None,
        **provenance(),
    }


def _macs(operator: Operator) -> int:
    return operator.kind.computation.macs if isinstance(operator.kind, Product) else 0


def _step_document(graph: Graph, step: StepResult) -> dict[str, Any]:
    operator, kind = step.operator, step.operator.kind
    is_product = isinstance(kind, Product)
    # The host computes the definition itself, which is compared with nothing.
    is_compared = step.executed_on is not None
    return {
        "name": operator.name,
        "kind": type(kind).__name__.lower(),
        "label": kind.label,
        "inputs": [n for n in operator.inputs if not graph.is_constant(n)],
        "outputs": list(operator.outputs),
        "workload": str(kind.computation) if is_product else None,
        "macs": _macs(operator),
        "embedded_on": step.executed_on,
        "embedding": step.embedding,
        "family": step.family,
        "utilisation": step.utilisation,
        "reason": step.reason or (None if is_product else "computed by the host"),
        "predicted_us": None,
        "measured_us": step.amount if step.unit == "us" else None,
        f"estimated_{step.unit}": step.estimated,
        f"{step.unit}": step.amount,
        "stored": step.stored,
        "host": [work.to_json() for work in step.host],
        "verified": step.verdict.verified if is_compared else None,
        "max_error": step.verdict.max_error if is_compared else None,
    }
