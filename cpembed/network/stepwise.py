"""A network on a target that no library of this machine holds: a simulated or an emulated one.

Products run one by one in what executes the target here. The host does the rest by its definition,
untimed: operators between products, and what the target does not store of the sums (of a VTA, which
shifts and clips, scales that are no powers of two).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import channel_numbers
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Plan, Request, Selection
from cpembed.errors import CpembedError, LoweringError
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import Product, TensorType
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.network.candidate_layouts import is_convolution, padding_of
from cpembed.network.kernel_cache import Progress
from cpembed.network.layout import Layout
from cpembed.network.physical_product import laid_out
from cpembed.network.product_kernels import utilisation
from cpembed.network.verification import Judged, difference
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import provenance
from cpembed.targets import capabilities
from cpembed.targets.base import Target
from cpembed.targets.capabilities import exact_epilogue
from cpembed.targets.choice import built_first
from cpembed.targets.registry import open_target

AnyTarget = Target[Any, Any, Any]


@dataclass(frozen=True)
class StepResult:
    """An operator that ran. ``executed_on``: the target, None for the host; ``amount`` of the
    target's ``unit``, None where nothing timed it; ``estimated`` likewise."""

    operator: Operator
    judged: Judged
    executed_on: str | None = None
    embedding: str | None = None
    family: str | None = None
    utilisation: float | None = None
    amount: float | None = None
    estimated: float | None = None
    unit: str = "us"
    reason: str | None = None
    stored: str = ""


@dataclass(frozen=True)
class StepwiseRun:
    """A network that ran on a target, operator by operator."""

    graph: Graph
    target: HardwareSpec
    steps: tuple[StepResult, ...]
    outputs: Mapping[str, Array]
    provenance: str

    @property
    def failed(self) -> tuple[Judged, ...]:
        return tuple(step.judged for step in self.steps if not step.judged.verified)


def run_stepwise(
    graph: Graph,
    target: HardwareSpec,
    inputs: Mapping[str, Array],
    *,
    progress: Progress,
    timeout: float | None = None,
    save: Path | None = None,
) -> StepwiseRun:
    """Run a network that was prepared for the target; ``save``: a folder for the program of each
    product, where the target has such.

    Raises :class:`~cpembed.errors.WorkloadError` for other inputs than the network's.
    """
    check_inputs(graph, inputs)
    machine = open_target(target)
    chosen: dict[Computation, Selection | str] = {}
    values: dict[str, Array] = {**graph.constants, **inputs}
    steps: list[StepResult] = []
    for number, operator in enumerate(graph.operators):
        progress(f"running {operator.name}", number, len(graph.operators))
        given = [values[name] for name in operator.inputs]
        expected = operator.kind.evaluate(given)
        step, results = None, expected
        if isinstance(operator.kind, Product):
            place = None if save is None else save / _file_name(number, operator.name)
            one = _ProductStep(machine, operator, operator.kind, timeout, place)
            step, found = one.run(given, chosen)
            results = (found,) if found is not None else expected
        error = max(difference(a, b) for a, b in zip(results, expected, strict=True))
        judged = Judged(operator.name, error, _tolerance(operator, expected))
        step = StepResult(operator, judged) if step is None else replace(step, judged=judged)
        steps.append(step)
        values |= zip(operator.outputs, results, strict=True)
    outputs = {name: values[name] for name in graph.outputs}
    return StepwiseRun(graph, target, tuple(steps), outputs, str(machine.provenance))


def _tolerance(operator: Operator, expected: tuple[Array, ...]) -> float:
    """Integers are equal bit for bit; sums of floats are rounded in another order."""
    kind = operator.kind
    if not isinstance(kind, Product) or is_integer(kind.computation.output.dtype):
        return 0.0
    sizes = [float(np.abs(array.astype(np.float64)).max()) for array in expected if array.size]
    return 1e-3 * max(sizes, default=0.0)


@dataclass(frozen=True)
class _ProductStep:
    target: AnyTarget
    operator: Operator
    kind: Product
    timeout: float | None
    save: Path | None

    def run(
        self, given: list[Array], known: dict[Computation, Selection | str]
    ) -> tuple[StepResult, Array | None]:
        """How the product ran, and its result; None where the host has to compute it."""
        workload, first = self._workload(given[0])
        if workload not in known:
            known[workload] = self._choose(workload)
        chosen = known[workload]
        judged = Judged(self.operator.name, 0.0, 0.0)
        if isinstance(chosen, str):
            return StepResult(self.operator, judged, reason=chosen), None
        names = [operand.name for operand in workload.inputs]
        shapes = [operand.shape for operand in workload.inputs]
        inputs = {
            name: array.reshape(shape)
            for name, array, shape in zip(names, (first, given[1]), shapes, strict=True)
        }
        try:
            sums, amount, embedding = worker.call(_executed, chosen.plan, inputs, self.save)
        except CpembedError as error:
            return StepResult(self.operator, judged, reason=str(error)), None
        candidate = chosen.candidate
        family = candidate.embedding.family
        step = StepResult(
            self.operator,
            judged,
            chosen.solved.target.name,
            embedding,
            ", ".join(f"{axis}: {' '.join(of) or '-'}" for axis, of in family.items()),
            utilisation(self.kind.computation, candidate.overheads.occupancy),
            amount,
            chosen.choice.estimated,
            chosen.plan.target.unit,
            None if chosen.substitution is None else f"not on {self.target.spec.name}",
            "sums, stored anew by the host" if self.kind.epilogue is not None else "sums",
        )
        return step, self._stored(sums, given)

    def _workload(self, first: Array) -> tuple[Computation, Array]:
        """The product with its padding in memory where that is not 0, and its first factor so."""
        kind = self.kind
        if not kind.padding or not is_convolution(self.operator):
            return kind.computation, first
        shape = tuple(first.shape)
        widths = padding_of(kind, TensorType.of(first))
        layout = Layout.plain(shape).with_halo(widths)
        output = Layout.plain(kind.computation.output.shape)
        margins = [(0, 0), (0, 0), *((w, w) for w in widths)]
        padded = np.pad(first, margins, constant_values=kind.padding)
        return laid_out(kind, layout, output).computation, padded

    def _choose(self, workload: Computation) -> Selection | str:
        exact = exact_epilogue(self.target, workload)
        asked = Request(
            workload,
            self.target.spec,
            KernelOptions(timeout=self.timeout),
            epilogue=exact,
        )
        try:
            found = choose(asked)
        except LoweringError as error:
            return str(error)
        if not isinstance(found, Selection):
            conflict = found.conflict
            return "no embedding found in time" if conflict is None else conflict.words[0]
        return found if found.plan.native else "; ".join(found.plan.missing)

    def _stored(self, sums: Array, given: list[Array]) -> Array:
        """What the host stores of the sums, as the product's definition says."""
        kind = self.kind
        sums = sums.reshape(kind.computation.output.shape)
        sums = sums - self._corrected(given) if any(kind.zero_points) else sums
        if kind.epilogue is None:
            return sums.reshape(kind.shape)
        count = len(kind.vectors)
        vectors = {
            name: vector.reshape(-1)
            for name, vector in zip(kind.vectors, given[2 : 2 + count], strict=True)
        }
        residual = given[2 + count].reshape(sums.shape) if kind.epilogue.residual else None
        channels = channel_numbers(kind.computation)
        return kind.epilogue.apply(sums, vectors, channels, residual).reshape(kind.shape)

    def _corrected(self, given: list[Array]) -> Array:
        """What zero points take from the sums of the integers as they are."""
        plain = replace(self.kind, zero_points=(0, 0), epilogue=None)
        exact = replace(self.kind, epilogue=None)
        return plain.sums(*given[:2]) - exact.sums(*given[:2])


def _executed(
    plan: Plan, inputs: dict[str, Array], save: Path | None
) -> tuple[NDArray[Any], float | None, str]:
    """Sums, what they took in the target's unit, and the embedding; in the worker."""
    target = plan.target
    artifact, choice = built_first(target, plan.choices, plan.epilogue)
    execution = target.execute(artifact, inputs)
    timing = target.time(artifact, inputs)
    latency = None if timing.latency_us is None else timing.latency_us.median
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        capabilities.save(target, artifact, save)
    amount = timing.cycles if target.unit == "cycles" else latency
    return execution.outputs[0], amount, choice.candidate.identifier


def _file_name(number: int, name: str) -> str:
    kept = "".join(c if c.isalnum() else "_" for c in name)[:60]
    return f"{number:03d}_{kept}"


def stepwise_document(run: StepwiseRun) -> dict[str, Any]:
    """What ``cpembed network`` says of such a run; times are in the target's unit."""
    graph, unit = run.graph, open_target(run.target).unit
    products = [s for s in run.steps if isinstance(s.operator.kind, Product)]
    amounts = [s.amount for s in products if s.amount is not None]
    estimates = [s.estimated for s in products if s.estimated is not None and s.unit == "us"]
    return {
        "network": graph.name,
        "target": run.target.name,
        "threads": 1,
        "provenance": run.provenance,
        "unit": unit,
        "operators": [_step_document(graph, step) for step in run.steps],
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
    # What the host computes is the definition itself, which is compared with nothing.
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
        "verified": step.judged.verified if is_compared else None,
        "max_error": step.judged.max_error if is_compared else None,
    }
