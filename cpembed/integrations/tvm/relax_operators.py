"""Products of a relax module as computations, each with the requantization that follows it.

A requantization is ``clip((sum + bias) >> shift)`` in any spelling: several constants added, shifts
in steps, ``relu``, ``maximum``, ``minimum`` or ``clip`` before or after a shift. A shift to the
right is monotone, so ``clip(x, a, b) >> s`` is ``clip(x >> s, a >> s, b >> s)``.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from cpembed.codegen.epilogue import MAX_SHIFT
from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.recognise import Recognised, blocks_of, recognise, reduces

PRODUCTS = (
    *(f"relax.nn.conv{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_transpose")),
    "relax.matmul",
)
"""Operators of relax that sum products of two tensors."""


@dataclass(frozen=True)
class ProductCall:
    """Call of a product in a relax function.

    Parameters
    ----------
    function
        Name of the function.
    variable
        Variable that takes the result.
    operator
        Name of the operator, or of its TensorIR function.
    arguments
        Arguments of the call.
    recognised
        Computation of the product; None if it is none.
    problem
        Reason why it is none.
    requantization
        Operations that follow, if they have the form of a requantization.
    """

    function: str
    variable: Any
    operator: str
    arguments: tuple[Any, ...]
    recognised: Recognised | None = None
    problem: str = ""
    requantization: Requantization | None = None


def product_calls(
    module: ir.IRModule, name: str, function: relax.Function
) -> Iterator[ProductCall]:
    """Yield the products of a function: operators of relax, and calls of TensorIR functions.

    Parameters
    ----------
    module
        Module of the function.
    name
        Name of the function.
    function
        Function to search.
    """
    if not isinstance(function.body, relax.SeqExpr):
        return
    for block in function.body.blocks:
        bound: list[Any] = list(block.bindings)
        values = {binding.var: binding.value for binding in bound}
        users = relax.analysis.udchain(block) if isinstance(block, relax.DataflowBlock) else {}
        for binding in bound:
            product = _product(module, binding.value)
            if product is not None:
                yield _product_call(name, binding, product, users, values)


def _product_call(
    function: str,
    binding: Any,
    product: tuple[str, Sequence[Any], Any],
    users: Mapping[Any, Any],
    values: Mapping[Any, Any],
) -> ProductCall:
    """Return the call of a product with its computation and the operations that follow."""
    operator, arguments, body = product
    try:
        tensors = body if isinstance(body, tirx.PrimFunc) else _legalised(body)
        recognised = recognise(tensors, operator.rsplit(".", 1)[-1])
    except WorkloadError as error:
        return ProductCall(function, binding.var, operator, tuple(arguments), problem=str(error))
    requantization = None
    # Only integer sums are requantized by shifts.
    if recognised.computation.output.dtype == "int32":
        requantization = requantization_of(binding.var, users, values)
    return ProductCall(
        function,
        binding.var,
        operator,
        tuple(arguments),
        recognised=recognised,
        requantization=requantization,
    )


def _product(module: Any, value: Any) -> tuple[str, Sequence[Any], Any] | None:
    """Return name, arguments, and TensorIR function or call of a product; None without one."""
    if not isinstance(value, ir.Call):
        return None
    operator = getattr(value.op, "name", "")
    arguments: list[Any] = list(value.args)
    if operator in PRODUCTS:
        return operator, arguments, value
    if operator == "relax.call_tir" and isinstance(arguments[1], relax.Tuple):
        function = module[arguments[0]]
        if isinstance(function, tirx.PrimFunc) and _is_reduction_of_two(function):
            return arguments[0].name_hint, list(arguments[1].fields), function
    return None


def _is_reduction_of_two(function: Any) -> bool:
    return len(function.params) == 3 and any(map(reduces, blocks_of(function)))


def _legalised(call: ir.Call) -> tirx.PrimFunc:
    """Return the TensorIR function that relax makes of a call.

    Raises :class:`WorkloadError` for symbolic sizes, and for a call that relax keeps or turns into
    several functions.
    """
    for argument in call.args:
        sizes = getattr(getattr(argument, "ty", None), "shape", None)
        if sizes is None or not all(isinstance(size, tirx.IntImm) for size in sizes):
            raise WorkloadError("a shape is unknown: bind the symbolic sizes first")
    builder = relax.BlockBuilder()
    variables: list[Any] = [relax.Var(f"p{k}", argument.ty) for k, argument in enumerate(call.args)]
    with builder.function("main", variables):
        # A module of this call alone: the others of the module stay as they are.
        copy = ir.Call(call.op, variables, call.attrs, call.ty_args)
        builder.emit_func_output(builder.emit(copy))
    functions = relax.transform.LegalizeOps()(builder.get()).functions_items()
    legalised: list[Any] = [f for _, f in functions if isinstance(f, tirx.PrimFunc)]
    if len(legalised) != 1 or len(legalised[0].params) != len(variables) + 1:
        raise WorkloadError(f"relax makes {len(legalised)} TensorIR functions of it, not one")
    return legalised[0]


# -- requantization -------------------------------------------------------------------------------

Array = NDArray[Any]

_INT32 = (-(2**31), 2**31 - 1)


@dataclass
class Requantization:
    """Epilogue ``clip((sum + bias) >> shift, low, high)``, as far as it was read.

    Parameters
    ----------
    shape
        Shape of the sums.
    last
        Variable at the end of the chain.
    bias
        Array with the dimensions of the sums, each of size 1 or theirs; None to add nothing.
    shift
        Number of bits of the shift to the right.
    low, high
        Bounds of the results.
    """

    shape: tuple[int, ...]
    last: Any = None
    bias: Array | None = None
    shift: int = 0
    low: int = _INT32[0]
    high: int = _INT32[1]

    _only_additions: bool = field(default=True, init=False)
    """True as long as all operations were additions."""

    def axes(self, split: Sequence[int]) -> tuple[int, ...]:
        """Return the dimensions of a computation's output along which the bias varies.

        ``split`` has the number of those for each dimension of the sums.
        """
        axes: list[int] = []
        first = 0
        sizes = () if self.bias is None else self.bias.shape
        for size, count in zip(sizes, split, strict=False):
            axes += range(first, first + count) if size > 1 else []
            first += count
        return tuple(axes)

    def append(self, value: Any, variable: Any) -> bool:
        """Read one operation on a variable; return False if the form has no place for it."""
        if _is(value, "relax.add"):
            # The form adds before it shifts and clips.
            return self._only_additions and self._add(_second(value, variable))
        self._only_additions = False
        if _is(value, "relax.right_shift"):
            return self._shift(_scalar(value.args[1]))
        if _is(value, "relax.nn.relu"):
            return self._clip(0, None)
        if _is(value, "relax.maximum"):
            return self._clip(_scalar(_second(value, variable)), None)
        if _is(value, "relax.minimum"):
            return self._clip(None, _scalar(_second(value, variable)))
        if _is(value, "relax.clip"):
            bounds = value.args[1:]
            if all(isinstance(bound, tirx.IntImm) for bound in bounds):
                low, high = (int(bound.value) for bound in bounds)
                return low <= high and self._clip(low, high)
        return False

    @property
    def is_exact(self) -> bool:
        """True if the results are all the values of an int8 tensor."""
        return self.shift <= MAX_SHIFT and -128 <= self.low <= self.high <= 127

    def _add(self, addend: Any) -> bool:
        array = _array(addend)
        if array is None or array.dtype != np.int32 or array.ndim > len(self.shape):
            return False
        array = array.reshape((1,) * (len(self.shape) - array.ndim) + array.shape)
        if any(size not in (1, full) for size, full in zip(array.shape, self.shape, strict=True)):
            return False
        # int32 sums wrap around, so the order of additions does not matter.
        self.bias = array if self.bias is None else self.bias + array
        if self.bias.size == 1 and max(self.shape) > 1:
            # The bias of an epilogue is a vector: one number is repeated along some dimension.
            longest = self.shape.index(max(self.shape))
            full = [size if k == longest else 1 for k, size in enumerate(self.shape)]
            self.bias = np.broadcast_to(self.bias, full)
        return self.bias.size > 1

    def _shift(self, amount: int | None) -> bool:
        if amount is None or not 0 <= amount <= MAX_SHIFT:
            return False
        self.shift += amount
        # A limit before a shift is another after it.
        self.low, self.high = self.low >> amount, self.high >> amount
        return True

    def _clip(self, low: int | None, high: int | None) -> bool:
        if low is None and high is None:
            return False
        if low is not None:
            # The later limit wins: a maximum may exceed an earlier minimum.
            self.low, self.high = max(self.low, low), max(self.high, low)
        if high is not None:
            self.low, self.high = min(self.low, high), min(self.high, high)
        return True


def requantization_of(
    sums: Any, users: Mapping[Any, Sequence[Any]], values: Mapping[Any, Any]
) -> Requantization | None:
    """Return the chain of operations from sums to an int8 variable; None if none is exact.

    Parameters
    ----------
    sums
        Variable of the sums.
    users
        Variables of the dataflow block that read a variable.
    values
        Expressions that variables are bound to.
    """
    shape = _shape(sums)
    chain = Requantization(shape)
    last = sums
    # Only a value that nothing else reads can stay in the program: a local one with one user.
    while isinstance(last, relax.DataflowVar) and len(users[last]) == 1:
        following = users[last][0]
        value = values[following]
        if _is(value, "relax.astype") and str(value.ty.dtype) == "int8":
            chain.last = following
            return chain if chain.is_exact else None
        is_same = str(following.ty.dtype) == "int32" and _shape(following) == shape
        if not is_same or not chain.append(value, last):
            return None
        last = following
    return None


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in variable.ty.shape)


def constant(value: Any) -> Array:
    """Return the array of a constant."""
    return value.value.numpy()


def _is(value: Any, operator: str) -> bool:
    return isinstance(value, ir.Call) and getattr(value.op, "name", None) == operator


def _second(value: Any, variable: Any) -> Any:
    """Return the operand of an operation besides a variable; the variable if it is both."""
    first, second = value.args
    return second if first.same_as(variable) else first


def _array(value: Any) -> Array | None:
    return constant(value) if isinstance(value, ir.GenericConst) else None


def _scalar(value: Any) -> int | None:
    array = _array(value)
    is_integer = array is not None and array.size == 1 and array.dtype == np.int32
    return int(array.reshape(())) if array is not None and is_integer else None
