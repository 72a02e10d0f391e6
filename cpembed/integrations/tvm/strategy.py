"""Candidate programs of an operator in the form of a TensorIR function."""
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
from cpembed.integrations.tvm.execution import emit
from cpembed.integrations.tvm.kernels import Machine, Program, programs
from cpembed.integrations.tvm.recognise import Recognised, recognise
from cpembed.targets.capabilities import exact_epilogue


@dataclass(frozen=True, eq=False)
class StrategyCandidate:
    """Candidate program of an operator with its artifact."""

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
        """Return a relax module whose ``main`` takes the function's inputs and returns its output,
        by packing, the program and unpacking.
        """
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
    """Candidates of an operator, best first.

    ``refused`` are the reasons why other embeddings of ``solved`` have no program, or why there is
    no candidate at all.
    """

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
    """Return the best candidates for a function, whose outputs equal the function's bit for bit.

    Parameters
    ----------
    prim_func
        Unscheduled function, as ``te.create_prim_func`` makes it.
    target
        Name, file or specification of the target.
    constraints
        Constraint set; None for the presets.
    top
        Maximum number of candidates.

    Raises
    ------
    WorkloadError
        The function is no computation, or has other element types than the target.
    BackendUnavailable, SpecError
        Nothing executes the target here, or its specification is wrong.
    """
    machine = Machine.open(target, constraints)
    recognised = recognise(prim_func)
    workload = recognised.computation
    solved = solve(workload, machine.spec, constraints=constraints, top=top)
    results = list(programs(machine.target, solved, exact_epilogue(machine.target, workload)))
    candidates = tuple(
        StrategyCandidate(program, recognised, prim_func)
        for program in results
        if isinstance(program, Program)
    )
    reasons = tuple(each.reason for each in results if not isinstance(each, Program))
    return Strategy(recognised, solved, candidates, reasons if results else (solved.why_nothing,))


def _shape(parameter: Any) -> list[Any]:
    return [int(size) for size in parameter.shape]
