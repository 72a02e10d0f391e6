"""Products of a legalised relax module with what follows them, as one TensorIR function each."""
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, s_tir, tirx
from tvm.relax.transform import FuseTIR

from cpembed.integrations.tvm.recognise import reduces, vars_of

_LONGEST = 16
"""Functions that one group takes at most."""


@dataclass(frozen=True)
class Group:
    """Bindings of a dataflow block that could be one function: a product, and then functions of
    elements, each of the value before it, which nothing else reads."""

    function: str
    bindings: tuple[Any, ...]

    @property
    def product(self) -> Any:
        return self.bindings[0]

    @property
    def last(self) -> Any:
        """The variable that takes the result."""
        return self.bindings[-1].var

    def first(self, count: int) -> Group:
        return Group(self.function, self.bindings[:count])

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the functions."""
        return tuple(binding.value.args[0].name_hint for binding in self.bindings)


def groups(module: ir.IRModule, name: str, function: relax.Function) -> Iterator[Group]:
    """Each product of a function, with all that could be part of its kernel."""
    body = function.body
    for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
        if not isinstance(block, relax.DataflowBlock):
            continue
        users = relax.analysis.udchain(block)
        bound = {binding.var: binding for binding in block.bindings}
        for binding in block.bindings:
            called = _called(module, binding)
            if called is not None and _is_product(called):
                yield Group(name, (binding, *_following(module, binding, users, bound)))


def _following(
    module: ir.IRModule, binding: Any, users: Mapping[Any, Any], bound: Mapping[Any, Any]
) -> Iterator[Any]:
    for _ in range(_LONGEST):
        variable = binding.var
        readers = users[variable]
        if not isinstance(variable, relax.DataflowVar) or len(readers) != 1:
            return
        binding = bound[readers[0]]
        called = _called(module, binding)
        if called is None or not _is_of_elements(called):
            return
        if sum(argument.same_as(variable) for argument in binding.value.args[1].fields) != 1:
            return
        yield binding


def _called(module: ir.IRModule, binding: Any) -> Any:
    """The function that a binding calls for one tensor; None for anything else."""
    value = binding.value
    if not (isinstance(value, ir.Call) and getattr(value.op, "name", "") == "relax.call_tir"):
        return None
    one = isinstance(binding.var.ty, relax.TensorType) and len(value.args) == 2
    if not one or not isinstance(value.args[1], relax.Tuple):
        return None
    function = module[value.args[0]]
    scheduled = function.attrs is not None and function.attrs.get("tirx.is_scheduled", False)
    return function if isinstance(function, tirx.PrimFunc) and not scheduled else None


def _blocks(function: Any) -> list[Any]:
    schedule: Any = s_tir.Schedule(ir.IRModule({"main": function}))
    root = schedule.get_sblock("root")
    return [schedule.get(block) for block in schedule.get_child_blocks(root)]


def _is_product(function: Any) -> bool:
    """Whether two tensors or more are read, and a block sums products."""
    return len(vars_of(function)) > 2 and any(
        reduces(block) and block.init is not None and _multiplies(block.body)
        for block in _blocks(function)
    )


def _multiplies(statement: Any) -> bool:
    added = getattr(statement, "value", None)
    if not isinstance(added, tirx.Add):
        return False
    return any(isinstance(side, tirx.Mul | tirx.Cast) for side in (added.a, added.b))


def _is_of_elements(function: Any) -> bool:
    return not any(reduces(block) for block in _blocks(function))


def fused_function(module: ir.IRModule, group: Group) -> tuple[tirx.PrimFunc, list[Any]]:
    """The bindings of a group as one function, and what it is called on."""
    if len(group.bindings) == 1:
        called = group.product.value
        return _function(module, called.args[0]), list(called.args[1].fields)
    arguments = _arguments(group)
    builder = relax.BlockBuilder()
    parameters: list[Any] = [relax.Var(f"p{k}", given.ty) for k, given in enumerate(arguments)]
    primitive: Any = {"Primitive": True}
    with builder.function("group", parameters, attrs=primitive, private=True):
        with builder.dataflow():
            values = list(zip(arguments, parameters, strict=True))
            for binding in group.bindings:
                callee = binding.value.args[0]
                added = builder.add_func(_function(module, callee), callee.name_hint)
                given = [_same(values, argument) for argument in binding.value.args[1].fields]
                call = relax.call_tir(added, relax.Tuple(given), binding.var.ty)
                values.append((binding.var, builder.emit(call)))
            result = builder.emit_output(values[-1][1])
        builder.emit_func_output(result)
    return fused(builder, parameters, "group"), arguments


def _function(module: ir.IRModule, name: Any) -> Any:
    return module[name]


def _arguments(group: Group) -> list[Any]:
    """What the functions of a group are called on, but for each other's results."""
    made = [(binding.var, binding.var) for binding in group.bindings]
    found: list[tuple[Any, Any]] = []
    for binding in group.bindings:
        for argument in binding.value.args[1].fields:
            if _same(made, argument) is None and _same(found, argument) is None:
                found.append((argument, argument))
    return [argument for argument, _ in found]


def _same(values: Sequence[tuple[Any, Any]], argument: Any) -> Any:
    return next((value for given, value in values if given.same_as(argument)), None)


def fused(builder: relax.BlockBuilder, parameters: Sequence[Any], name: str) -> tirx.PrimFunc:
    """One TensorIR function of a builder's relax function of calls, by its name."""
    variables: list[Any] = [relax.Var(f"a{k}", given.ty) for k, given in enumerate(parameters)]
    primitive = builder.get().get_global_var(name)
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(ir.Call(primitive, variables))
        builder.emit_func_output(result)
    module: Any = FuseTIR()(builder.get())
    call = module["main"].body.blocks[0].bindings[0].value
    return module[call.args[0]]
