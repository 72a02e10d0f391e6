"""What follows an operator on its int32 sums where a target stores that: bias, shift, clip.

``clip((sum + bias) >> shift)`` in any spelling: several constants added, shifts in steps, ``relu``,
``maximum``, ``minimum`` or ``clip`` before or after a shift. A shift to the right is monotone, so
``clip(x, a, b) >> s`` is ``clip(x >> s, a >> s, b >> s)``.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import ir, relax, tirx

from cpembed.codegen.epilogue import MAX_SHIFT

Array = NDArray[Any]

_INT32 = (-(2**31), 2**31 - 1)


@dataclass
class Epilogue:
    """``clip((sum + bias) >> shift, low, high)`` of sums of a ``shape``, as far as it was read;
    ``last`` is the variable at its end. ``bias`` None: nothing is added, else an array of as many
    dimensions as the sums, each of size 1 or theirs."""

    shape: tuple[int, ...]
    last: Any = None
    bias: Array | None = None
    shift: int = 0
    low: int = _INT32[0]
    high: int = _INT32[1]

    _untouched: bool = field(default=True, init=False)
    """Nothing but additions so far."""

    def axes(self, split: Sequence[int]) -> tuple[int, ...]:
        """The dimensions that the bias has of a computation's output, of which each dimension here
        is some."""
        axes: list[int] = []
        place = 0
        sizes = () if self.bias is None else self.bias.shape
        for size, count in zip(sizes, split, strict=False):
            axes += range(place, place + count) if size > 1 else []
            place += count
        return tuple(axes)

    def take(self, value: Any, of: Any) -> bool:
        """Read one operation on the variable ``of``; False where it has no place in the form."""
        if _is(value, "relax.add"):
            return self._untouched and self._add(_other(value, of))
        self._untouched = False
        if _is(value, "relax.right_shift"):
            return self._shift(_scalar(value.args[1]))
        if _is(value, "relax.nn.relu"):
            return self._clip(0, None)
        if _is(value, "relax.maximum"):
            return self._clip(_scalar(_other(value, of)), None)
        if _is(value, "relax.minimum"):
            return self._clip(None, _scalar(_other(value, of)))
        if _is(value, "relax.clip"):
            bounds = value.args[1:]
            if all(isinstance(bound, tirx.IntImm) for bound in bounds):
                low, high = (int(bound.value) for bound in bounds)
                return low <= high and self._clip(low, high)
        return False

    @property
    def is_exact(self) -> bool:
        """Whether the result is an int8 of the form."""
        return self.shift <= MAX_SHIFT and -128 <= self.low <= self.high <= 127

    def _add(self, other: Any) -> bool:
        array = _array(other)
        if array is None or array.dtype != np.int32 or array.ndim > len(self.shape):
            return False
        array = array.reshape((1,) * (len(self.shape) - array.ndim) + array.shape)
        if any(size not in (1, full) for size, full in zip(array.shape, self.shape, strict=True)):
            return False
        # Sums wrap around in both places.
        self.bias = array if self.bias is None else self.bias + array
        if self.bias.size == 1 and max(self.shape) > 1:
            longest = self.shape.index(max(self.shape))
            full = [size if k == longest else 1 for k, size in enumerate(self.shape)]
            self.bias = np.broadcast_to(self.bias, full)
        return self.bias.size > 1

    def _shift(self, amount: int | None) -> bool:
        if amount is None or not 0 <= amount <= MAX_SHIFT:
            return False
        self.shift += amount
        self.low, self.high = self.low >> amount, self.high >> amount
        return True

    def _clip(self, low: int | None, high: int | None) -> bool:
        if low is None and high is None:
            return False
        if low is not None:
            self.low, self.high = max(self.low, low), max(self.high, low)
        if high is not None:
            self.low, self.high = min(self.low, high), min(self.high, high)
        return True


def epilogue_of(
    sums: Any, users: Mapping[Any, Sequence[Any]], values: Mapping[Any, Any]
) -> Epilogue | None:
    """The chain from a variable to an int8 one; None where there is none that is exact.

    ``users`` are the variables of a dataflow block that use one of it, ``values`` what variables
    are bound to.
    """
    shape = _shape(sums)
    chain = Epilogue(shape)
    last = sums
    # Only what nobody else reads can stay in the program: such a variable is local, with one user.
    while isinstance(last, relax.DataflowVar) and len(users[last]) == 1:
        following = users[last][0]
        value = values[following]
        if _is(value, "relax.astype") and str(value.ty.dtype) == "int8":
            chain.last = following
            return chain if chain.is_exact else None
        same = str(following.ty.dtype) == "int32" and _shape(following) == shape
        if not same or not chain.take(value, last):
            return None
        last = following
    return None


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in variable.ty.shape)


def constant(value: Any) -> Array:
    """The array of a constant."""
    return value.value.numpy()


def _is(value: Any, operator: str) -> bool:
    return isinstance(value, ir.Call) and getattr(value.op, "name", None) == operator


def _other(value: Any, of: Any) -> Any:
    """The second operand of an operation on a variable; the variable where it is both."""
    first, second = value.args
    return second if first.same_as(of) else first


def _array(value: Any) -> Array | None:
    return constant(value) if isinstance(value, ir.GenericConst) else None


def _scalar(value: Any) -> int | None:
    array = _array(value)
    is_integer = array is not None and array.size == 1 and array.dtype == np.int32
    return int(array.reshape(())) if array is not None and is_integer else None
