"""A kernel as a schedule of MetaSchedule: its trace names the kernel, its function is it."""
# pyright: basic

from __future__ import annotations

import json
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.target import Target

from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.choice import Machine
from cpembed.integrations.tvm.fused import Fused, recognise_fused
from cpembed.integrations.tvm.kernels import Kernel, closed_kernels_of
from cpembed.integrations.tvm.rule import require
from cpembed.integrations.tvm.whole import whole_function

ANNOTATION = "cpembed.codegen"
"""Of the root block of a schedule: which embedding and which schedule of it, as JSON."""


def recognised(mod: ir.IRModule) -> tuple[tirx.PrimFunc, Fused]:
    """Raises :class:`WorkloadError` for a module that is no function of one product."""
    functions = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    if len(functions) != 1:
        raise WorkloadError(f"{len(functions)} functions, not one")
    return functions[0], recognise_fused(functions[0])


def design(mod: ir.IRModule, function: tirx.PrimFunc, kernel: Kernel, target: Target) -> Any:
    """A schedule whose trace names the kernel, and whose function is the kernel's."""
    require(kernel, target)
    schedule: Any = s_tir.Schedule(mod)
    root = schedule.get_sblock("root")
    schedule.annotate(root, ANNOTATION, key_of(kernel))
    whole: Any = whole_function(kernel, function)
    schedule.state.replace(schedule.get_sref(root), whole.body.block)
    return schedule


def key_of(kernel: Kernel) -> str:
    schedule = kernel.program.target.schedule_json(kernel.program.schedule)
    return json.dumps([kernel.ranked.candidate.identifier, schedule], sort_keys=True)


def named_kernel(machine: Machine, fused: Fused, key: str | None) -> Kernel | None:
    """The kernel that a trace named; None where a search does not find it."""
    if key is None:
        return None
    return next((k for k in closed_kernels_of(machine, fused) if key_of(k) == key), None)


def recorded(record: TuningRecord) -> str | None:
    """The kernel that a trace names."""
    for instruction in record.trace.insts:
        inputs, attributes = list(instruction.inputs), list(instruction.attrs)
        if instruction.kind.name == "Annotate" and ANNOTATION in map(str, attributes):
            return str(inputs[1])
    return None
