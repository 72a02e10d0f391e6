"""Compiled contractions with the packing of their operands: stages, whole calls, timed calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import RESIDUAL, Epilogue
from cpembed.codegen.packing import Direction, packing_source
from cpembed.codegen.placement import Placement
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.program_nest import in_order, vector_operand
from cpembed.errors import WorkloadError
from cpembed.ir.dtypes import numpy_dtype, require_values
from cpembed.transform.program import DerivedProgram, PackedOperand, pack

Array = NDArray[Any]

PACKING = "packing"
"""Back end of plans that pack or unpack: ``main(source, target)``."""

MoveThreads = Callable[[PackedOperand], int]
"""Number of threads on which an operand is packed or unpacked."""


class Compiled(Protocol):
    """Kernel that can be called, on flat buffers of its processor."""

    def __call__(self, *buffers: Any) -> None: ...

    def bound(self, *buffers: Any) -> Callable[[], Any]:
        """Return the call on these buffers, to be timed."""
        ...

    def assembly(self) -> str:
        """Return the machine code as text."""
        ...


class Processor(Protocol):
    """Processor that kernels are compiled for and called on.

    The module :mod:`cpembed.codegen.runtime` is this machine's. Buffers are flat and opaque.
    """

    def thread_count(self) -> int: ...

    def compile_plan(self, plan: KernelPlan) -> Compiled: ...

    def from_array(self, array: Array) -> Any: ...

    def empty(self, elements: int, dtype: str) -> Any: ...

    def to_array(self, buffer: Any, shape: Sequence[int]) -> Array: ...


class CompiledKernel:
    """Contraction with the packing of its operands.

    :meth:`run` does everything on arrays in the original layouts; :meth:`pack`, :meth:`execute`
    and :meth:`unpack` are its three stages, on packed buffers that stay opaque.

    Parameters
    ----------
    program : DerivedProgram
        Program with the operands' layouts.
    plan : KernelPlan
        Contraction on packed operands.
    fallback : str, optional
        Reason why this is generic code instead of native code.
    epilogue : Epilogue, optional
        Epilogue of the plan.
    whole_plan : callable, optional
        Returns a plan of the same kernel on its first factor in the original layout, which packs it
        inside if necessary.
    move_threads : MoveThreads, optional
        Threads that pack an operand; by default all.
    processor : Processor
        Processor to compile for; by default this machine's.
    """

    def __init__(
        self,
        program: DerivedProgram,
        plan: KernelPlan,
        fallback: str | None = None,
        epilogue: Epilogue | None = None,
        whole_plan: Callable[[], KernelPlan] | None = None,
        move_threads: MoveThreads | None = None,
        processor: Processor = runtime,
    ) -> None:
        self.fallback = fallback
        self.program = program
        self.backend = plan.backend
        *factors, self._output = in_order(program)
        self._factors = tuple(factors)
        self.processor = processor
        self._move_threads: MoveThreads = move_threads or (lambda _: processor.thread_count())
        self.epilogue = epilogue
        if epilogue is not None:
            self._output = replace(self._output, dtype=epilogue.dtype)
        self.plan = plan
        self._contract = self.processor.compile_plan(plan)
        self._movers: dict[str, Compiled] = {}
        self._whole_plan = whole_plan

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: the workload's, and the epilogue's vectors and residual."""
        extra = () if self.epilogue is None else self.epilogue.parameters
        return (*(operand.name for operand in self._factors), *extra)

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Pack, execute and unpack: arrays in the original layouts, by input name."""
        packed = {name: self.pack(name, inputs[name]) for name in self.input_names}
        return self.unpack(self.execute(packed))

    def pack(self, name: str, array: Array) -> Any:
        """Return the packed buffer of an input."""
        original = self.original(name, array)
        if self.is_packed_in_place(name):
            return original
        if self.epilogue is not None and name in self.epilogue.vectors:
            # Too small to compile a kernel for.
            return self.processor.from_array(pack(self.operand(name), array))
        packed = self.empty(name)
        self.pack_into(name, original, packed)
        return packed

    def pack_into(self, name: str, original: Any, packed: Any) -> None:
        """Pack one buffer into another; do nothing if both layouts are the same memory."""
        if not self.is_packed_in_place(name):
            self._mover(name)(original, packed)

    def execute(self, packed: Mapping[str, Any], output: Any | None = None) -> Any:
        """Execute the contraction alone; return the packed output buffer."""
        target = self.empty(self._output.name) if output is None else output
        self._contract(*(packed[name] for name in self.input_names), target)
        return target

    def bound(self, packed: Mapping[str, Any], output: Any) -> Callable[[], Any]:
        """Return :meth:`execute` on these buffers, to be timed: a call looks nothing up."""
        return self._contract.bound(*(packed[name] for name in self.input_names), output)

    def bound_whole(
        self,
        inputs: Mapping[str, Array],
        packed: Mapping[str, Any],
        ahead: Collection[str],
        output: Any,
    ) -> Callable[[], Any]:
        """Return one call from the inputs' original layouts to the output's.

        Parameters
        ----------
        inputs : mapping of str to array
            Inputs in their original layouts.
        packed : mapping of str to buffer
            Packed buffers as for :meth:`bound`; inputs that the kernel packs inside do not use
            theirs.
        ahead : collection of str
            Inputs that are packed ahead of the call.
        output : buffer
            Packed output.
        """
        calls = self.bound_calls(self.originals(inputs, ahead), packed, output)
        return calls[0] if len(calls) == 1 else in_turn(calls)

    def originals(self, inputs: Mapping[str, Array], ahead: Collection[str]) -> dict[str, Any]:
        """Return buffers of the factors that a whole call packs, in their original layouts.

        They are all but those in ``ahead`` and those whose layouts are the same memory.
        """
        names = (operand.name for operand in self._factors)
        return {
            name: self.original(name, inputs[name])
            for name in names
            if name not in ahead and not self.is_packed_in_place(name)
        }

    def bound_calls(
        self, originals: Mapping[str, Any], packed: Mapping[str, Any], output: Any
    ) -> list[Callable[[], Any]]:
        """Return the calls of :meth:`bound_whole` in the order of their execution."""
        # They are bound in this order too, because recorders record a call when it is bound.
        first, *further = self.input_names
        inner = self._on_original if first in originals else None
        if inner is None:
            calls = [*self.bound_packing(originals, packed), self.bound(packed, output)]
        else:
            contract, copies = inner
            dtype = self._factors[0].dtype
            # Chunks pack into memory of their own, which the call gets as its last buffer.
            workspace = [self.processor.empty(copies, dtype)] if copies else []
            rest = {name: buffer for name, buffer in originals.items() if name != first}
            factors = originals[first], *(packed[name] for name in further)
            calls = self.bound_packing(rest, packed)
            calls.append(contract.bound(*factors, output, *workspace))
        return calls + self.bound_unpacking(output)

    @property
    def has_inner_packing(self) -> bool:
        """True if :meth:`bound_whole` may run other code than :meth:`bound`."""
        # Kernels pack inside, or read unpacked, their first factor only.
        return self._whole_plan is not None and not self.is_packed_in_place(self._factors[0].name)

    def run_whole(self, inputs: Mapping[str, Array], ahead: Collection[str]) -> Array:
        """Execute :meth:`run` as :meth:`bound_whole` does."""
        packed = {name: self.pack(name, inputs[name]) for name in self.input_names}
        output = self.empty(self._output.name)
        self.bound_whole(inputs, packed, ahead, output)()
        return self.unpack(output)

    @cached_property
    def _on_original(self) -> tuple[Compiled, int] | None:
        """Kernel on the original of the first factor, and the elements of the copies that it packs.

        None if the factor is packed before. Compiled on first use.
        """
        if not self.has_inner_packing or self._whole_plan is None:
            return None
        plan = self._whole_plan()
        # A whole plan that neither packs nor reads the original is the packed one over again.
        inside = plan.copies or plan.original
        return (self.processor.compile_plan(plan), plan.copies) if inside else None

    def bound_packing(
        self, originals: Mapping[str, Any], packed: Mapping[str, Any]
    ) -> list[Callable[[], Any]]:
        """Return calls to be timed that pack :meth:`originals`."""
        return [
            self._mover(name).bound(original, packed[name]) for name, original in originals.items()
        ]

    def bound_unpacking(self, packed: Any) -> list[Callable[[], Any]]:
        """Return the call to be timed that unpacks the output; none if it is in place."""
        name = self._output.name
        if self.is_packed_in_place(name):
            return []
        return [self._mover(name).bound(packed, self.original(name))]

    def unpack(self, packed: Any) -> Array:
        """Return the output in its original layout."""
        name, shape = self._output.name, self._output.original_shape
        place = self._placement(name)
        if place is not None:
            # A copy, since the next call overwrites the larger buffer.
            buffer = self.processor.to_array(packed, (place.elements,))
            return place.view(buffer, shape).copy()
        original = packed
        if not self.is_packed_in_place(name):
            original = self.original(name)
            self._mover(name)(packed, original)
        return self.processor.to_array(original, shape)

    def original(self, name: str, array: Array | None = None) -> Any:
        """Return a buffer with an array in an operand's original layout; zeros without an array."""
        operand, place = self.operand(name), self._placement(name)
        if array is None:
            elements = place.elements if place else math.prod(operand.original_shape)
            return self.processor.empty(elements, operand.dtype)
        if array.shape != operand.original_shape or array.dtype != numpy_dtype(operand.dtype):
            raise WorkloadError(
                f"operand {name} is {array.dtype} {array.shape}, "
                f"the kernel takes {operand.dtype} {operand.original_shape}"
            )
        require_values(name, operand.dtype, array)
        return self.processor.from_array(place.placed(array) if place else array)

    def empty(self, name: str) -> Any:
        """Return a zeroed buffer for an operand's packed layout."""
        operand, place = self.operand(name), self._placement(name)
        return self.processor.empty(place.elements if place else operand.elements, operand.dtype)

    def is_packed_in_place(self, name: str) -> bool:
        """Return True if the original memory is the packed one, so that nothing is copied."""
        # Kernels read a residual, and store a placed output, in the original layout.
        placed = name == RESIDUAL or self._placement(name) is not None
        return placed or self.operand(name).is_identity

    def assembly(self) -> str:
        """Return the machine code of the contraction."""
        return self._contract.assembly()

    def operand(self, name: str) -> PackedOperand:
        """Return an operand of the kernel.

        The output has its stored type; a vector of the epilogue has an element per channel; a
        residual is not packed.
        """
        if name == self._output.name:
            return self._output
        epilogue = self.epilogue
        if epilogue is None or name not in epilogue.parameters:
            return self.program.operand(name)
        if epilogue.residual is not None and name == RESIDUAL:
            return replace(self._output, name=name, dtype=epilogue.residual.dtype)
        dtype = epilogue.vector_dtype(name, self.program.unfused.output.dtype)
        return vector_operand(self.program, name, dtype)

    def _placement(self, name: str) -> Placement | None:
        """Return the place of the output or the residual in a larger buffer, if any."""
        if self.epilogue is None or name not in (self._output.name, RESIDUAL):
            return None
        placed = self.epilogue.residual if name == RESIDUAL else self.epilogue
        return None if placed is None else placed.placement

    def _mover(self, name: str) -> Compiled:
        """Return the packing kernel of an input or the unpacking kernel of the output."""
        # Compiled on first use: a search over schedules builds many contractions on the same
        # packed operands.
        if name not in self._movers:
            operand = self.operand(name)
            direction = Direction.UNPACK if operand is self._output else Direction.PACK
            source = packing_source(operand, self._move_threads(operand), direction)
            self._movers[name] = self.processor.compile_plan(KernelPlan(PACKING, source))
        return self._movers[name]


def described(kernel: CompiledKernel, target: str) -> dict[str, Any]:
    """Return a description of a kernel's buffers as a document."""
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
    """Return one call that executes all calls, one after the other."""

    def everything() -> None:
        for call in calls:
            call()

    return everything
