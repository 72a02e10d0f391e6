"""Candidate programs of one operator that is given as a TensorIR function."""
# pyright: basic

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, tirx

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.choice import Machine, Program, programs
from cpembed.integrations.tvm.emit import emit
from cpembed.integrations.tvm.recognise import Recognised, recognise
from cpembed.targets.capabilities import exact_epilogue


@dataclass(frozen=True, eq=False)
class StrategyCandidate:
    """One way to execute an operator: ``artifact`` is what the target built of it."""

    program: Program
    recognised: Recognised
    _function: Any

    @property
    def ranked(self) -> RankedCandidate:
        return self.program.ranked

    @property
    def artifact(self) -> Any:
        return self.program.artifact

    def module(self) -> ir.IRModule:
        """A relax module whose ``main`` takes the function's inputs and returns its output:
        packing, the program, unpacking."""
        *inputs, output = (relax.TensorType(_shape(p), str(p.dtype)) for p in self._function.params)
        names = self.recognised.parameters
        variables = [relax.Var(name, ty) for name, ty in zip(names, inputs, strict=False)]
        builder = relax.BlockBuilder()
        with builder.function("main", variables):
            with builder.dataflow():
                arguments = dict(zip(names, variables, strict=False))
                result = emit(builder, self.program, arguments, output)
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        return builder.get()


@dataclass(frozen=True, eq=False)
class Strategy:
    """The candidates of an operator, best first. ``refused`` says why others of ``solved`` have no
    program, or why there is no candidate at all."""

    recognised: Recognised
    solved: SolveResult
    candidates: tuple[StrategyCandidate, ...]
    refused: tuple[str, ...]


def strategy(
    prim_func: tirx.PrimFunc,
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    top: int = 5,
) -> Strategy:
    """The best ``top`` candidates for an unscheduled function, as ``te.create_prim_func`` makes it.

    The output of the candidates is the function's, every bit of it.

    Raises :class:`WorkloadError` for a function that is no computation, or of other element types
    than the target's, and as :meth:`Machine.of`.
    """
    machine = Machine.of(target, constraints)
    recognised = recognise(prim_func)
    workload = recognised.computation
    solved = solve(workload, machine.spec, constraints=constraints, top=top)
    found = list(programs(machine.target, solved, exact_epilogue(machine.target, workload)))
    candidates = tuple(
        StrategyCandidate(item, recognised, prim_func)
        for item in found
        if isinstance(item, Program)
    )
    refused = tuple(item.reason for item in found if not isinstance(item, Program))
    return Strategy(recognised, solved, candidates, refused if found else (solved.why_nothing,))


def _shape(parameter: Any) -> list[Any]:
    return [int(size) for size in parameter.shape]
