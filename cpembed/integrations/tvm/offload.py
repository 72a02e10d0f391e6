"""Programs of a target in place of operators: a pass over a module, and candidates for one."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.emission import emit_program
from cpembed.integrations.tvm.kernels import Machine, Program, Rejection, programs
from cpembed.integrations.tvm.recognise import Recognised, recognise
from cpembed.integrations.tvm.relax_operators import ProductCall, constant, product_calls
from cpembed.integrations.tvm.reports import OffloadReport, OperatorReport
from cpembed.targets.outputs import exact_epilogue, requantized_epilogue


def offload(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    requantize: bool = True,
) -> ir.transform.ModulePass:
    """Return a pass that replaces the products in which a target's instruction embeds.

    They are convolutions and matrix products. Operands must have the target's types; results are
    equal bit for bit. After a run ``report`` of the pass is its :class:`OffloadReport`.

    Parameters
    ----------
    target
        Name, file or specification of the target.
    constraints
        Constraint set; None for the presets.
    requantize
        True makes a bias, shifts and clips to int8 that follow in the same dataflow block part
        of the program, if the target stores that.

    Raises
    ------
    BackendUnavailable, SpecError
        Nothing executes the target here, or its specification is wrong.
    """
    offload_pass: Any = Offload(Machine.open(target, constraints), requantize)
    return offload_pass


@ir.transform.module_pass(opt_level=0, name="cpembed.offload")
class Offload:
    """Pass of :func:`offload` for a machine."""

    def __init__(self, machine: Machine, requantize: bool) -> None:
        self.machine = machine
        self.requantize = requantize
        self.report = OffloadReport(machine.spec.name, ())

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        plan: dict[relax.Var, Replacement] = {}
        entries: list[OperatorReport] = []
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                for call in product_calls(mod, variable.name_hint, function):
                    entry, replacement = self._decide(call)
                    entries.append(entry)
                    if replacement is not None:
                        plan[replacement.variable] = replacement
        self.report = OffloadReport(self.machine.spec.name, tuple(entries))
        return rewritten(mod, plan)

    def _decide(self, call: ProductCall) -> tuple[OperatorReport, Replacement | None]:
        name = (call.function, call.variable.name, call.operator)
        recognised = call.recognised
        if recognised is None:
            return OperatorReport(*name, reason=call.problem), None
        workload = recognised.computation
        # Preferred to the plain sums: the operators that follow need no pass over memory.
        requantized = self._requantized(call, recognised) if self.requantize else None
        exact = exact_epilogue(self.machine.target, workload)
        replacement = requantized or self._replacement(call, recognised, exact)
        if isinstance(replacement, Rejection):
            return OperatorReport(*name, str(workload), reason=replacement.reason), None
        ranked = replacement.program.ranked
        entry = OperatorReport(
            *name,
            str(workload),
            embedding=ranked.candidate.embedding.identifier(),
            utilisation=ranked.overheads.utilisation,
            output="requantized" if requantized else workload.output.dtype,
        )
        return entry, replacement

    def _requantized(self, call: ProductCall, recognised: Recognised) -> Replacement | None:
        """Return the operator with the requantization that follows, or None if TVM has to do it."""
        following = call.requantization
        if following is None:
            return None
        axes = following.axes(recognised.output_split)
        target = self.machine.target
        epilogue = requantized_epilogue(
            target, following.shift, following.low, following.high, axes
        )
        if epilogue is None:
            return None
        sums = self._replacement(call, recognised, epilogue)
        # The plain sums may still have a program: this is no reason to give up.
        if isinstance(sums, Rejection):
            return None
        # Name of the operand that a requantizing epilogue adds.
        bias = {f"{recognised.computation.output.name}.bias": following.bias} if axes else {}
        return Replacement(following.last, sums.program, {**sums.arguments, **bias})

    def _replacement(
        self, call: ProductCall, recognised: Recognised, epilogue: Any
    ) -> Replacement | Rejection:
        program = self.machine.choose(recognised.computation, epilogue)
        if not isinstance(program, Program):
            return program
        arguments = dict(zip(recognised.parameters, call.arguments, strict=False))
        return Replacement(call.variable, program, arguments)


@dataclass(frozen=True)
class Replacement:
    """Program that computes a variable of the module, and its inputs there."""

    variable: relax.Var
    program: Program
    arguments: Mapping[str, Any]

    def emit(self, builder: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        arrays = {
            name: constant(value) if isinstance(value, ir.GenericConst) else value
            for name, value in arguments.items()
        }
        return emit_program(builder, self.program, arrays, result)


class Replaces(Protocol):
    """Replacement of a variable's value that uses ``arguments`` of the module."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    def emit(self, builder: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        """Return an expression of type ``result`` of the rewritten module's arguments."""
        ...


def rewritten(mod: ir.IRModule, plan: Mapping[Any, Replaces]) -> ir.IRModule:
    """Return a module with the values of variables replaced, without unused bindings."""
    rewriter: Any = _Rewriter(mod, plan)
    for variable, function in mod.functions_items():
        if isinstance(function, relax.Function):
            new = relax.analysis.remove_all_unused(rewriter.visit_expr(function))
            rewriter.builder_.update_func(variable, new)
    return rewriter.builder_.get()


@mutator
class _Rewriter(PyExprMutator):
    """Binds each variable of the plan to its replacement."""

    def __init__(self, mod: ir.IRModule, plan: Mapping[Any, Replaces]) -> None:
        super().__init__(mod)
        self.plan = plan

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        replacement = self.plan.get(binding.var)
        if replacement is not None:
            # Arguments may be results of operators that are replaced themselves.
            arguments = {n: self._argument(a) for n, a in replacement.arguments.items()}
            value = replacement.emit(self.builder_, arguments, binding.var.ty)
            binding = relax.VarBinding(binding.var, value)
        super().visit_var_binding_(binding)

    def _argument(self, argument: Any) -> Any:
        """Return an argument as the rewritten module has it."""
        return self.visit_expr(argument) if isinstance(argument, ir.Expr) else argument


# -- candidates of one operator -------------------------------------------------------------------


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
        """Return a relax module of packing, program and unpacking, with the function's inputs."""
        shapes: list[Any] = [[int(size) for size in p.shape] for p in self._function.params]
        dtypes = [str(p.dtype) for p in self._function.params]
        *inputs, output = (
            relax.TensorType(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        names = self.recognised.parameters
        variables = [relax.Var(name, ty) for name, ty in zip(names, inputs, strict=False)]
        builder = relax.BlockBuilder()
        with builder.function("main", variables):
            with builder.dataflow():
                arguments = dict(zip(names, variables, strict=False))
                result = emit_program(builder, self.program, arguments, output)
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
