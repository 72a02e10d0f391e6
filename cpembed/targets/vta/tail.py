"""Tails: the epilogues of VTA programs, from accumulators to results.

VTA stores the low eight bits of an accumulator. A tail has the operations of the ALU before each
STORE, and the way in which the CPU combines the stored bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import MAX_SHIFT
from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.errors import LoweringError, WorkloadError
from cpembed.ir.computation import AxisKind, Computation
from cpembed.targets.vta.isa import AluOp

Array = NDArray[Any]
AluStep = tuple[AluOp, int]
"""An operation on every accumulator, with its immediate."""


@dataclass(frozen=True)
class Requantized:
    """``clip((acc + bias) >> shift, low, high)`` as int8.

    ``bias`` lists the dimensions of the output that the bias has, ``(1,)`` for one value per
    channel of NCHW, and is empty without a bias.
    """

    dtype: ClassVar[str] = "int8"

    shift: int
    low: int = -128
    high: int = 127
    bias: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.shift <= MAX_SHIFT:
            raise LoweringError(f"requantization: shift {self.shift} is not 0 to {MAX_SHIFT}")
        if not -128 <= self.low <= self.high <= 127:
            raise LoweringError(f"requantization: clips to {self.low} … {self.high}, not in int8")

    def __str__(self) -> str:
        bias = "sums with a bias" if self.bias else "sums"
        return f"int8: {bias} shifted right by {self.shift}, clipped to {self.low}..{self.high}"

    @property
    def phases(self) -> tuple[tuple[AluStep, ...], ...]:
        """Operations of the ALU before each STORE of an output tile."""
        shift = ((AluOp.SHR, self.shift),) if self.shift else ()
        return ((*shift, (AluOp.MIN, self.high), (AluOp.MAX, self.low)),)

    def combine(self, stored: list[Array]) -> Array:
        """Return the result from the bytes of each STORE."""
        return stored[0]

    def reference(self, exact: Array, bias: Array | None = None) -> Array:
        """Return the result from the exact int32 output, and the bias over its dimensions."""
        if bias is not None:
            absent = [axis for axis in range(exact.ndim) if axis not in self.bias]
            exact = exact + np.expand_dims(bias, absent)
        return np.clip(exact >> self.shift, self.low, self.high).astype(np.int8)


@dataclass(frozen=True)
class Exact:
    """All 32 bits of the sums, stored byte by byte: four STOREs, with a shift between them."""

    dtype: ClassVar[str] = "int32"
    bias: ClassVar[tuple[int, ...]] = ()
    phases: ClassVar[tuple[tuple[AluStep, ...], ...]] = ((), *[((AluOp.SHR, 8),)] * 3)

    def __str__(self) -> str:
        return "int32: all bits of the sums, stored byte by byte"

    def combine(self, stored: list[Array]) -> Array:
        # The lowest byte was stored first, and the host is little-endian as VTA is.
        planes = np.stack([plane.view(np.uint8) for plane in stored], axis=-1)
        return planes.view("<i4")[..., 0]

    def reference(self, exact: Array) -> Array:
        return exact


@dataclass(frozen=True)
class Truncated:
    """The low eight bits of the sums: the result of a computation in int8."""

    dtype: ClassVar[str] = "int8"
    bias: ClassVar[tuple[int, ...]] = ()
    phases: ClassVar[tuple[tuple[AluStep, ...], ...]] = ((),)

    def __str__(self) -> str:
        return "int8: the low eight bits of the sums"

    def combine(self, stored: list[Array]) -> Array:
        return stored[0]

    def reference(self, exact: Array) -> Array:
        return exact.astype(np.int8)


Tail = Requantized | Exact | Truncated


def default_tail(workload: Computation) -> Tail:
    """Return the low bits if the workload's output is int8, else :func:`requantized_for`."""
    return Truncated() if _is_narrow(workload) else requantized_for(workload)


def check_tail(workload: Computation, tail: Tail) -> None:
    """Raise :class:`LoweringError` if the tail's result is not the workload's."""
    # A workload with an int8 output defines its values modulo 2^8: any other tail changes them.
    if _is_narrow(workload) and not isinstance(tail, Truncated):
        raise LoweringError(
            f"{workload.name} keeps the low bits of its sums (int8): "
            "make its output int32 to shift and clip them, or to have them all"
        )


def _is_narrow(workload: Computation) -> bool:
    return workload.output.dtype == "int8"


def requantized_for(workload: Computation) -> Requantized:
    """Return a shift after which sums of random int8 products rarely leave int8.

    >>> from cpembed.workloads.einsum import gemm
    >>> requantized_for(gemm(m=4, n=4, k=256)).shift
    11
    """
    # The product of two uniform int8 numbers has a standard deviation of 5,461; three of them, for
    # a sum of L products, are 2^14 sqrt(L). int8 has seven bits beside its sign: 14 - 7 remain.
    length = math.prod(axis.extent for axis in workload.axes if axis.kind is AxisKind.REDUCTION)
    return Requantized(min(MAX_SHIFT, 7 + math.ceil(math.log2(max(1, length)) / 2)))


OutputForm = Literal["requantized", "int32", "int8"]
"""Form of the output: shifted and clipped sums, all their bits, or their low eight bits."""


def tail_for(target: str, workload: Computation, request: EpilogueRequest) -> Tail:
    """Return the tail that a command's options ask for.

    Parameters
    ----------
    target
        Name of the target, for messages.
    workload
        Computation, whose output type decides if the options name no form.
    request
        Options on the epilogue and the output type.

    Raises
    ------
    WorkloadError
        For an output that VTA cannot store, a form that contradicts the output's type, or a shift
        that the form does not use.
    """
    forms: tuple[OutputForm, ...] = get_args(OutputForm)
    requested = request.steps[0] if request.steps else request.output
    if request.steps or (requested is not None and requested not in forms):
        raise WorkloadError(
            f"{target} is simulated and stores {', '.join(forms)}, not {requested}: "
            "name one of these, or a target that a CPU executes"
        )
    narrow = _is_narrow(workload)
    form = request.output or ("int8" if narrow else "requantized")
    if narrow and form != "int8":
        raise WorkloadError(
            f"{workload.output.name} is int8, the low bits of the sums, and cannot be {form}: "
            "give it the type int32, or ask for int8"
        )
    if form == "requantized":
        return requantized_for(workload) if request.shift is None else Requantized(request.shift)
    if request.shift is not None:
        raise WorkloadError(
            f"output {form} has no shift: leave it out, or ask for requantized output"
        )
    return Exact() if form == "int32" else Truncated()


def form_of(tail: Tail) -> OutputForm:
    """Return the form of a tail, as commands name it."""
    if isinstance(tail, Requantized):
        return "requantized"
    return "int32" if isinstance(tail, Exact) else "int8"
