"""Host side of VTA programs: compiled packing, and calls from TVM's modules.

A compiled module holds each program as the bytes of a saved one (``docs/vta.md``), weights in its
memory, and calls :data:`EXECUTE` with the inputs of a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen import runtime
from cpembed.codegen.packing import Direction, packed_before, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.errors import WorkloadError
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Quantiles, Timing, time_work
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.estimate import threads_worth
from cpembed.targets.vta.checker import check
from cpembed.targets.vta.lower import Array, LoweredVta
from cpembed.targets.vta.program import VtaProgram, load_program, save_program
from cpembed.targets.vta.simulator import output_names, simulate
from cpembed.targets.vta.tail import Exact, Truncated
from cpembed.transform.program import PackedOperand


@dataclass(frozen=True, eq=False)
class LayoutCopy:
    """Copy between layouts that can run any number of times and writes ``target``."""

    run: Callable[[], None]
    target: Array


class HostPacking:
    """Packing of a program's inputs and unpacking of its output, compiled on first use.

    :mod:`cpembed.transform.program` does the same in numpy, slower.
    """

    def __init__(self, lowered: LoweredVta) -> None:
        self._lowered = lowered
        self._kernels: dict[str, runtime.Function] = {}

    def input_copy(self, name: str, array: Array, target: Array | None = None) -> LayoutCopy:
        """Return the copy that packs an input.

        Parameters
        ----------
        name
            Name of the input.
        array
            Input in its original layout.
        target
            Array to pack into, aligned as :func:`runtime.aligned` does; by default a new one.

        Raises
        ------
        WorkloadError
            If the array has another shape or element type than the operand.
        """
        operand = self._lowered.input(name)
        if array.shape != operand.original_shape or array.dtype != np.dtype(operand.dtype):
            raise WorkloadError(
                f"operand {operand.name} is {array.dtype} {array.shape}, "
                f"the workload has {operand.dtype} {operand.original_shape}"
            )
        # The kernel reads memory in place, which has to be contiguous and aligned for TVM.
        source = runtime.aligned(array.shape, operand.dtype)
        source[...] = array
        if target is None:
            target = runtime.aligned(operand.shape, operand.dtype)
        return self._copy(operand, Direction.PACK, source, target)

    def output_copy(self, packed: Array) -> LayoutCopy:
        """Return the copy that unpacks a result of :meth:`LoweredVta.combine`."""
        operand = self._lowered.stored
        source = runtime.aligned(operand.shape, operand.dtype)
        source[...] = packed
        target = runtime.aligned(operand.original_shape, operand.dtype)
        return self._copy(operand, Direction.UNPACK, source, target)

    def build(self, inputs: Mapping[str, Array]) -> VtaProgram:
        """Return the program with inputs in their original layouts, packed into its memory."""
        program = self._lowered.empty_image()
        for tensor in self._lowered.nest.inputs:
            self.input_copy(tensor.name, inputs[tensor.name], program.tensor(tensor.name)).run()
        return program

    def unpack(self, packed: Array) -> Array:
        """Return the output in its original layout."""
        copy = self.output_copy(packed)
        copy.run()
        return copy.target

    def time(
        self,
        program: VtaProgram,
        memory: NDArray[np.uint8],
        inputs: Mapping[str, Array],
        *,
        packed_ahead: Collection[str] | None = None,
        rounds: int = 15,
        round_ms: float = 10.0,
    ) -> Timing:
        """Time the packing of inputs and the unpacking of the output on this machine.

        A layout that is the same memory as the original one costs nothing. Unpacking includes
        combining bytes that were stored separately.

        Parameters
        ----------
        program
            Image of the program that ran, for the places of tensors.
        memory
            Main memory after the run.
        inputs
            Inputs by name, in their original layouts.
        packed_ahead
            Names of the inputs that are packed ahead, and not timed; by default the second input,
            as in :func:`~cpembed.runtime.measurement.runner.measure`.
        rounds
            Number of rounds of each measurement.
        round_ms
            Milliseconds of a round.

        Returns
        -------
        Timing
            Times of packing and unpacking; the program's latency is left out.
        """
        lowered = self._lowered
        if packed_ahead is None:
            packed_ahead = packed_before(lowered.program.workload)
        operands = [tensor.packed for tensor in lowered.nest.inputs]
        ahead = tuple(operand.name for operand in operands if operand.name in packed_ahead)
        packing = [
            time_work(self.input_copy(operand.name, inputs[operand.name]).run, rounds, round_ms)
            for operand in operands
            if operand.name not in ahead and not operand.is_identity
        ]
        unpacking: list[Quantiles] = []
        if len(lowered.tail.phases) > 1:
            unpacking.append(time_work(lambda: lowered.combine(program, memory), rounds, round_ms))
        if not lowered.stored.is_identity:
            packed = lowered.combine(program, memory)
            unpacking.append(time_work(self.output_copy(packed).run, rounds, round_ms))
        return Timing(
            provenance=Provenance.SIMULATED,
            macs=lowered.program.unfused.macs,
            latency_us=None,
            packing_us=sum(times.median for times in packing),
            unpacking_us=sum((times.median for times in unpacking), 0.0),
            packed_ahead=ahead,
            noisy=any(times.is_noisy for times in (*packing, *unpacking)),
        )

    def _copy(
        self, operand: PackedOperand, direction: Direction, source: Array, target: Array
    ) -> LayoutCopy:
        # An operand is packed or unpacked, never both: its name tells the kernels apart.
        if operand.name not in self._kernels:
            plan = KernelPlan("packing", _copy_source(operand, direction))
            self._kernels[operand.name] = runtime.compile_plan(plan)
        kernel = self._kernels[operand.name]
        buffers = runtime.shared(source.reshape(-1)), runtime.shared(target.reshape(-1))
        return LayoutCopy(lambda: kernel(*buffers), target)


def _copy_source(operand: PackedOperand, direction: Direction) -> str:
    """Return TVMScript of a copy between layouts, on as many threads as it is worth."""
    threads = threads_worth(operand, calibration(), runtime.thread_count())
    return packing_source(operand, threads, direction)


EXECUTE = "cpembed.vta.execute"
"""Name under which compiled modules look :func:`execute` up."""

_MAX_LOADED = 256
"""Maximum number of programs to keep in memory: more than a network has."""

_OPAQUE = 8
"""``relay::kOpaque``: the pattern of a function that is fused with nothing."""


def register() -> None:
    """Register :func:`execute`, which compiled modules look up when they are loaded."""
    runtime.tvm().register_global_func(EXECUTE, execute, override=True)


def execute(program: Any, names: str, *tensors: Any) -> None:
    """Run a saved program, as a compiled module does.

    Parameters
    ----------
    program
        Bytes of the saved program, as a tensor.
    names
        Names of its inputs, separated by spaces.
    tensors
        Packed inputs in the order of their names, then the tensor for the packed result. A result
        of int32 is combined from the four planes of bytes that the program stores.
    """
    loaded = _loaded(program.numpy().tobytes())
    *inputs, result = tensors
    dram = loaded.dram.copy()
    for name, tensor in zip(names.split(), inputs, strict=True):
        target = loaded.tensor(name, dram)
        target[...] = np.from_dlpack(tensor).reshape(target.shape)
    dram = simulate(loaded, dram=dram, checked=False)
    stored = [loaded.tensor(name, dram) for name in output_names(loaded)]
    # An int8 result, shifted and clipped or not, is the one plane of bytes that was stored.
    tail = Exact() if result.dtype == "int32" else Truncated()
    result.copyfrom(tail.combine(stored).reshape(result.shape))


@lru_cache(maxsize=_MAX_LOADED)
def _loaded(data: bytes) -> VtaProgram:
    """Return a program after checking it, once for all runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.zip"
        path.write_bytes(data)
        program = load_program(path)
    check(program)
    return program


def _saved(program: VtaProgram) -> NDArray[np.uint8]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.zip"
        save_program(program, path)
        return np.frombuffer(path.read_bytes(), np.uint8)


def emit_relax(builder: Any, lowered: LoweredVta, arguments: Mapping[str, Any], result: Any) -> Any:
    """Return a relax expression that packs the inputs, runs a program and unpacks its result.

    Parameters
    ----------
    builder
        The ``relax.BlockBuilder`` of the module.
    lowered
        Program of the operator.
    arguments
        Inputs by name. Arrays are packed immediately and travel in the program's memory; relax
        expressions are packed when the module runs, by generated TensorIR functions.
    result
        Type of the expression.
    """
    tvm = runtime.tvm()
    program = lowered.empty_image()
    varying: dict[str, Any] = {}
    for tensor in lowered.nest.inputs:
        argument = arguments[tensor.name]
        # Weights: packed once, here, into the image that the module carries.
        if isinstance(argument, np.ndarray):
            array = cast("Array", argument).reshape(tensor.packed.original_shape)
            program.tensor(tensor.name)[...] = lowered.pack(tensor.name, array)
        else:
            varying[tensor.name] = _copied(builder, tensor.packed, Direction.PACK, argument)
    stored = lowered.stored
    constants = [tvm.relax.const(_saved(program)), tvm.ir.StringImm(" ".join(varying))]
    passed = tvm.relax.Tuple([*constants, *varying.values()])
    flat = _flat(stored.elements, stored.dtype)
    image = builder.emit(tvm.relax.call_dps_packed(EXECUTE, passed, flat))
    unpacked = _copied(builder, stored, Direction.UNPACK, image)
    return tvm.relax.op.reshape(unpacked, result.shape)


def _copied(builder: Any, operand: PackedOperand, direction: Direction, value: Any) -> Any:
    """Return an operand's elements in the layout that ``direction`` leads to, flat as ``value``."""
    tvm = runtime.tvm()
    original = int(np.prod(operand.original_shape))
    packs = direction is Direction.PACK
    # Generated copies take flat buffers on both sides.
    flat = builder.emit(tvm.relax.op.reshape(value, (original,))) if packs else value
    source = tvm.script.from_source(_copy_source(operand, direction))
    # Already scheduled: TVM's own passes must neither fuse nor reschedule the copy.
    attributes = {"op_pattern": _OPAQUE, "tirx.is_scheduled": True}
    function = source.without_attr("global_symbol").with_attrs(attributes)
    name = f"{direction.value}_{operand.name}".replace(".", "_")
    type_of_copy = _flat(operand.elements if packs else original, operand.dtype)
    call = tvm.relax.call_tir(
        builder.add_func(function, name), tvm.relax.Tuple([flat]), type_of_copy
    )
    return builder.emit(call)


def _flat(elements: int, dtype: str) -> Any:
    return runtime.tvm().relax.TensorType([elements], dtype)
