"""One computation on one target, as :mod:`cpembed.network.match` asks it of every product.

>>> from cpembed.driver.named import workload
>>> found = matched(Request(workload("gemm m=8 n=16 k=16"), "vta_1x16x16"))
>>> found.embedded_on, found.utilisation, found.family
('vta_1x16x16', 1.0, {'x': (), 'y': ('n',), 'z': ('k',)})
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cpembed import worker
from cpembed.driver.across import Figure, Time
from cpembed.driver.estimate import described_estimate
from cpembed.driver.named import default_dtypes, hardware_spec, typed_by_roles
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Selection
from cpembed.driver.request import Request
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, CrashError, InvariantError
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.worker import step
from cpembed.worker.steps import SLOWEST


@dataclass(frozen=True)
class Match:
    """What a search came to: ``embedded_on`` is the target whose instruction runs the computation,
    another one than was asked where ``embedding`` is of one of its alternatives, and None where
    nothing was found, for what ``reason`` says. With an alternative, ``reason`` says why it is
    taken.

    ``ended``: whether the search came to its end, was stopped by a limit, or its process died.
    ``retyped``: the model has other element types than the instruction takes, and was matched as if
    it had these. ``estimated``: by a model, packing and unpacking included but for what is packed
    ahead. ``moved_bytes`` are read and written by packing and unpacking.
    """

    embedded_on: str | None = None
    embedding: Embedding | None = None
    utilisation: float | None = None
    estimated: Time | None = None
    moved_bytes: int | None = None
    reason: str | None = None
    retyped: bool = False
    seconds: float = 0.0
    ended: Literal["searched", "stopped", "failed"] = "searched"

    @property
    def outcome(self) -> str:
        """``yes`` or ``no``; ``stopped`` or ``failed`` where neither is known."""
        if self.embedded_on is not None:
            return "yes"
        return "no" if self.ended == "searched" else self.ended

    @property
    def family(self) -> Mapping[str, tuple[str, ...]]:
        """The computation's axes that feed each axis of the instruction."""
        return {} if self.embedding is None else self.embedding.family

    def figure(self, macs: int, count: int = 1) -> Figure:
        """For a table of several targets: of a layer that the network has ``count`` times."""
        return Figure(
            macs,
            count,
            self.embedded_on,
            self.utilisation,
            self.moved_bytes,
            self.estimated,
            self.reason,
            self.outcome,
        )

    def to_json(self) -> dict[str, Any]:
        embedding = self.embedding
        return {
            "outcome": self.outcome,
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


def match_in_worker(request: Request) -> Match:
    """:func:`matched` in the worker, whose death is a reason."""
    started = time.perf_counter()
    try:
        return worker.call(matched, request)
    except CrashError as error:
        seconds = time.perf_counter() - started
        return Match(reason=str(error), seconds=seconds, ended="failed")


def matched(request: Request) -> Match:
    """Search for the instruction, and where it does not fit or is mostly idle, for those of its
    ``alternatives``: a specification without any, or a constraint set, is matched alone. The
    timeout bounds each search. What a search refuses is a reason."""
    started = time.perf_counter()
    spec, workload = hardware_spec(request.target), request.workload
    retyped = False
    searches = 1 + len(spec.alternatives)
    allowed = SLOWEST * (request.options.timeout or 0.0) * searches
    try:
        with step(f"matching {workload.name} on {spec.name}", workload.macs + allowed):
            typed = typed_for(workload, spec)
            retyped = typed != workload
            found = choose(replace(request, workload=typed))
            seconds = time.perf_counter() - started
            if isinstance(found, Selection):
                return _of_chosen(found, spec, retyped, seconds)
            ended = "stopped" if found.is_stopped else "searched"
            return Match(reason=found.why_nothing, retyped=retyped, seconds=seconds, ended=ended)
    except InvariantError:
        raise
    except CpembedError as error:
        return Match(reason=str(error), retyped=retyped, seconds=time.perf_counter() - started)


def _of_chosen(found: Selection, spec: HardwareSpec, retyped: bool, seconds: float) -> Match:
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
        _estimated(found),
        ranked.overheads.packing_bytes,
        reason,
        retyped,
        seconds,
    )


def _estimated(found: Selection) -> Time | None:
    """By the target's own model where it executes here, else for the first machine that the
    specification describes; None where there is neither."""
    amount, target = found.choice.estimated, found.plan.target
    spec = found.solved.target
    if found.plan.native and amount is not None and amount != float("inf"):
        clock = None if spec.machine is None else spec.machine.clock_mhz
        us = amount if target.unit == "us" else amount / clock if clock else None
        return Time(amount, target.unit, us, Provenance.ESTIMATED)
    described = described_estimate(found.candidate.program, spec)
    if described is None:
        return None
    us = described.total_us
    return Time(us, "us", us, Provenance.ESTIMATED, described.machine)
