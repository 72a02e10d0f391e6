"""The operators of a relax module that could be embedded, as computations."""
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, s_tir, tirx

from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.epilogue import Epilogue, epilogue_of
from cpembed.integrations.tvm.recognise import Recognised, recognise

PRODUCTS = tuple(
    f"relax.{name}"
    for name in (
        "nn.conv1d",
        "nn.conv2d",
        "nn.conv3d",
        "nn.conv1d_transpose",
        "nn.conv2d_transpose",
        "nn.conv3d_transpose",
        "matmul",
    )
)
"""Operators of relax that sum products of two tensors."""


@dataclass(frozen=True)
class Site:
    """A binding of a function: a call of a product of ``arguments``, and what it was recognised as,
    or the ``problem`` where it was not. ``epilogue`` is what follows, where it has the form of a
    requantization.
    """

    function: str
    variable: Any
    operator: str
    arguments: tuple[Any, ...]
    recognised: Recognised | None = None
    problem: str = ""
    epilogue: Epilogue | None = None


def sites(module: ir.IRModule, name: str, function: relax.Function) -> Iterator[Site]:
    """The products in a function: operators of relax, and calls of TensorIR functions that sum."""
    if not isinstance(function.body, relax.SeqExpr):
        return
    for block in function.body.blocks:
        bound: list[Any] = list(block.bindings)
        values = {binding.var: binding.value for binding in bound}
        users = relax.analysis.udchain(block) if isinstance(block, relax.DataflowBlock) else {}
        for binding in bound:
            found = _product(module, binding.value)
            if found is not None:
                yield _site(name, binding, found, users, values)


def _site(
    function: str,
    binding: Any,
    product: tuple[str, Sequence[Any], Any],
    users: Mapping[Any, Any],
    values: Mapping[Any, Any],
) -> Site:
    operator, arguments, body = product
    try:
        tensors = body if isinstance(body, tirx.PrimFunc) else _legalised(body)
        recognised = recognise(tensors, operator.rsplit(".", 1)[-1])
    except WorkloadError as error:
        return Site(function, binding.var, operator, tuple(arguments), problem=str(error))
    is_wide = recognised.computation.output.dtype == "int32"
    epilogue = epilogue_of(binding.var, users, values) if is_wide else None
    return Site(function, binding.var, operator, tuple(arguments), recognised, epilogue=epilogue)


def _product(module: Any, value: Any) -> tuple[str, Sequence[Any], Any] | None:
    """Name, arguments, and the TensorIR function or the operator's call; None for anything else."""
    if not isinstance(value, ir.Call):
        return None
    operator = getattr(value.op, "name", "")
    arguments: list[Any] = list(value.args)
    if operator in PRODUCTS:
        return operator, arguments, value
    if operator == "relax.call_tir" and isinstance(arguments[1], relax.Tuple):
        function = module[arguments[0]]
        if isinstance(function, tirx.PrimFunc) and _reduces(function):
            return arguments[0].name_hint, list(arguments[1].fields), function
    return None


def _reduces(function: Any) -> bool:
    """Whether a function has two inputs and a block with a reduction."""
    schedule: Any = s_tir.Schedule(ir.IRModule({"main": function}))
    blocks = [
        schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))
    ]
    kinds = {iterator.iter_type for block in blocks for iterator in block.iter_vars}
    return len(function.params) == 3 and tirx.IterVar.CommReduce in kinds


def _legalised(call: ir.Call) -> tirx.PrimFunc:
    """The TensorIR function that relax makes of a call.

    Raises :class:`WorkloadError` for sizes that are not numbers and for a call that relax keeps or
    makes several functions of.
    """
    for argument in call.args:
        sizes = getattr(getattr(argument, "ty", None), "shape", None)
        if sizes is None or not all(isinstance(size, tirx.IntImm) for size in sizes):
            raise WorkloadError("a shape is not known: bind the symbolic sizes first")
    builder = relax.BlockBuilder()
    variables: list[Any] = [relax.Var(f"p{k}", argument.ty) for k, argument in enumerate(call.args)]
    with builder.function("main", variables):
        alone = ir.Call(call.op, variables, call.attrs, call.ty_args)
        builder.emit_func_output(builder.emit(alone))
    functions = relax.transform.LegalizeOps()(builder.get()).functions_items()
    made: list[Any] = [function for _, function in functions if isinstance(function, tirx.PrimFunc)]
    if len(made) != 1 or len(made[0].params) != len(variables) + 1:
        raise WorkloadError(f"relax makes {len(made)} TensorIR functions of it, not one")
    return made[0]
