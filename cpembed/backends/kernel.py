"""Kernels from derived programs: the choice of back end, packing, execution."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpembed.backends import generic, runtime
from cpembed.backends.added import is_added
from cpembed.backends.added import plan as added_plan
from cpembed.backends.contract import KernelPlan, Knobs
from cpembed.backends.epilogue import Epilogue, channel_axes
from cpembed.backends.move import Direction
from cpembed.backends.move_time import kept_near, threads_worth
from cpembed.backends.packing import packing_source
from cpembed.backends.program_nest import channel_index, in_order
from cpembed.backends.x86 import features
from cpembed.backends.x86.back_ends import back_end
from cpembed.backends.x86.calibration import Calibration, calibration
from cpembed.backends.x86.register_blocks import Schedules
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import numpy_dtype
from cpembed.transform.program import DerivedProgram, PackedOperand

Array = NDArray[Any]

BackendChoice = Literal["auto", "native", "generic"]


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
        near: Collection[str] = (),
    ) -> None:
        """``fallback``: why this is generic code though native code was wanted; ``epilogue``: that
        of the plan, where it has one; ``whole``: plans the same kernel on its first factor as it
        comes, whose packing, if any, is inside; ``near``: see
        :func:`~cpembed.backends.move_time.kept_near`."""
        self.fallback = fallback
        self.program = program
        self.backend = plan.backend
        *factors, self._output = in_order(program)
        self._factors = tuple(factors)
        self._near = near
        self.epilogue = epilogue
        if epilogue is not None:
            self._output = replace(self._output, dtype=epilogue.dtype)
        self._contract = runtime.compile_plan(plan)
        self._movers: dict[str, runtime.Function] = {}
        self._whole = whole

    @property
    def input_names(self) -> tuple[str, ...]:
        """What :meth:`run` wants: workload operands, and the vectors of the epilogue."""
        vectors = () if self.epilogue is None else self.epilogue.vectors
        return (*(operand.name for operand in self._factors), *vectors)

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Pack, execute and unpack: arrays in the original layouts, by workload operand."""
        packed = {name: self.pack(name, inputs[name]) for name in self.input_names}
        return self.unpack(self.execute(packed))

    def pack(self, name: str, array: Array) -> Any:
        """The packed buffer of an input; a vector has an element for each channel, row-major over
        the axes of :func:`~cpembed.backends.epilogue.channel_axes`."""
        if self.epilogue is not None and name in self.epilogue.vectors:
            return self._vector(self.epilogue, name, array)
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
        return runtime.from_array(vector)

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
        inside = None if first in ahead or self.is_packed_in_place(first) else self._on_original
        if inside is None:
            calls = [*self.bound_packing(inputs, packed, ahead), self.bound(packed, output)]
        else:
            contract, copies = inside
            own = [runtime.empty(copies, self._factors[0].dtype)] if copies else []
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
    def _on_original(self) -> tuple[runtime.Function, int] | None:
        """The kernel on the first factor as it comes, and the elements of the copies that it packs;
        compiled on first use."""
        plan = None if self._whole is None else self._whole()
        if plan is None or not (plan.copies or plan.original):
            return None
        return runtime.compile_plan(plan), plan.copies

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
        if self.is_packed_in_place(name):
            return []
        return [self._mover(name).bound(packed, self.original(name))]

    def unpack(self, packed: Any) -> Array:
        """The output in its original layout."""
        shape = self._output.original_shape
        if self.is_packed_in_place(self._output.name):
            return runtime.to_array(packed, shape)
        original = self.original(self._output.name)
        self.unpack_into(packed, original)
        return runtime.to_array(original, shape)

    def unpack_into(self, packed: Any, original: Any) -> None:
        """Unpack into a flat buffer; nothing happens where both layouts are the same memory."""
        name = self._output.name
        if not self.is_packed_in_place(name):
            self._mover(name)(packed, original)

    def original(self, name: str, array: Array | None = None) -> Any:
        """A buffer in an operand's original layout, with an array's contents or zeroed."""
        operand = self._operand(name)
        if array is None:
            return runtime.empty(math.prod(operand.original_shape), operand.dtype)
        if array.shape != operand.original_shape or array.dtype != numpy_dtype(operand.dtype):
            raise WorkloadError(
                f"operand {name} is {array.dtype} {array.shape}, "
                f"the workload has {operand.dtype} {operand.original_shape}"
            )
        return runtime.from_array(array)

    def empty(self, name: str) -> Any:
        """A buffer for an operand's packed layout, zeroed."""
        operand = self._operand(name)
        return runtime.empty(operand.elements, operand.dtype)

    def is_packed_in_place(self, name: str) -> bool:
        """Whether the original memory is the packed one: packing moves nothing."""
        if self.epilogue is not None and name in self.epilogue.vectors:
            return True
        return self.program.operand(name).is_identity

    def assembly(self) -> str:
        """Machine code of the contraction."""
        return self._contract.assembly()

    def _operand(self, name: str) -> PackedOperand:
        """By name; the output is of the type that is stored."""
        return self._output if name == self._output.name else self.program.operand(name)

    def _mover(self, name: str) -> runtime.Function:
        """The packing kernel of an input or the unpacking kernel of the output, compiled on first
        use: a search over schedules builds many contractions on the same packed operands."""
        if name not in self._movers:
            operand = self._operand(name)
            direction = Direction.UNPACK if operand is self._output else Direction.PACK
            count, near = runtime.thread_count(), name in self._near
            threads = threads_worth(operand, calibration(), count, near=near)
            source = packing_source(operand, threads, direction)
            self._movers[name] = runtime.compile_plan(KernelPlan("packing", source))
        return self._movers[name]


def in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """All calls, one after the other, as one."""

    def everything() -> None:
        for call in calls:
            call()

    return everything


def build(
    program: DerivedProgram,
    spec: HardwareSpec,
    *,
    backend: BackendChoice = "auto",
    knobs: Knobs | None = None,
    epilogue: Epilogue | None = None,
) -> CompiledKernel:
    """Compile a derived program.

    ``native`` uses the target's instruction or raises: :class:`BackendUnavailable` where there is
    no back end or the machine lacks the instruction, :class:`LoweringError` where the program
    cannot be expressed with it. ``generic`` is portable code; ``auto`` is native where that works,
    else generic, and the kernel's ``fallback`` says why. ``knobs`` set the native schedule;
    ``epilogue`` is what is stored of the sums, by default the sums themselves.
    """
    reason: str | None = None
    if backend != "generic":
        try:
            return _build_native(program, spec, knobs, epilogue)
        except (BackendUnavailable, LoweringError) as error:
            if backend == "native":
                raise
            reason = str(error)
    plan = generic.plan(program, runtime.thread_count(), epilogue)
    return CompiledKernel(program, plan, reason, epilogue)


def schedule_space(
    program: DerivedProgram,
    spec: HardwareSpec,
    machine: Calibration | None = None,
    epilogue: Epilogue | None = None,
) -> Schedules:
    """Settings of :func:`build`'s ``knobs`` with their estimated times; the best ranked one is the
    default.

    Raises as :func:`build` does for ``native``, except that the machine need not have the
    instruction.
    """
    found, figures = back_end(spec), machine or calibration()
    nest, model = found.nest(program, epilogue), found.model(program)
    unpadded = found.nest_unpadded(program, epilogue)
    figures = figures.knowing(model.product)
    return Schedules(nest, model, figures, runtime.thread_count(), unpadded)


def _build_native(
    program: DerivedProgram,
    spec: HardwareSpec,
    knobs: Knobs | None,
    epilogue: Epilogue | None,
) -> CompiledKernel:
    features.require(spec)
    if is_added(spec):
        plan = added_plan(program, spec, runtime.thread_count(), epilogue)
        return CompiledKernel(program, plan, epilogue=epilogue)
    found = back_end(spec)
    space = schedule_space(program, spec, epilogue=epilogue)
    chosen = knobs or space.best()
    scheduled = space.scheduled(program, chosen)
    plan = found.plan(program, scheduled)

    def whole() -> KernelPlan:
        return found.plan(program, space.scheduled(program, chosen, whole=True))

    near = kept_near(scheduled.nest, in_order(program), space.machine, space.threads)
    return CompiledKernel(program, plan, epilogue=epilogue, whole=whole, near=near)
