"""A target of another distribution, as its author would write it: portable loops on one thread or
two, ahead of which a function does what a broken code generator may do to its process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.emit import portable_plan
from cpembed.errors import LoweringError
from cpembed.runtime.measurement.runner import Timing, measure
from cpembed.runtime.tuning.database import PlainTrial
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.base import Array, Execution, Target
from cpembed.transform.program import DerivedProgram

LLVM = {
    "works": "ret i32 0",
    "illegal": "call void @llvm.trap()\n  unreachable",
    "forever": "br label %loop\nloop:\n  br label %loop",
    "astray": """br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %at = getelementptr i8, ptr %buffer, i64 %i
  store volatile i8 1, ptr %at
  %next = add i64 %i, 4096
  %more = icmp ult i64 %next, 1099511627776
  br i1 %more, label %loop, label %done
done:
  ret i32 0""",
    "hungry": """%bytes = call ptr @malloc(i64 107374182400)
  call void @llvm.memset.p0.i64(ptr %bytes, i8 1, i64 107374182400, i1 true)
  ret i32 0""",
}
DECLARED = """declare void @llvm.trap()
declare ptr @malloc(i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
ABORTS_BELOW = 10_000
"""Multiply-accumulates of the programs at which ``aborts`` ends its process."""

Lowered = tuple[DerivedProgram, Any]


@dataclass(frozen=True)
class Threads:
    """A schedule."""

    count: int


class Loops(Space[Threads]):
    def __init__(self, program: DerivedProgram) -> None:
        self.macs = program.unfused.macs

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Threads]]:
        return [self.scored(Threads(count)) for count in (2, 1)][:limit]

    def scored(self, schedule: Threads) -> Scored[Threads]:
        if schedule.count not in (1, 2):
            raise LoweringError(f"{schedule.count} threads: there are two")
        return Scored(self.macs / 1e3 / schedule.count, schedule)


class Unit(Target[Lowered, Threads, CompiledKernel]):
    kind: ClassVar[str] = "works"

    def missing(self) -> tuple[str, ...]:
        return ()

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> Lowered:
        return program, epilogue

    def space(self, lowered: Lowered) -> Loops:
        return Loops(lowered[0])

    def build(self, lowered: Lowered, schedule: Threads) -> CompiledKernel:
        program, epilogue = lowered
        if self.kind == "aborts" and program.workload.macs < ABORTS_BELOW:
            os.write(2, b"LLVM ERROR: no such instruction\n")
            os.abort()
        made = portable_plan(program, schedule.count, epilogue)
        lines = made.source.splitlines()
        first = next(n for n, line in enumerate(lines) if "T.func_attr" in line)
        call = 'T.evaluate(T.call_extern("int32", "behave", T.address_of(C[0])))'
        lines.insert(first + 1, " " * 4 + call)
        text = LLVM.get(self.kind, LLVM["works"])
        body = f"define i32 @behave(ptr %buffer) {{\nentry:\n  {text}\n}}\n"
        source = "\n".join(lines) + "\n"
        plan = replace(made, backend=self.kind, source=source, functions=DECLARED + body)
        return CompiledKernel(program, plan, epilogue=epilogue)

    def execute(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Execution:
        return Execution((artifact.run(inputs),), self.provenance)

    def time(self, artifact: CompiledKernel, inputs: Mapping[str, Array]) -> Timing:
        return measure(artifact, inputs, rounds=3)

    def schedule_text(self, embedding: Any, schedule: Threads) -> str:
        return f"on {schedule.count} of its threads"

    def schedule_of(self, trial: PlainTrial) -> Threads:
        return Threads(**trial.schedule)


class Aborts(Unit):
    kind = "aborts"


class Illegal(Unit):
    kind = "illegal"


class Forever(Unit):
    kind = "forever"


class Astray(Unit):
    kind = "astray"


class Hungry(Unit):
    kind = "hungry"
