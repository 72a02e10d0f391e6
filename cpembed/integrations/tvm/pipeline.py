"""Pipeline of relax passes that compiles the products of a module to kernels of a target.

Products are grouped with the elementwise functions that follow, and the longest part of a group
that is a kernel replaces its last value.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from cpembed.integrations.tvm.emission import Imports, emit_calls, fuse_calls
from cpembed.integrations.tvm.kernels import Kernel, Machine, Rejection, kernel_of
from cpembed.integrations.tvm.offload import Offload, rewritten
from cpembed.integrations.tvm.recognise import blocks_of, reduces, vars_of
from cpembed.integrations.tvm.relax_operators import constant
from cpembed.integrations.tvm.reports import CPEMBED, NOBODY, ScheduleEntry, ScheduleReport
from cpembed.targets.capabilities import has_tensorir, tvm_target

Array = NDArray[Any]


def pipeline(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    rules: Sequence[Any] | None = None,
) -> Pipeline:
    """Return a ``relax_pipeline`` for ``tvm.compile`` with kernels of a target.

    Convolutions and matrix products in which the target's instruction embeds become its kernels,
    together with following operators that an epilogue expresses. Constant weights are packed at
    compile time, those of functions with ``num_input`` by functions that TVM lifts out. The rest is
    fused and scheduled by TVM. After a run ``report`` lists who scheduled each function.

    Parameters
    ----------
    target
        Name, file or specification of the target.
    constraints
        Constraint set; None for the presets.
    rules
        Rules of dlight for the rest; None for those of TVM's own pipeline.

    Raises
    ------
    BackendUnavailable, SpecError
        Nothing executes the target here, or its specification is wrong.
    """
    return Pipeline(Machine.open(target, constraints), rules)


class Pipeline:
    """Pipeline that is called with a module, as passes are.

    ``report`` lists the functions of the last module, ``scheduled`` is that module before it became
    a program of the virtual machine, and ``functions`` are the kernels that it calls by name.
    """

    def __init__(self, machine: Machine, rules: Sequence[Any] | None = None) -> None:
        self.machine = machine
        self._rules = rules
        self.report = ScheduleReport(machine.spec.name, ())
        self.scheduled: ir.IRModule | None = None
        self.functions: Mapping[str, tirx.PrimFunc] = {}

    def __call__(self, module: ir.IRModule) -> ir.IRModule:
        """Return the compiled form of a module.

        Raises :class:`BackendUnavailable` if the module is compiled for a target of TVM that cannot
        call the programs.
        """
        current = tvm.target.Target.current(allow_none=True)
        required = tvm_target(self.machine.target)
        if current is None or current.kind.name != required:
            actual = "nothing" if current is None else current.kind.name
            raise BackendUnavailable(
                f"{self.machine.spec.name}: modules with its programs are compiled for {required}, "
                f"this one for {actual}: tvm.compile(module, {required!r}, relax_pipeline=…)"
            )
        replacing: Any = _Products(self.machine)
        rules = self._rules if self._rules is not None else _default_rules(current)
        scheduling: Any = _Scheduling(rules, replacing.rejected)
        before: list[Any] = [
            *relax.pipeline.library_dispatch_passes(current),
            replacing,
            # After the kernels: a fused function would hide a product and what follows it.
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            # Functions that kernels replaced have no calls left.
            relax.transform.DeadCodeElimination(),
            scheduling,
        ]
        after: list[Any] = [
            # TVM's own list for a target, which this wheel names but does not export.
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            *relax.pipeline.finalize_passes(current),
        ]
        module = tvm.transform.Sequential(before)(module)
        module = _lifted(module)
        self.report = ScheduleReport(
            self.machine.spec.name, (*replacing.entries, *scheduling.entries)
        )
        self.scheduled, self.functions = module, dict(replacing.imports.functions)
        module = tvm.transform.Sequential(after)(module)
        return _importing(module, replacing.imports)


def _default_rules(target: Any) -> tuple[Any, ...]:
    """Return the rules of dlight in TVM's own pipeline for a target: none on CPUs."""
    # TVM compiles unscheduled loops for CPUs, but not for GPUs.
    if "gpu" not in target.keys:
        return ()
    gpu = dlight.gpu
    return gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()


def _lifted(module: ir.IRModule) -> ir.IRModule:
    """Return a module whose computations on weights alone are functions of their own."""
    functions = (f for _, f in module.functions_items() if isinstance(f, relax.Function))
    if any(f.attrs is not None and "num_input" in f.attrs for f in functions):
        return relax.transform.LiftTransformParams()(module)
    return module


def _importing(module: Any, imports: Imports) -> ir.IRModule:
    if not imports.modules:
        return module
    attributes = dict(module.attrs) if module.attrs else {}
    # Libraries that TVM dispatched to may be there already.
    modules = [*attributes.get("external_mods", []), *imports.modules.values()]
    return module.with_attr("external_mods", modules)


@ir.transform.module_pass(opt_level=0, name="cpembed.products")
class _Products:
    """Replaces products by kernels, or by programs of a target without TensorIR."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.imports = Imports(tvm.target.Target.current(allow_none=False))
        self.entries: list[ScheduleEntry] = []
        self.rejected: dict[str, str] = {}
        """Reason why a product is no kernel, by the name of its function."""

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        # Programs that are no TensorIR replace operators before these are legalised.
        if not has_tensorir(self.machine.target):
            return self._offloaded(mod)
        mod = _legalized(mod)
        plan: dict[Any, _KernelCall] = {}
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                for group in groups(mod, variable.name_hint, function):
                    self._decide(mod, group, plan)
        return rewritten(mod, plan)

    def _offloaded(self, mod: ir.IRModule) -> ir.IRModule:
        offload: Any = Offload(self.machine, True)
        mod = offload(mod)
        for operator in offload.report.operators:
            if operator.replaced:
                entry = ScheduleEntry(
                    operator.function,
                    (operator.operator,),
                    CPEMBED,
                    embedding=operator.embedding,
                    utilisation=operator.utilisation,
                    stored=operator.output,
                )
                self.entries.append(entry)
            else:
                # Legalised functions have the name of their operator without the dialect.
                self.rejected[operator.operator.rsplit(".", 1)[-1]] = operator.reason or ""
        return _legalized(mod)

    def _decide(self, mod: ir.IRModule, group: Group, plan: dict[Any, Any]) -> None:
        """Replace the longest part of a group that is a kernel."""
        # From the longest part down: the more a kernel stores, the fewer tensors are written.
        reasons: list[str] = []
        for count in range(len(group.bindings), 0, -1):
            part = group.first(count)
            kernel, arguments = self._kernel(mod, part)
            if isinstance(kernel, Kernel):
                plan[part.last] = _KernelCall(kernel, arguments, self.imports)
                self.entries.append(_entry(part, kernel, reasons))
                return
            reasons.append(kernel.reason)
        self.rejected[group.operators[0]] = reasons[-1]

    def _kernel(self, mod: ir.IRModule, group: Group) -> tuple[Kernel | Rejection, list[Any]]:
        function, arguments = fused_function(mod, group)
        constants = {
            number: constant(argument)
            for number, argument in enumerate(arguments)
            if isinstance(argument, ir.GenericConst)
        }
        try:
            name = group.operators[0].rstrip(digits)
            fused = self.machine.recognised(function, name)
        except WorkloadError as error:
            return Rejection(str(error)), arguments
        return kernel_of(self.machine, fused, constants), arguments


def _legalized(mod: ir.IRModule) -> ir.IRModule:
    passes: list[Any] = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
    ]
    return tvm.transform.Sequential(passes)(mod)


@dataclass(frozen=True)
class _KernelCall:
    """Kernel in place of a group's last value, with the arguments of the group's function."""

    kernel: Kernel
    function_arguments: Sequence[Any]
    imports: Imports

    @property
    def arguments(self) -> Mapping[str, Any]:
        numbers = self.kernel.arguments
        return {name: self.function_arguments[number] for name, number in numbers.items()}

    def emit(self, builder: Any, arguments: Mapping[str, Any], result: Any) -> Any:
        return emit_calls(builder, self.kernel, arguments, result, self.imports)


def _entry(group: Group, kernel: Kernel, reasons: Sequence[str]) -> ScheduleEntry:
    """Return the entry of a group; ``reasons`` say why longer ones are no kernels."""
    return ScheduleEntry(
        group.function,
        group.operators,
        CPEMBED,
        embedding=kernel.embedding,
        utilisation=kernel.ranked.overheads.utilisation,
        stored=kernel.stored,
        reason=reasons[-1] if reasons else None,
    )


@ir.transform.module_pass(opt_level=0, name="cpembed.scheduling")
class _Scheduling:
    """Schedules functions by the first rule that accepts them.

    ``rejected`` says why products are no kernels, by the names of their functions.
    """

    def __init__(self, rules: Sequence[Any], rejected: Mapping[str, str]) -> None:
        self.rules = rules
        self.rejected = rejected
        self.entries: list[ScheduleEntry] = []

    def transform_module(self, mod: ir.IRModule, _: ir.transform.PassContext) -> ir.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        for variable, function in mod.functions_items():
            if not isinstance(function, tirx.PrimFunc) or _is_scheduled(function):
                continue
            rule, scheduled = self._scheduled(function, target)
            name = variable.name_hint
            # A fused function's name contains those of the functions that TVM fused.
            products = (why for each, why in self.rejected.items() if f"_{each}_" in f"_{name}_")
            self.entries.append(ScheduleEntry(name, (), rule, reason=next(products, None)))
            if scheduled is not None:
                mod[variable] = scheduled.with_attr("tirx.is_scheduled", True)
        return mod

    def _scheduled(self, function: tirx.PrimFunc, target: Any) -> tuple[str, Any]:
        for rule in self.rules:
            schedules = rule.apply(function, target, False)
            if schedules is not None:
                schedule = schedules[0] if isinstance(schedules, list) else schedules
                return type(rule).__name__, schedule.mod["main"]
        return NOBODY, None


# -- groups ---------------------------------------------------------------------------------------

# Maximum number of functions after the product of a group.
_LONGEST = 16


@dataclass(frozen=True)
class Group:
    """Bindings of a dataflow block that could become one function.

    They are a product, then elementwise functions, each of the value before it, which nothing else
    reads.
    """

    function: str
    bindings: tuple[Any, ...]

    @property
    def product(self) -> Any:
        return self.bindings[0]

    @property
    def last(self) -> Any:
        """Variable that takes the result."""
        return self.bindings[-1].var

    def first(self, count: int) -> Group:
        """Return the group of the first bindings."""
        return Group(self.function, self.bindings[:count])

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the functions, the product first."""
        return tuple(binding.value.args[0].name_hint for binding in self.bindings)


def groups(module: ir.IRModule, name: str, function: relax.Function) -> Iterator[Group]:
    """Yield each product of a function, with all functions that could be part of its kernel.

    Parameters
    ----------
    module
        Legalised module.
    name
        Name of the function.
    function
        Function to search.
    """
    body = function.body
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        if not isinstance(block, relax.DataflowBlock):
            continue
        users = relax.analysis.udchain(block)
        bound = {binding.var: binding for binding in block.bindings}
        for binding in block.bindings:
            callee = _callee(module, binding)
            if callee is not None and _is_product(callee):
                yield Group(name, (binding, *_elementwise(module, binding, users, bound)))


def _elementwise(
    module: ir.IRModule, binding: Any, users: Mapping[Any, Any], bound: Mapping[Any, Any]
) -> Iterator[Any]:
    """Yield the elementwise functions that follow a binding, one after the other."""
    for _ in range(_LONGEST):
        variable = binding.var
        readers = users[variable]
        # A value with other readers, or one that leaves the block, has to be in memory.
        if not isinstance(variable, relax.DataflowVar) or len(readers) != 1:
            return
        binding = bound[readers[0]]
        callee = _callee(module, binding)
        if callee is None or any(map(reduces, blocks_of(callee))):
            return
        # x * x reads its value twice, which no epilogue can.
        if sum(argument.same_as(variable) for argument in binding.value.args[1].fields) != 1:
            return
        yield binding


def _callee(module: ir.IRModule, binding: Any) -> Any:
    """Return the function that a binding calls for one tensor; None for anything else."""
    value = binding.value
    if not (isinstance(value, ir.Call) and getattr(value.op, "name", "") == "relax.call_tir"):
        return None
    # A third argument holds symbolic sizes.
    is_single = isinstance(binding.var.ty, relax.TensorType) and len(value.args) == 2
    if not is_single or not isinstance(value.args[1], relax.Tuple):
        return None
    function = module[value.args[0]]
    is_free = isinstance(function, tirx.PrimFunc) and not _is_scheduled(function)
    return function if is_free else None


def _is_scheduled(function: Any) -> bool:
    return function.attrs is not None and function.attrs.get("tirx.is_scheduled", False)


def _is_product(function: Any) -> bool:
    """Return whether at least two tensors are read, and a block sums products."""
    return len(vars_of(function)) > 2 and any(
        reduces(block) and block.init is not None and _multiplies(block.body)
        for block in blocks_of(function)
    )


def _multiplies(statement: Any) -> bool:
    added = getattr(statement, "value", None)
    if not isinstance(added, tirx.Add):
        return False
    # A product of narrow integers is converted before it is added.
    return any(isinstance(side, tirx.Mul | tirx.Cast) for side in (added.a, added.b))


def fused_function(module: ir.IRModule, group: Group) -> tuple[tirx.PrimFunc, list[Any]]:
    """Return the bindings of a group as one function, and its arguments."""
    if len(group.bindings) == 1:
        call = group.product.value
        return module[call.args[0]], list(call.args[1].fields)
    arguments = _arguments(group)
    builder = relax.BlockBuilder()
    parameters: list[Any] = [relax.Var(f"p{k}", each.ty) for k, each in enumerate(arguments)]
    primitive: Any = {"Primitive": True}
    with builder.function("group", parameters, attrs=primitive, private=True):
        with builder.dataflow():
            values = list(zip(arguments, parameters, strict=True))
            for binding in group.bindings:
                callee = binding.value.args[0]
                added = builder.add_func(module[callee], callee.name_hint)
                inputs = [_lookup(values, each) for each in binding.value.args[1].fields]
                call = relax.call_tir(added, relax.Tuple(inputs), binding.var.ty)
                values.append((binding.var, builder.emit(call)))
            result = builder.emit_output(values[-1][1])
        builder.emit_func_output(result)
    return fuse_calls(builder, parameters, "group"), arguments


def _arguments(group: Group) -> list[Any]:
    """Return the arguments of a group's functions without the results of these."""
    results = [binding.var for binding in group.bindings]
    arguments: list[Any] = []
    for argument in (each for binding in group.bindings for each in binding.value.args[1].fields):
        if not any(argument.same_as(value) for value in (*results, *arguments)):
            arguments.append(argument)
    return arguments


def _lookup(values: Sequence[tuple[Any, Any]], key: Any) -> Any:
    # Expressions of relax cannot be hashed, only compared.
    return next((value for each, value in values if each.same_as(key)), None)
