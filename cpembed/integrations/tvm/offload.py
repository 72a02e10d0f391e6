"""The pass: operators of a relax module become programs of a target."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.choice import Machine, Program, Refused
from cpembed.integrations.tvm.emit import emit
from cpembed.integrations.tvm.epilogue import constant
from cpembed.integrations.tvm.recognise import Recognised
from cpembed.integrations.tvm.report import OffloadReport, OperatorReport
from cpembed.integrations.tvm.sites import Site, sites
from cpembed.targets.capabilities import exact_epilogue, requantized_epilogue


def offload(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    requantize: bool = True,
) -> ir.transform.ModulePass:
    """A pass that replaces the convolutions and matrix products in which a target's instruction
    embeds.

    Operands have to be of its types; results keep all bits, so the module computes what it did
    before. With ``requantize`` a bias, shifts and clips to int8 that follow in the same dataflow
    block are part of the program, where the target stores that. After a run ``report`` of the pass
    is its :class:`OffloadReport`.

    Raises as :meth:`~cpembed.integrations.tvm.choice.Machine.of`.
    """
    made: Any = Offload(Machine.of(target, constraints), requantize)
    return made


@ir.transform.module_pass(opt_level=0, name="cpembed.offload")
class Offload:
    """The pass, on a machine."""

    def __init__(self, machine: Machine, requantize: bool) -> None:
        self.machine = machine
        self.requantize = requantize
        self.report = OffloadReport(machine.spec.name, ())

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        plan: dict[relax.Var, Replacement] = {}
        entries: list[OperatorReport] = []
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                for site in sites(mod, variable.name_hint, function):
                    entry, replacement = self._decide(site)
                    entries.append(entry)
                    if replacement is not None:
                        plan[replacement.variable] = replacement
        self.report = OffloadReport(self.machine.spec.name, tuple(entries))
        return rewritten(mod, plan)

    def _decide(self, site: Site) -> tuple[OperatorReport, Replacement | None]:
        name = (site.function, site.variable.name, site.operator)
        if site.recognised is None:
            return OperatorReport(*name, reason=site.problem), None
        workload = site.recognised.computation
        found = self._requantized(site, site.recognised) if self.requantize else None
        choice = found or self._chosen(
            site, site.recognised, exact_epilogue(self.machine.target, workload)
        )
        if isinstance(choice, Refused):
            return OperatorReport(*name, str(workload), reason=choice.reason), None
        replacement, ranked = choice
        entry = OperatorReport(
            *name,
            str(workload),
            embedding=ranked.candidate.embedding.identifier(),
            utilisation=ranked.overheads.utilisation,
            output="requantized" if found else workload.output.dtype,
        )
        return entry, replacement

    def _requantized(self, site: Site, recognised: Recognised) -> tuple[Replacement, Any] | None:
        """The operator with what follows, or None: then TVM does that."""
        epilogue = site.epilogue
        if epilogue is None:
            return None
        axes = epilogue.axes(recognised.output_split)
        stored = requantized_epilogue(
            self.machine.target, epilogue.shift, epilogue.low, epilogue.high, axes
        )
        if stored is None:
            return None
        found = self._chosen(site, recognised, stored)
        if isinstance(found, Refused):
            return None
        replacement, ranked = found
        bias = {f"{recognised.computation.output.name}.bias": epilogue.bias}
        added = bias if axes else {}
        return Replacement(
            epilogue.last, replacement.program, {**replacement.arguments, **added}
        ), ranked

    def _chosen(
        self, site: Site, recognised: Recognised, stored: Any
    ) -> tuple[Replacement, Any] | Refused:
        found = self.machine.choose(recognised.computation, stored)
        if not isinstance(found, Program):
            return found
        arguments = dict(zip(recognised.parameters, site.arguments, strict=False))
        return Replacement(site.variable, found, arguments), found.ranked


@dataclass(frozen=True)
class Replacement:
    """The program for a variable of the module, and what its inputs are there."""

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
    """What takes the place of a variable's value, made of ``arguments`` of the module."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    def emit(self, builder: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        """An expression of type ``result``, of the arguments as the rewritten module has them."""
        ...


def rewritten(mod: ir.IRModule, plan: Mapping[Any, Replaces]) -> ir.IRModule:
    """The module with the values of variables replaced, and without what is then unused."""
    rewriter: Any = _Rewriter(mod, plan)
    for variable, function in mod.functions_items():
        if isinstance(function, relax.Function):
            new = relax.analysis.remove_all_unused(rewriter.visit_expr(function))
            rewriter.builder_.update_func(variable, new)
    return rewriter.builder_.get()


@mutator
class _Rewriter(PyExprMutator):
    """Binds each variable of the plan to its program's result; what led to it is then unused."""

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
        """Expressions as the rewritten module has them."""
        return self.visit_expr(argument) if isinstance(argument, ir.Expr) else argument
