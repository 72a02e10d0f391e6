"""Match of one computation with one target, as :mod:`cpembed.network.match` does each product.

>>> from cpembed.driver.named import workload
>>> match = matched(Request(workload("gemm m=8 n=16 k=16"), "vta_1x16x16"))
>>> match.embedded_on, match.utilisation, match.family
('vta_1x16x16', 1.0, {'x': (), 'y': ('n',), 'z': ('k',)})
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cpembed.driver.across import Figure, Time
from cpembed.driver.candidate_time import selection_time
from cpembed.driver.named import default_dtypes, hardware_spec, typed_by_roles
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CpembedError, CrashError, InvariantError
from cpembed.graph.graph import Graph
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.steps import SLOWEST, step
from cpembed.targets.units import (
    NATIVE,
    FloatType,
    Units,
    multiplies,
    native_units,
    units_of,
    with_float_type,
)


@dataclass(frozen=True)
class Match:
    """Outcome of the search for one computation on one target.

    Parameters
    ----------
    embedded_on : str, optional
        Target whose instruction runs the computation: the requested one or an alternative of it;
        None if nothing was found.
    embedding : Embedding, optional
        Embedding that a run would select.
    utilisation : float, optional
        Useful share of the instruction, 0 to 1.
    estimated : Time, optional
        Estimated time, with packing and unpacking except for operands that are packed ahead.
    moved_bytes : int, optional
        Bytes that packing and unpacking read and write.
    reason : str, optional
        Reason why nothing was found, why an alternative is selected, or that a limit stopped the
        search, so that a better embedding may be missing.
    retyped : bool
        True if the computation is not embedded because of its element types, and would be on types
        that the instruction takes; the reason names these.
    seconds : float
        Wall time of the search.
    ended : str
        ``searched`` if the search was complete, ``stopped`` if a limit ended it, ``failed`` if its
        process died.
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
        """``yes`` or ``no``; ``stopped`` or ``failed`` if the search did not tell."""
        if self.embedded_on is not None:
            return "yes"
        return "no" if self.ended == "searched" else self.ended

    @property
    def family(self) -> Mapping[str, tuple[str, ...]]:
        """Axes of the computation that feed each axis of the instruction."""
        return {} if self.embedding is None else self.embedding.family

    def figure(self, macs: int, count: int = 1) -> Figure:
        """Return the match as the figure of a layer that the network has ``count`` times."""
        return Figure(
            macs=macs,
            count=count,
            embedded_on=self.embedded_on,
            utilisation=self.utilisation,
            moved_bytes=self.moved_bytes,
            time=self.estimated,
            reason=self.reason,
            outcome=self.outcome,
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
            "ended": self.ended,
            "retyped": self.retyped,
            "seconds": self.seconds,
        }


def typed_for(workload: Computation, spec: HardwareSpec) -> Computation:
    """Return the computation on element types that the instruction takes.

    These are its own if each operand's type fits, else the default types of the operands' roles.
    """
    instruction = spec.instruction
    roles = [instruction.dtypes[o.name] for o in instruction.computation.operands]
    operands = workload.operands
    if len(roles) != len(operands):
        return workload
    if all(o.dtype in types for o, types in zip(operands, roles, strict=True)):
        return workload
    first = dict(zip([o.name for o in operands], default_dtypes(spec), strict=True))
    return typed_by_roles(workload.with_dtypes(first), instruction)


def network_units(target: str | HardwareSpec | Units, float_type: FloatType | None = None) -> Units:
    """Return the targets that compute a network's products.

    Parameters
    ----------
    target : str, HardwareSpec or Units
        Target by name, file or value, or ``native`` for all units of this processor.
    float_type : str, optional
        Type to which operands of float products are rounded; by default bfloat16 if the named
        target multiplies it, else float32.

    Raises
    ------
    SpecError
        If the target is unknown, or its file is wrong.
    BackendUnavailable
        If no unit multiplies ``float_type``, or the processor has no unit.
    """
    if isinstance(target, Units):
        units = target
    else:
        units = native_units() if target == NATIVE else units_of(hardware_spec(target))
    return units if float_type is None else with_float_type(units, float_type)


def prepared_for(graph: Graph, units: Units, *, attends: bool = False) -> Graph:
    """Return a network in the form in which its products run: on types that units multiply.

    Parameters
    ----------
    graph : Graph
    units : Units
    attends : bool, default False
        Make attention of floats one operator.
    """
    from cpembed.graph.passes import prepare

    first, second = units.byte_types
    return prepare(
        graph,
        first=first,
        second=second,
        multiplied=units.byte_pairs,
        floats=units.float_type,
        attends=attends,
    )


def match_in_worker(request: Request) -> Match:
    """Call :func:`matched` in the worker; if the worker dies, that is the reason of the match."""
    started = time.perf_counter()
    try:
        return worker.call(matched, request)
    except CrashError as error:
        seconds = time.perf_counter() - started
        return Match(reason=str(error), seconds=seconds, ended="failed")


def matched(request: Request) -> Match:
    """Match a computation with a target, or with an alternative of it.

    Alternatives are tried if the instruction does not fit or is mostly idle. A request with a
    constraint set has no alternatives. The timeout bounds each search. An error of the search
    becomes the reason of the match.
    """
    started = time.perf_counter()
    spec, workload = hardware_spec(request.target, request.workload), request.workload
    # The watchdog of the worker must allow what the limits of all these searches allow.
    searches = 1 + len(spec.alternatives)
    allowed = SLOWEST * (request.options.timeout or 0.0) * searches
    try:
        with step(f"matching {workload.name} on {spec.name}", workload.macs + allowed):
            types = [operand.dtype for operand in workload.inputs]
            typed = workload if multiplies(spec, types) else typed_for(workload, spec)
            if typed == workload:
                match = _searched(request, spec)
            else:
                match = _of_other_types(request, spec, typed)
    except InvariantError:
        # A defect of this package: hiding it in a row would let the others be trusted.
        raise
    except CpembedError as error:
        match = Match(reason=str(error))
    return replace(match, seconds=time.perf_counter() - started)


def _searched(request: Request, spec: HardwareSpec) -> Match:
    """Search a computation on its own element types."""
    outcome = choose(request)
    if not isinstance(outcome, Selection):
        ended = "stopped" if outcome.is_stopped else "searched"
        return Match(reason=outcome.why_nothing, ended=ended)
    # A target that executes here, and not this computation, leaves it to portable code.
    if not outcome.plan.native and not request.execution.missing:
        return Match(reason="; ".join(outcome.plan.missing))
    return _match_of_selection(outcome, spec)


def _of_other_types(request: Request, spec: HardwareSpec, typed: Computation) -> Match:
    """Return why a computation of types that a target does not multiply is not embedded.

    If it would be on the target's types, the reason says so: the model could be quantized.
    """
    both = (typed, request.workload)
    types, refused = (" by ".join(o.dtype for o in each.inputs) for each in both)
    reason = f"{spec.name} does not multiply {refused}"
    match = _searched(replace(request, workload=typed, epilogue=None), spec)
    if match.embedded_on is None:
        return Match(reason=f"{reason}; as {types}: {match.reason}", ended=match.ended)
    used = "" if match.utilisation is None else f" and use {match.utilisation:.1%}"
    reason += f"; a product of {types} would be embedded{used}"
    return Match(reason=reason, retyped=True)


def _match_of_selection(selection: Selection, spec: HardwareSpec) -> Match:
    ranked = selection.ranked
    reason = None
    if selection.substitution is not None:
        solved = selection.substitution.solved
        if solved.count:
            reason = f"faster by estimate than {spec.name}"
            if solved.utilisation:
                reason += f", which would be used to {solved.utilisation:.1%}"
        else:
            reason = solved.why_nothing
    solved = selection.solved
    ended = "searched" if solved.top_proven else "stopped"
    if ended == "stopped":
        stopped = f"stopped by the {solved.stopped_by}: a better embedding may be missing"
        reason = stopped if reason is None else f"{reason}; {stopped}"
    return Match(
        embedded_on=selection.solved.target.name,
        embedding=ranked.candidate.embedding,
        utilisation=ranked.overheads.utilisation,
        estimated=_estimated(selection),
        moved_bytes=ranked.overheads.packing_bytes,
        reason=reason,
        ended=ended,
    )


def _estimated(selection: Selection) -> Time | None:
    """Return the time of a selection, packing and unpacking included; None if there is none."""
    time = selection_time(selection)
    if time is None:
        return None
    return Time(time.total_us, "us", time.total_us, Provenance.ESTIMATED, time.machine)
