"""A compiled contraction with the packing of its operands: its stages, whole calls, timed calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.dtypes import numpy_dtype, require_values
from cpembed.kernel import runtime
from cpembed.kernel.epilogue import RESIDUAL, Epilogue, channel_axes
from cpembed.kernel.layout_transform import Direction
from cpembed.kernel.packing import packing_source
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.program_nest import channel_index, in_order
from cpembed.transform.program import DerivedProgram, PackedOperand

Array = NDArray[Any]

MoveThreads = Callable[[PackedOperand], int]
"""On how many threads an operand is packed or unpacked."""


class Compiled(Protocol):
    """A kernel that can be called, on flat buffers of its processor."""

    def __call__(self, *buffers: Any) -> None: ...

    def bound(self, *buffers: Any) -> Callable[[], Any]:
        """The call on these buffers, to be timed."""
        ...

    def assembly(self) -> str:
        """Its machine code."""
        ...


class Processor(Protocol):
    """What kernels are compiled for and called on: this machine's
    (:mod:`cpembed.kernel.runtime`), or another one that something executes. Buffers are flat and
    opaque."""

    def thread_count(self) -> int: ...

    def compile_plan(self, plan: KernelPlan) -> Compiled: ...

    def from_array(self, array: Array) -> Any: ...

    def empty(self, elements: int, dtype: str) -> Any: ...

    def to_array(self, buffer: Any, shape: Sequence[int]) -> Array: ...


class CompiledKernel:
    """A contraction with the packing of its operands.

    :meth:`run` does everything on arrays in the original layouts; :meth:`pack`, :meth:`execute`
    and :meth:`unpack` are its three stages, on packed buffers that stay opaque.
    """

    def __init__(
        self,
        program: DerivedProgram,
        plan: KernelPlan,
        fallback: str | None = None,
        epilogue: Epilogue | None = None,
        whole: Callable[[], KernelPlan] | None = None,
        move_threads: MoveThreads | None = None,
        processor: Processor = runtime,
    ) -> None:
        """``fallback``: why this is generic code though native code was wanted; ``epilogue``: that
        of the plan, where it has one; ``whole``: plans the same kernel on its first factor as it
        comes, whose packing, if any, is inside; ``move_threads``: by default as many as there
        are; ``processor``: what it is compiled for and called on."""
        self.fallback = fallback
        self.program = program
        self.backend = plan.backend
        *factors, self._output = in_order(program)
        self._factors = tuple(factors)
        self._processor = processor
        self._move_threads: MoveThreads = move_threads or (lambda _: processor.thread_count())
        self.epilogue = epilogue
        if epilogue is not None:
            self._output = replace(self._output, dtype=epilogue.dtype)
        self.plan = plan
        self._contract = self._processor.compile_plan(plan)
        self._movers: dict[str, Compiled] = {}
        self._whole = whole

    @property
    def input_names(self) -> tuple[str, ...]:
        """What :meth:`run` wants: workload operands, and the vectors of the epilogue."""
        others = () if self.epilogue is None else self.epilogue.parameters
        return (*(operand.name for operand in self._factors), *others)

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Pack, execute and unpack: arrays in the original layouts, by workload operand."""
        packed = {name: self.pack(name, inputs[name]) for name in self.input_names}
        return self.unpack(self.execute(packed))

    def pack(self, name: str, array: Array) -> Any:
        """The packed buffer of an input; a vector has an element for each channel, row-major over
        the axes of :func:`~cpembed.kernel.epilogue.channel_axes`."""
        if self.epilogue is not None and name in self.epilogue.vectors:
            return self._vector(self.epilogue, name, array)
        if self.epilogue is not None and self.epilogue.residual is not None and name == RESIDUAL:
            place = self.epilogue.residual.placement
            return self._processor.from_array(array if place is None else place.placed(array))
        original = self.original(name, array)
        if self.is_packed_in_place(name):
            return original
        packed = self.empty(name)
        self.pack_into(name, original, packed)
        return packed

    def _vector(self, epilogue: Epilogue, name: str, array: Array) -> Any:
        """Padded as the channels are."""
        workload = self.program.unfused
        extents = tuple(workload.extents[axis] for axis in channel_axes(workload))
        dtype = numpy_dtype(epilogue.vector_dtype(name, workload.output.dtype))
        if array.shape != extents or array.dtype != dtype:
            raise WorkloadError(
                f"{name} is {array.dtype} {array.shape}, the channels take {dtype} {extents}"
            )
        _, padded = channel_index(self.program)
        vector = np.zeros(padded, dtype)
        vector[tuple(slice(extent) for extent in extents)] = array
        return self._processor.from_array(vector)

    def pack_into(self, name: str, original: Any, packed: Any) -> None:
        """Pack one buffer into another; nothing happens where both layouts are the same memory."""
        if not self.is_packed_in_place(name):
            self._mover(name)(original, packed)

    def execute(self, packed: Mapping[str, Any], output: Any | None = None) -> Any:
        """The contraction alone; returns the packed output buffer."""
        target = self.empty(self._output.name) if output is None else output
        self._contract(*(packed[name] for name in self.input_names), target)
        return target

    def bound(self, packed: Mapping[str, Any], output: Any) -> Callable[[], Any]:
        """:meth:`execute` on these buffers, to be timed: nothing is looked up in a call."""
        return self._contract.bound(*(packed[name] for name in self.input_names), output)

    def bound_whole(
        self,
        inputs: Mapping[str, Array],
        packed: Mapping[str, Any],
        ahead: Collection[str],
        output: Any,
    ) -> Callable[[], Any]:
        """One call from the inputs' own layouts, but for those in ``ahead``, to the output's own.

        ``packed`` and ``output`` are as for :meth:`bound`. What is packed inside the kernel does
        not come by way of ``packed``.
        """
        first = self._factors[0].name
        inside = None if first in ahead else self._on_original
        if inside is None:
            calls = [*self.bound_packing(inputs, packed, ahead), self.bound(packed, output)]
        else:
            contract, copies = inside
            own = [self._processor.empty(copies, self._factors[0].dtype)] if copies else []
            others = [packed[name] for name in self.input_names[1:]]
            original = self.original(first, inputs[first])
            calls = [
                *self.bound_packing(inputs, packed, {*ahead, first}),
                contract.bound(original, *others, output, *own),
            ]
        calls += self.bound_unpacking(output)
        return calls[0] if len(calls) == 1 else in_turn(calls)

    @property
    def has_inner_packing(self) -> bool:
        """Whether :meth:`bound_whole` may run other code than :meth:`bound`."""
        return self._whole is not None and not self.is_packed_in_place(self._factors[0].name)

    def run_whole(self, inputs: Mapping[str, Array], ahead: Collection[str]) -> Array:
        """:meth:`run` by way of :meth:`bound_whole`."""
        packed = {name: self.pack(name, inputs[name]) for name in self.input_names}
        output = self.empty(self._output.name)
        self.bound_whole(inputs, packed, ahead, output)()
        return self.unpack(output)

    @cached_property
    def plan_on_original(self) -> KernelPlan | None:
        """The kernel on the first factor as it comes; None where that is packed before."""
        if not self.has_inner_packing or self._whole is None:
            return None
        plan = self._whole()
        return plan if plan.copies or plan.original else None

    @cached_property
    def _on_original(self) -> tuple[Compiled, int] | None:
        """The kernel on the first factor as it comes, and the elements of the copies that it packs;
        compiled on first use."""
        plan = self.plan_on_original
        return None if plan is None else (self._processor.compile_plan(plan), plan.copies)

    def bound_packing(
        self, inputs: Mapping[str, Array], packed: Mapping[str, Any], ahead: Collection[str]
    ) -> list[Callable[[], Any]]:
        """Calls to be timed that pack each input, but those in ``ahead``, whose layouts are not the
        same memory."""
        return [
            self._mover(name).bound(self.original(name, inputs[name]), packed[name])
            for name in (operand.name for operand in self._factors)
            if name not in ahead and not self.is_packed_in_place(name)
        ]

    def bound_unpacking(self, packed: Any) -> list[Callable[[], Any]]:
        """The call to be timed that unpacks the output; none where its layouts are the same
        memory."""
        name = self._output.name
        if self.is_packed_in_place(name) or (self.epilogue and self.epilogue.placement):
            return []
        return [self._mover(name).bound(packed, self.original(name))]

    def unpack(self, packed: Any) -> Array:
        """The output in its original layout."""
        shape = self._output.original_shape
        if self.epilogue is not None and self.epilogue.placement is not None:
            place = self.epilogue.placement
            whole = self._processor.to_array(packed, (place.elements,))
            return place.view(whole, shape).copy()
        if self.is_packed_in_place(self._output.name):
            return self._processor.to_array(packed, shape)
        original = self.original(self._output.name)
        self.unpack_into(packed, original)
        return self._processor.to_array(original, shape)

    def unpack_into(self, packed: Any, original: Any) -> None:
        """Unpack into a flat buffer; nothing happens where both layouts are the same memory."""
        name = self._output.name
        if not self.is_packed_in_place(name):
            self._mover(name)(packed, original)

    def original(self, name: str, array: Array | None = None) -> Any:
        """A buffer in an operand's original layout, with an array's contents or zeroed."""
        operand = self._operand(name)
        if array is None:
            return self._processor.empty(math.prod(operand.original_shape), operand.dtype)
        if array.shape != operand.original_shape or array.dtype != numpy_dtype(operand.dtype):
            raise WorkloadError(
                f"operand {name} is {array.dtype} {array.shape}, "
                f"the workload has {operand.dtype} {operand.original_shape}"
            )
        require_values(name, operand.dtype, array)
        return self._processor.from_array(array)

    def empty(self, name: str) -> Any:
        """A buffer for an operand's packed layout, zeroed."""
        operand, elements = self._operand(name), self._operand(name).elements
        if operand is self._output and self.epilogue is not None and self.epilogue.placement:
            elements = self.epilogue.placement.elements
        return self._processor.empty(elements, operand.dtype)

    def is_packed_in_place(self, name: str) -> bool:
        """Whether the original memory is the packed one: packing moves nothing."""
        if self.epilogue is not None and name in self.epilogue.parameters:
            return True
        return self.program.operand(name).is_identity

    def assembly(self) -> str:
        """Machine code of the contraction."""
        return self._contract.assembly()

    def move_plan(self, name: str) -> KernelPlan:
        """The kernel that packs an input, or unpacks the output."""
        operand = self._operand(name)
        direction = Direction.UNPACK if operand is self._output else Direction.PACK
        source = packing_source(operand, self._move_threads(operand), direction)
        return KernelPlan("packing", source)

    @property
    def factors(self) -> tuple[PackedOperand, ...]:
        """The operands that are multiplied, in the kernel's order of parameters."""
        return self._factors

    @property
    def output(self) -> PackedOperand:
        """The output, of the type that is stored."""
        return self._output

    def _operand(self, name: str) -> PackedOperand:
        """By name; the output is of the type that is stored."""
        return self._output if name == self._output.name else self.program.operand(name)

    def _mover(self, name: str) -> Compiled:
        """The packing kernel of an input or the unpacking kernel of the output, compiled on first
        use: a search over schedules builds many contractions on the same packed operands."""
        if name not in self._movers:
            self._movers[name] = self._processor.compile_plan(self.move_plan(name))
        return self._movers[name]


@dataclass(frozen=True)
class _Planned:
    """A kernel that nothing has compiled."""

    plan: KernelPlan

    def __call__(self, *buffers: Any) -> None:
        self.assembly()

    def bound(self, *buffers: Any) -> Callable[[], Any]:
        return self.assembly

    def assembly(self) -> str:
        raise InvariantError(f"a kernel of {self.plan.backend} is planned, not compiled")


@dataclass(frozen=True)
class Uncompiled:
    """A processor for whose ``threads`` kernels are planned, and compiled elsewhere: there are
    plans (:attr:`CompiledKernel.plan`) and nothing to call."""

    threads: int

    def thread_count(self) -> int:
        return self.threads

    def compile_plan(self, plan: KernelPlan) -> Compiled:
        return _Planned(plan)

    def from_array(self, array: Array) -> Any:
        raise InvariantError("kernels that are only planned have no buffers")

    def empty(self, elements: int, dtype: str) -> Any:
        raise InvariantError("kernels that are only planned have no buffers")

    def to_array(self, buffer: Any, shape: Sequence[int]) -> Array:
        raise InvariantError("kernels that are only planned have no buffers")


def described(kernel: CompiledKernel, target: str) -> dict[str, Any]:
    """What the buffers of a kernel are, as a document."""
    program = kernel.program
    return {
        "target": target,
        "workload": str(program.unfused),
        "extents": program.unfused.extents,
        "operands": {
            operand.name: {
                "dtype": operand.dtype,
                "original": list(operand.original_shape),
                "packed": list(operand.shape),
                "in_place": operand.is_identity,
            }
            for operand in program.operands
        },
    }


def in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """All calls, one after the other, as one."""

    def everything() -> None:
        for call in calls:
            call()

    return everything
