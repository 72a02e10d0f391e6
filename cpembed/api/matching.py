"""One computation on one target, as :mod:`cpembed.network.match` asks it of every product.

>>> from cpembed.api.solve import hardware_spec, workload
>>> found = matched(workload("gemm m=8 n=16 k=16"), hardware_spec("vta_1x16x16"))
>>> found.embedded_on, found.utilisation, found.family
('vta_1x16x16', 1.0, {'x': (), 'y': ('n',), 'z': ('k',)})
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpembed import worker
from cpembed.api.chosen import Chosen, Request, choose
from cpembed.api.solve import default_dtypes, typed_by_roles
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, CrashError, InvariantError, SpecError, TransformError
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.packing import packed_before
from cpembed.machine.estimate import estimate_program, machine_of
from cpembed.worker import step
from cpembed.worker.steps import SLOWEST


@dataclass(frozen=True)
class Estimated:
    """A time by a model, packing and unpacking included but for what is packed ahead: ``amount`` in
    ``unit`` (``us`` or ``cycles``), and in microseconds where a clock is known. ``machine`` names
    the machine of the specification that it is of; None where it is this one, or the simulated."""

    amount: float
    unit: str
    us: float | None
    machine: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "amount": self.amount,
            "unit": self.unit,
            "us": self.us,
            "machine": self.machine,
            "provenance": "estimated",
        }


@dataclass(frozen=True)
class Match:
    """What a search came to: ``embedded_on`` is the target whose instruction runs the computation,
    another one than was asked where ``embedding`` is of one of its alternatives, and None where
    nothing was found, for what ``reason`` says. With an alternative, ``reason`` says why it is
    taken.

    ``retyped``: the model has other element types than the instruction takes, and was matched as if
    it had these. ``moved_bytes`` are read and written by packing and unpacking.
    """

    embedded_on: str | None = None
    embedding: Embedding | None = None
    utilisation: float | None = None
    estimated: Estimated | None = None
    moved_bytes: int | None = None
    reason: str | None = None
    retyped: bool = False
    seconds: float = 0.0

    @property
    def family(self) -> Mapping[str, tuple[str, ...]]:
        """The computation's axes that feed each axis of the instruction."""
        return {} if self.embedding is None else self.embedding.family

    def to_json(self) -> dict[str, Any]:
        embedding = self.embedding
        return {
            "embedded_on": self.embedded_on,
            "embedding": None if embedding is None else embedding.identifier(),
            "family": {axis: list(axes) for axis, axes in self.family.items()},
            "digits": None if embedding is None else embedding.to_json(),
            "utilisation": self.utilisation,
            "estimated": None if self.estimated is None else self.estimated.to_json(),
            "moved_bytes": self.moved_bytes,
            "reason": self.reason,
            "retyped": self.retyped,
            "seconds": self.seconds,
        }


def typed_for(workload: Computation, spec: HardwareSpec) -> Computation:
    """The computation on element types that the instruction takes: its own where they fit in the
    order of the operands, else the first choices of the operands' roles."""
    instruction = spec.instruction
    roles = [instruction.dtypes[o.name] for o in instruction.computation.operands]
    operands = workload.operands
    if len(roles) != len(operands):
        return workload
    if all(o.dtype in types for o, types in zip(operands, roles, strict=True)):
        return workload
    first = dict(zip([o.name for o in operands], default_dtypes(spec), strict=True))
    return typed_by_roles(workload.with_dtypes(first), instruction)


def prepared_for(graph: Graph, spec: HardwareSpec) -> Graph:
    """A network in the form in which its products are run, on the element types that a target
    multiplies, as far as these are integers where it is quantized."""
    from cpembed.graph.passes import prepare

    inputs = default_dtypes(spec)[:-1]
    if len(inputs) < 2:
        return prepare(graph)
    return prepare(graph, first=inputs[0], second=inputs[1])


def match_in_worker(
    workload: Computation,
    spec: HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    timeout: float | None = None,
    untuned: bool = False,
) -> Match:
    """:func:`matched` in the worker, whose death is a reason."""
    started = time.perf_counter()
    try:
        return worker.call(
            matched, workload, spec, constraints=constraints, timeout=timeout, untuned=untuned
        )
    except CrashError as error:
        return Match(reason=str(error), seconds=time.perf_counter() - started)


def matched(
    workload: Computation,
    spec: HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    timeout: float | None = None,
    untuned: bool = False,
) -> Match:
    """Search for the instruction, and where it does not fit or is mostly idle, for those of its
    ``alternatives``: a specification without any, or a constraint set, is matched alone.
    ``timeout`` bounds each search in seconds; ``untuned``: what tuning found is not used. What a
    search refuses is a reason."""
    started = time.perf_counter()
    retyped = False
    searches = 1 + len(spec.alternatives)
    allowed = SLOWEST * (timeout or 0.0) * searches
    try:
        with step(f"matching {workload.name} on {spec.name}", workload.macs + allowed):
            typed = typed_for(workload, spec)
            retyped = typed != workload
            found = choose(Request(typed, spec, constraints, timeout=timeout, untuned=untuned))
            seconds = time.perf_counter() - started
            if isinstance(found, Chosen):
                return _of_chosen(found, spec, retyped, seconds)
            return Match(reason=found.why_nothing, retyped=retyped, seconds=seconds)
    except InvariantError:
        raise
    except CpembedError as error:
        return Match(reason=str(error), retyped=retyped, seconds=time.perf_counter() - started)


def _of_chosen(found: Chosen, spec: HardwareSpec, retyped: bool, seconds: float) -> Match:
    ranked = found.candidate
    reason = None
    if found.instead is not None:
        solved = found.instead.solved
        if solved.count:
            reason = f"faster by estimate than {spec.name}"
            if solved.utilisation:
                reason += f", which would be used to {solved.utilisation:.1%}"
        else:
            reason = solved.why_nothing
    return Match(
        found.solved.target.name,
        ranked.candidate.embedding,
        ranked.overheads.utilisation,
        estimated(found),
        ranked.overheads.packing_bytes,
        reason,
        retyped,
        seconds,
    )


def estimated(found: Chosen) -> Estimated | None:
    """By the target's own model where it executes here, else for the first machine that the
    specification describes; None where there is neither."""
    amount, target = found.choice.estimated, found.plan.target
    spec = found.solved.target
    if found.plan.native and amount is not None and amount != float("inf"):
        clock = None if spec.machine is None else spec.machine.clock_mhz
        us = amount if target.unit == "us" else amount / clock if clock else None
        return Estimated(amount, target.unit, us)
    program = found.candidate.candidate.program
    try:
        machine = machine_of(spec)
        by_machine = estimate_program(program, machine, ahead=packed_before(program.workload))
    except (SpecError, TransformError):
        return None
    return Estimated(by_machine.total_us, "us", by_machine.total_us, machine.name)
