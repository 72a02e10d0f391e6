"""A pipeline of relax passes whose products are kernels of a target, to compile modules with."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import digits
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import ir, relax, tirx
from tvm.s_tir import dlight

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.calls import Imports, emit_calls
from cpembed.integrations.tvm.choice import Machine, Refused
from cpembed.integrations.tvm.epilogue import constant
from cpembed.integrations.tvm.fused import recognise_fused
from cpembed.integrations.tvm.groups import Group, fused_function, groups
from cpembed.integrations.tvm.kernels import Kernel, kernel_of
from cpembed.integrations.tvm.offload import Offload, rewritten
from cpembed.integrations.tvm.report import OperatorReport
from cpembed.integrations.tvm.schedule_report import NOBODY, OURS, ScheduleEntry, ScheduleReport
from cpembed.targets.capabilities import has_tensorir, tvm_target

Array = NDArray[Any]


def pipeline(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    rules: Sequence[Any] | None = None,
) -> Pipeline:
    """What to give ``tvm.compile`` as ``relax_pipeline``.

    Convolutions and matrix products in which the target's instruction embeds become its kernels,
    with what follows them as far as these store it; constant weights are packed now, and those of
    functions with ``num_input`` by functions that TVM lifts out of them. The rest is fused and
    scheduled by TVM: ``rules`` of dlight, by default those of TVM's own pipeline. After a run
    ``report`` says who scheduled what.

    Raises as :meth:`~cpembed.integrations.tvm.choice.Machine.of`.
    """
    return Pipeline(Machine.of(target, constraints), rules)


class Pipeline:
    """Called with a module, as passes are; ``report`` is of the last one, ``scheduled`` is that
    before it is made a program of the virtual machine, and ``functions`` are kernels that it calls
    by name."""

    def __init__(self, machine: Machine, rules: Sequence[Any] | None = None) -> None:
        self.machine = machine
        self._rules = rules
        self.report = ScheduleReport(machine.spec.name, ())
        self.scheduled: ir.IRModule | None = None
        self.functions: Mapping[str, tirx.PrimFunc] = {}

    def __call__(self, module: ir.IRModule) -> ir.IRModule:
        """Raises :class:`BackendUnavailable` where the module is compiled for something else than
        what the target's programs are called from."""
        current = tvm.target.Target.current(allow_none=True)
        wanted = tvm_target(self.machine.target)
        if current is None or current.kind.name != wanted:
            found = "nothing" if current is None else current.kind.name
            raise BackendUnavailable(
                f"{self.machine.spec.name}: modules with its programs are compiled for {wanted}, "
                f"this one for {found}: tvm.compile(module, {wanted!r}, relax_pipeline=…)"
            )
        replacing: Any = _Products(self.machine)
        rules = self._rules if self._rules is not None else own_rules(current)
        scheduling: Any = _Scheduling(rules, replacing.refused)
        before: list[Any] = [
            *relax.pipeline.library_dispatch_passes(current),
            replacing,
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
            scheduling,
        ]
        after: list[Any] = [
            # As TVM's own, whose list for a target this wheel names and does not export.
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            *relax.pipeline.finalize_passes(current),
        ]
        module = tvm.transform.Sequential(before)(module)
        module = _prepared(module)
        self.report = ScheduleReport(
            self.machine.spec.name, (*replacing.entries, *scheduling.entries)
        )
        self.scheduled, self.functions = module, dict(replacing.imports.functions)
        module = tvm.transform.Sequential(after)(module)
        return _importing(module, replacing.imports)


def own_rules(target: Any) -> tuple[Any, ...]:
    """The rules of dlight that TVM's own pipeline for a target has: none on processors."""
    if "gpu" not in target.keys:
        return ()
    gpu = dlight.gpu
    return gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()


def _prepared(module: ir.IRModule) -> ir.IRModule:
    """What depends on parameters alone, apart from what depends on inputs."""
    functions = (f for _, f in module.functions_items() if isinstance(f, relax.Function))
    if any(f.attrs is not None and "num_input" in f.attrs for f in functions):
        return relax.transform.LiftTransformParams()(module)
    return module


def _importing(module: Any, imports: Imports) -> ir.IRModule:
    if not imports.modules:
        return module
    attributes = dict(module.attrs) if module.attrs else {}
    found = [*attributes.get("external_mods", []), *imports.modules.values()]
    return module.with_attr("external_mods", found)


@ir.transform.module_pass(opt_level=0, name="cpembed.products")
class _Products:
    """Replaces products by kernels, of the target's own form where it has one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.imports = Imports(tvm.target.Target.current(allow_none=False))
        self.entries: list[ScheduleEntry] = []
        self.refused: dict[str, str] = {}
        """By name of the function of a product, why it is no kernel."""

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        if not has_tensorir(self.machine.target):
            return self._offloaded(mod)
        mod = _legalized(mod)
        plan: dict[Any, _Replaced] = {}
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                for group in groups(mod, variable.name_hint, function):
                    self._decide(mod, group, plan)
        return rewritten(mod, plan)

    def _offloaded(self, mod: ir.IRModule) -> ir.IRModule:
        """As programs that are no TensorIR."""
        offload: Any = Offload(self.machine, True)
        mod = offload(mod)
        for operator in offload.report.operators:
            if operator.replaced:
                self.entries.append(_entry_of(operator))
            else:
                self.refused[operator.operator.rsplit(".", 1)[-1]] = operator.reason or ""
        return _legalized(mod)

    def _decide(self, mod: ir.IRModule, group: Group, plan: dict[Any, Any]) -> None:
        """The longest part of a group that is a kernel."""
        reasons: list[str] = []
        for count in range(len(group.bindings), 0, -1):
            part = group.first(count)
            found, arguments = self._kernel(mod, part)
            if isinstance(found, Kernel):
                plan[part.last] = _Replaced(found, arguments, self.imports)
                self.entries.append(_entry(part, found, reasons))
                return
            reasons.append(found.reason)
        self.refused[group.operators[0]] = reasons[-1]

    def _kernel(self, mod: ir.IRModule, group: Group) -> tuple[Kernel | Refused, list[Any]]:
        function, arguments = fused_function(mod, group)
        constants = {
            number: constant(argument)
            for number, argument in enumerate(arguments)
            if isinstance(argument, ir.GenericConst)
        }
        try:
            fused = recognise_fused(function, group.operators[0].rstrip(digits))
        except WorkloadError as error:
            return Refused(str(error)), arguments
        return kernel_of(self.machine, fused, constants), arguments


def _legalized(mod: ir.IRModule) -> ir.IRModule:
    passes: list[Any] = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
    ]
    return tvm.transform.Sequential(passes)(mod)


@dataclass(frozen=True)
class _Replaced:
    """A kernel in the place of a group's last value; ``given`` is what its function is called
    on."""

    kernel: Kernel
    given: Sequence[Any]
    imports: Imports

    @property
    def arguments(self) -> Mapping[str, Any]:
        return {name: self.given[number] for name, number in self.kernel.arguments.items()}

    def emit(self, builder: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        return emit_calls(builder, self.kernel, arguments, result, self.imports)


def _entry(group: Group, kernel: Kernel, reasons: Sequence[str]) -> ScheduleEntry:
    """``reasons``: why longer groups are no kernels, the longest first."""
    epilogue = kernel.fused.epilogue
    return ScheduleEntry(
        group.function,
        group.operators,
        OURS,
        kernel.embedding,
        kernel.ranked.overheads.utilisation,
        kernel.fused.dtype if epilogue is None else str(epilogue),
        reasons[-1] if reasons else None,
    )


def _entry_of(operator: OperatorReport) -> ScheduleEntry:
    return ScheduleEntry(
        operator.function,
        (operator.operator,),
        OURS,
        operator.embedding,
        operator.utilisation,
        operator.output,
    )


@ir.transform.module_pass(opt_level=0, name="cpembed.scheduling")
class _Scheduling:
    """Schedules functions by the first of some rules that takes them; ``refused`` says of products
    why they are no kernels."""

    def __init__(self, rules: Sequence[Any], refused: Mapping[str, str]) -> None:
        self.rules = rules
        self.refused = refused
        self.entries: list[ScheduleEntry] = []

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        for variable, function in mod.functions_items():
            if not isinstance(function, tirx.PrimFunc):
                continue
            if function.attrs is not None and function.attrs.get("tirx.is_scheduled", False):
                continue
            rule, scheduled = self._scheduled(function, target)
            name = variable.name_hint
            reasons = [
                why for product, why in self.refused.items() if f"_{product}_" in f"_{name}_"
            ]
            reason = reasons[0] if reasons else None
            self.entries.append(ScheduleEntry(name, (), rule, reason=reason))
            if scheduled is not None:
                mod[variable] = scheduled.with_attr("tirx.is_scheduled", True)
        return mod

    def _scheduled(self, function: tirx.PrimFunc, target: Any) -> tuple[str, Any]:
        for rule in self.rules:
            found = rule.apply(function, target, False)
            if found is not None:
                schedule = found[0] if isinstance(found, list) else found
                return type(rule).__name__, schedule.mod["main"]
        return NOBODY, None
