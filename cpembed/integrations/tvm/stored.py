"""Steps between sums and stored results as an epilogue of a kernel, if that is equal, bit for bit.

The stored expression of one element is a chain: the sum, then operations that each combine the
value so far with at most one term, a number or an element of a tensor.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx
from tvm_ffi import structural_equal

from cpembed.codegen.epilogue import BYTES, MAX_SHIFT, Epilogue, Residual
from cpembed.errors import WorkloadError
from cpembed.ir.dtypes import dtype_info, is_integer

_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "subtract",
    tirx.Mul: "multiply",
    tirx.Max: "maximum",
    tirx.Min: "minimum",
    tirx.RShift: "shift",
}
# Operations that may have the sums second.
_SYMMETRIC = ("add", "multiply", "maximum", "minimum")


@dataclass(frozen=True)
class Term:
    """Second value of an operation: an element of a parameter, or a number.

    A parameter varies along ``axes`` of the result; without one the term is ``number``.
    """

    parameter: Any = None
    axes: tuple[int, ...] = ()
    number: float = 0.0

    @property
    def is_number(self) -> bool:
        return self.parameter is None


@dataclass(frozen=True)
class Step:
    """Operation on the value so far; ``dtype`` is that of its result."""

    operation: str
    dtype: str
    term: Term | None = None


def steps_of(store: Any, sums: Any) -> list[Step]:
    """Return the steps from an element of the buffer ``sums`` to the stored value, in order.

    Raises :class:`WorkloadError` if the expression is no such chain.
    """
    steps: list[Step] = []
    node = store.value
    while not is_sum(node, store, sums):
        step, node = _step(node, store, sums)
        steps.append(step)
    return steps[::-1]


def is_sum(node: Any, store: Any, sums: Any) -> bool:
    """True for the sum of the stored element.

    Parameters
    ----------
    node
        Expression.
    store
        Statement that stores an element of the result.
    sums
        Buffer of the sums.

    Raises
    ------
    WorkloadError
        If it is another element of the sums.
    """
    if not (isinstance(node, ir.TensorLoad) and node.source.same_as(sums)):
        return False
    positions = zip(node.indices, store.indices, sums.shape, store.buffer.shape, strict=False)
    is_same = len(node.indices) == len(store.indices) and all(
        int(size) == int(full) and (structural_equal(index, position) or int(size) == 1)
        for index, position, size, full in positions
    )
    if not is_same:
        raise WorkloadError("results are not stored where the sums are: they are moved or reshaped")
    return True


def _step(node: Any, store: Any, sums: Any) -> tuple[Step, Any]:
    """Return the last operation of an expression, and the value that it is applied to."""
    dtype = str(node.ty.dtype)
    if isinstance(node, tirx.Cast):
        return Step("convert", dtype), node.value
    if isinstance(node, ir.Call):
        name = str(getattr(node.op, "name", "")).rsplit(".", 1)[-1]
        if name == "nearbyint":
            return Step("round", dtype), node.args[0]
        raise WorkloadError(f"{name or node.op} follows the sums, which no epilogue expresses")
    operation = _BINARY.get(type(node))
    if operation is None:
        raise WorkloadError(f"{type(node).__name__} follows the sums, which no epilogue expresses")
    first, second = _reads(node.a, sums), _reads(node.b, sums)
    if first and second:
        raise WorkloadError(f"{operation} takes the sums twice")
    if second and operation not in _SYMMETRIC:
        raise WorkloadError(f"{operation} has the sums second")
    value, operand = (node.a, node.b) if first else (node.b, node.a)
    term = term_of(operand, store)
    if operation == "subtract":
        if not term.is_number:
            raise WorkloadError("a tensor is subtracted: add its negative")
        # So that a zero point may be subtracted, too.
        operation, term = "add", Term(number=-term.number)
    return Step(operation, dtype, term), value


def _reads(node: Any, sums: Any) -> bool:
    if isinstance(node, ir.TensorLoad):
        return node.source.same_as(sums)
    parts = list(node.args) if isinstance(node, ir.Call) else []
    names = ("a", "b", "value", "condition", "true_value", "false_value")
    parts += [part for name in names if isinstance(part := getattr(node, name, None), ir.Expr)]
    return any(_reads(part, sums) for part in parts)


def term_of(node: Any, store: Any) -> Term:
    """Return the value that is combined with the sums; raise :class:`WorkloadError` for others."""
    if isinstance(node, tirx.IntImm | tirx.FloatImm):
        return Term(number=node.value)
    if isinstance(node, ir.TensorLoad):
        return Term(node.source, _axes(node, store.indices, store.buffer.shape))
    raise WorkloadError(f"{node} is combined with the sums: only tensors and numbers can be")


def _axes(load: Any, places: Sequence[Any], sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return the dimensions of the result along which a read varies, in the order of its own."""
    axes: list[int] = []
    for index, size in zip(load.indices, load.source.shape, strict=True):
        # A dimension of one element is broadcast.
        if int(size) == 1:
            continue
        axis = next((a for a, place in enumerate(places) if index.same_as(place)), None)
        if axis is None or int(sizes[axis]) != int(size):
            raise WorkloadError(f"{load} is combined with the sums, but has other axes")
        axes.append(axis)
    if axes != sorted(set(axes)):
        raise WorkloadError(f"{load} is combined with the sums in another order of dimensions")
    return tuple(axes)


# -- epilogues ------------------------------------------------------------------------------------

FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Stored:
    """Epilogue and its inputs.

    Parameters
    ----------
    epilogue
        Epilogue; None if the sums are stored unchanged.
    bias
        Terms whose sum is the bias.
    scale, residual
        Terms of the scale and of the residual.
    positive
        True if the epilogue is exact only for positive scales.
    vectors
        Terms of the vectors of the epilogue's chain.
    """

    epilogue: Epilogue | None
    bias: tuple[Term, ...] = ()
    scale: Term | None = None
    residual: Term | None = None
    positive: bool = False
    vectors: tuple[Term, ...] = ()


def stored(
    steps: Sequence[Step], sums: str, channels: Collection[int], full: Sequence[int]
) -> Stored:
    """Return the epilogue that equals steps on sums, bit for bit.

    Parameters
    ----------
    steps
        Steps from the sums to the stored value.
    sums
        Element type of the sums.
    channels
        Dimensions along which vectors vary.
    full
        All dimensions of more than one element.

    Raises
    ------
    WorkloadError
        No epilogue is equal.
    """
    return _Reader(sums, channels, tuple(full)).read(steps)


@dataclass
class _Reader:
    """Epilogue of the steps so far.

    The value has type ``dtype`` and is within ``low`` and ``high``. ``converted`` is the type of
    the result once the value is converted to it.
    """

    dtype: str
    channels: Collection[int]
    full: tuple[int, ...]
    bias: list[Term] = field(default_factory=list)
    scale: Term | None = None
    residual: Term | None = None
    shift: int = 0
    low: float | None = None
    high: float | None = None
    relu: bool = False
    last_relu: bool = False
    rounded: bool = False
    zero_point: int = 0
    positive: bool = False
    converted: str | None = None

    def __post_init__(self) -> None:
        self.sums = self.dtype

    def read(self, steps: Sequence[Step]) -> Stored:
        for step in steps:
            if self.converted is not None and not self._commutes(step):
                raise WorkloadError(f"{step.operation} follows the conversion to {self.converted}")
            # A method for each operation: `_add`, `_multiply`, `_maximum` …
            reader: Callable[[Step], None] = getattr(self, f"_{step.operation}")
            reader(step)
        return Stored(self._epilogue(), tuple(self.bias), self.scale, self.residual, self.positive)

    def _commutes(self, step: Step) -> bool:
        """Return whether a step after a conversion between floats can be moved before it."""
        is_relu = step.operation == "maximum" and _number(step) == 0
        # Rounding keeps the sign: ReLU before it is equal.
        return self.converted in FLOATS and is_relu and self.sums in FLOATS

    @property
    def _in_integers(self) -> bool:
        return is_integer(self.dtype)

    @property
    def _untouched(self) -> bool:
        bounded = self.relu or self.low is not None or self.high is not None
        return not (self.shift or self.scale or bounded or self.rounded or self.residual)

    def _add(self, step: Step) -> None:
        term = step.term
        assert term is not None
        if self.rounded:
            self._add_zero_point(term)
        elif not set(term.axes) <= set(self.channels):
            if term.axes != self.full or self.residual is not None:
                raise WorkloadError("a tensor is added that has neither the channels' axes nor all")
            if self.sums != "float32" or self.low is not None or self.high is not None:
                raise WorkloadError(f"another tensor is added to sums in {self.dtype}")
            self.residual = term
        elif self._untouched and self.dtype == self.sums:
            self.bias.append(term)
        else:
            raise WorkloadError("an addition follows a step other than an addition")

    def _add_zero_point(self, term: Term) -> None:
        if not term.is_number or term.number != int(term.number):
            raise WorkloadError("the zero point is no integer")
        offset = int(term.number)
        if self.relu:
            # Added to rectified values, the zero point is a limit instead.
            self.relu, self.low = False, max(0.0, self.low or 0.0)
        self.zero_point += offset
        self.low = None if self.low is None else self.low + offset
        self.high = None if self.high is None else self.high + offset

    def _multiply(self, step: Step) -> None:
        # Epilogues add the bias, scale once, then round and clip; other orders are rejected.
        if self._in_integers:
            raise WorkloadError("sums are multiplied in integers")
        if self.scale is not None or self.rounded or self.residual is not None:
            raise WorkloadError("results are multiplied more than once, or late")
        if self.low is not None or self.high is not None:
            raise WorkloadError("results are limited before they are multiplied")
        assert step.term is not None
        if not set(step.term.axes) <= set(self.channels):
            raise WorkloadError("results are multiplied by a tensor with other axes than channels")
        self.scale = step.term
        # The epilogue rectifies after scaling, which is equal for positive scales only.
        self.positive = self.positive or self.relu

    def _maximum(self, step: Step) -> None:
        bound = _number(step)
        if self.residual is not None:
            if bound != 0:
                raise WorkloadError("results are limited after another tensor is added")
            self.last_relu = True
        elif bound == 0 and not self.rounded and self.low is None and self.high is None:
            self.relu = True
        else:
            low = bound if self.low is None else max(self.low, bound)
            self.low = low
            self.high = None if self.high is None else max(self.high, low)

    def _minimum(self, step: Step) -> None:
        bound = _number(step)
        if self.residual is not None:
            raise WorkloadError("results are limited after another tensor is added")
        self.high = bound if self.high is None else min(self.high, bound)
        # The later limit wins, as in the expression.
        self.low = None if self.low is None else min(self.low, self.high)

    def _shift(self, step: Step) -> None:
        amount = int(_number(step))
        if not self._in_integers or self.shift + amount > MAX_SHIFT or amount < 0:
            raise WorkloadError("results are shifted by more than their bits")
        self.shift += amount
        # A shift is monotone: a limit before it is another after it.
        self.low = None if self.low is None else int(self.low) >> amount
        self.high = None if self.high is None else int(self.high) >> amount

    def _round(self, step: Step) -> None:
        if self._in_integers or self.residual is not None:
            raise WorkloadError("results are rounded where no epilogue rounds")
        self.rounded = True

    def _convert(self, step: Step) -> None:
        if self._in_integers and step.dtype == "float32":
            if self.shift or self.low is not None or self.high is not None:
                raise WorkloadError("shifted or limited integers are converted to floats")
            # Kernels scale in float32 in any case.
            self.dtype = "float32"
            return
        if not self._in_integers and is_integer(step.dtype) and not self.rounded:
            raise WorkloadError(f"floats are cut off to {step.dtype}: round them first")
        self.converted = self.dtype = step.dtype

    def _epilogue(self) -> Epilogue | None:
        dtype = self.dtype
        if self.residual is not None:
            residual = Residual(dtype, relu=self.last_relu)
            return Epilogue(
                dtype, self.scale is not None, bool(self.bias), self.relu, residual=residual
            )
        if not is_integer(dtype):
            if self.low is not None or self.high is not None or self.rounded:
                raise WorkloadError(f"results in {dtype} are limited or rounded")
            if dtype == self.sums and not (self.bias or self.scale or self.relu):
                return None
            return Epilogue(dtype, self.scale is not None, bool(self.bias), self.relu)
        return self._requantized() if self.rounded else self._integral()

    def _requantized(self) -> Epilogue:
        if self.scale is None or self.dtype not in BYTES:
            raise WorkloadError(f"results are rounded to {self.dtype} without a scale")
        clip = self._within(self.dtype)
        full_range = dtype_info(self.dtype).integer_range
        # A limit of at least the zero point rectifies already.
        relu = self.relu and clip[0] < self.zero_point
        return Epilogue(
            self.dtype,
            scale=True,
            bias=bool(self.bias),
            relu=relu,
            clip=None if clip == full_range else clip,
            zero_point=self.zero_point,
        )

    def _integral(self) -> Epilogue | None:
        bias, is_limited = bool(self.bias), self.low is not None or self.high is not None
        if self.dtype == self.sums:
            clip = self._within(self.dtype) if is_limited else None
            if not (bias or self.relu or self.shift or clip):
                return None
            return Epilogue(self.dtype, False, bias, self.relu, self.shift, clip)
        if not is_limited and not self.relu:
            # TVM converts integers without limits by cutting off bits.
            return Epilogue(self.dtype, False, bias, shift=self.shift, wraps=True)
        return Epilogue(self.dtype, False, bias, self.relu, self.shift, self._within(self.dtype))

    def _within(self, dtype: str) -> tuple[int, int]:
        """Return the limits as integers; raise an error if values may exceed a type's range."""
        least, largest = dtype_info(dtype).integer_range
        low, high = self.low, self.high
        if low is None and self.relu and not self.zero_point:
            low = 0
        if dtype == self.sums:
            # The type itself limits nothing: values are in its range.
            low = least if low is None else low
            high = largest if high is None else high
        if low is None or high is None or not least <= low <= high <= largest:
            raise WorkloadError(f"results may exceed the range of {dtype}: limit them to it")
        if low != int(low) or high != int(high):
            raise WorkloadError(f"results in {dtype} are limited to numbers that are no integers")
        return int(low), int(high)


def _number(step: Step) -> float:
    if step.term is None or not step.term.is_number:
        raise WorkloadError(f"{step.operation} takes a tensor, where epilogues have a number")
    return step.term.number
