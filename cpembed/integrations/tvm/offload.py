"""Pass that replaces operators of a relax module by programs of a target."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.execution import emit
from cpembed.integrations.tvm.kernels import Machine, Program, Rejection
from cpembed.integrations.tvm.recognise import Recognised
from cpembed.integrations.tvm.relax_operators import ProductCall, constant, product_calls
from cpembed.integrations.tvm.reports import OffloadReport, OperatorReport
from cpembed.targets.capabilities import exact_epilogue, requantized_epilogue


def offload(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    requantize: bool = True,
) -> ir.transform.ModulePass:
    """Return a pass that replaces the convolutions and matrix products in which a target's
    instruction embeds.

    Operands must have the target's types; results are equal bit for bit. After a run ``report`` of
    the pass is its :class:`OffloadReport`.

    Parameters
    ----------
    target
        Name, file or specification of the target.
    constraints
        Constraint set; None for the presets.
    requantize
        True makes a bias, shifts and clips to int8 that follow in the same dataflow block part of
        the program, if the target stores that.

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
        if isinstance(sums, Rejection):
            return None
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
        return emit(builder, self.program, arrays, result)


class Replaces(Protocol):
    """Replacement of a variable's value that uses ``arguments`` of the module."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    def emit(self, builder: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        """Return an expression of type ``result`` of the rewritten module's arguments."""
        ...


def rewritten(mod: ir.IRModule, plan: Mapping[Any, Replaces]) -> ir.IRModule:
    """Return a module with the values of variables replaced, without bindings that become
    unused.
    """
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
            arguments = {n: self._argument(a) for n, a in replacement.arguments.items()}
            value = replacement.emit(self.builder_, arguments, binding.var.ty)
            binding = relax.VarBinding(binding.var, value)
        super().visit_var_binding_(binding)

    def _argument(self, argument: Any) -> Any:
        """Return an argument as the rewritten module has it."""
        return self.visit_expr(argument) if isinstance(argument, ir.Expr) else argument
