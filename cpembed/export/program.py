"""Programs of libraries: flat buffers, compiled kernels, and calls of kernels on buffers.

A program is made of one kernel here, of a convolution by a method such as Winograd's, or of a
network (:mod:`cpembed.network.program`). Operands of the first two are in their original layouts,
and weights are packed or transformed once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.compiled import PACKING, CompiledKernel
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall, RecordedCalls, recorded_calls
from cpembed.errors import InvariantError, WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype, size_bytes
from cpembed.transform.methods.convolution import Rewritten


class Role(Enum):
    """Source of a buffer's memory, and time at which it is written.

    A caller passes ``INPUT`` and ``OUTPUT`` in each call and ``WEIGHTS`` once. ``CONSTANT`` is
    known when the library is built. ``PACKED`` is written once, by the calls that prepare, and read
    by those that run. ``WORKSPACE`` is written before it is read in every run. ``WINDOW`` is a part
    of another buffer, which a loop moves.
    """

    INPUT = "input"
    OUTPUT = "output"
    WEIGHTS = "weights"
    CONSTANT = "constant"
    PACKED = "packed"
    WORKSPACE = "workspace"
    WINDOW = "window"


CALLER_ROLES = (Role.INPUT, Role.OUTPUT, Role.WEIGHTS)
"""Roles of buffers in the caller's memory."""


@dataclass(frozen=True)
class Buffer:
    """Flat memory.

    Callers number their tensors in the order of a program's buffers.

    Attributes
    ----------
    dtype : str
        Type of the elements; bfloat16 is 16 bits in memory.
    elements : int
        Number of elements.
    role : Role
        Source of the memory.
    shape : tuple of int
        Shape of the tensor that a caller passes.
    data : array, optional
        Elements of a constant.
    fill : int or float, optional
        Value that a workspace holds everywhere before the first run, such as the halo of a padded
        image. Such a workspace shares its memory with no other buffer.
    """

    name: str
    dtype: str
    elements: int
    role: Role
    shape: tuple[int, ...] = ()
    data: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    fill: int | float | None = None

    def __post_init__(self) -> None:
        if self.role in CALLER_ROLES and math.prod(self.shape) != self.elements:
            raise InvariantError(f"{self.name}: {self.elements} elements are not {self.shape}")
        if (self.data is not None) != (self.role is Role.CONSTANT):
            raise InvariantError(f"{self.name}: a constant has data, and nothing else has")
        if self.fill is not None and self.role is not Role.WORKSPACE:
            raise InvariantError(f"{self.name}: a {self.role.value} is not filled")
        data, size = self.data, size_bytes(self.dtype)
        if data is not None and (data.size != self.elements or data.dtype.itemsize != size):
            array = f"{data.dtype} {data.shape}"
            raise InvariantError(f"{self.name}: {array} is not {self.elements} of {self.dtype}")

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * size_bytes(self.dtype)

    @property
    def is_shared(self) -> bool:
        """True if other buffers have the same memory at other times of a run."""
        return self.role is Role.WORKSPACE and self.fill is None

    @property
    def filling(self) -> bytes:
        """Bytes of one element of the fill value; empty without one."""
        return b"" if self.fill is None else numpy_dtype(self.dtype).type(self.fill).tobytes()


@dataclass(frozen=True)
class CompiledObject:
    """Object file with one kernel, the function ``__tvm_ffi_<symbol>``."""

    symbol: str
    contents: bytes = field(repr=False)


@dataclass(frozen=True)
class Call:
    """Call of a kernel, named by its symbol, on buffers in the order of its parameters.

    Reports of times show the ``label``.
    """

    kernel: str
    arguments: tuple[str, ...]
    label: str = ""


class Moving(Enum):
    """Data movement of a loop, by the runtime, and the time at which it happens.

    ``START`` copies before the first step, and ``FINISH`` after the last one. ``READ`` copies a
    slice of a tensor before each step; ``VIEW`` lets a window show it instead. After each step
    ``WRITE`` copies a slice of a result, ``COPY`` copies a new state to the state, and ``SWAP``
    exchanges the memory of both.
    """

    START = 0
    READ = 1
    VIEW = 2
    WRITE = 3
    COPY = 4
    SWAP = 5
    FINISH = 6


@dataclass(frozen=True)
class Move:
    """Movement from one buffer to another.

    Attributes
    ----------
    backwards : bool
        True if the first step has the last slice.
    """

    moving: Moving
    source: str
    target: str
    backwards: bool = False


@dataclass(frozen=True)
class CallLoop:
    """Range of calls that is executed a number of times.

    Attributes
    ----------
    name : str
        Name of the operator.
    first, last : int
        Calls from ``first`` to before ``last``.
    steps : int, optional
        Number of steps, or the largest one; None if a condition ends the loop.
    moves : tuple of Move
        Movements, in the order of their times.
    number : str, optional
        Buffer that gets the number of each step (int64).
    limit : str, optional
        Buffer with the number of steps (int64).
    condition, again : str, optional
        Buffers with the condition of the first step, and of the next one.
    parent : int, optional
        Number of the loop around this one.
    padded : bool
        True if slices end with that of the last step of a run, which the limit says, and results
        are zeros from there on.
    """

    name: str
    first: int
    last: int
    steps: int | None
    moves: tuple[Move, ...]
    number: str | None = None
    limit: str | None = None
    condition: str | None = None
    again: str | None = None
    parent: int | None = None
    padded: bool = False

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that the loop itself reads or writes."""
        controls = (self.number, self.limit, self.condition, self.again)
        moved = (name for move in self.moves for name in (move.source, move.target))
        return (*(name for name in controls if name is not None), *moved)


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Maximum number of letters of a library's name, which begins the names of its functions.
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Program:
    """Buffers, kernels and calls of a library.

    Attributes
    ----------
    name : str
        Name of the library.
    kernels : mapping from str to CompiledObject
        Object files by symbol.
    prepare : tuple of Call
        Calls that are made once, after the weights have been passed.
    run : tuple of Call
        Calls of every run.
    loops : tuple of CallLoop
        Ranges of these calls that are repeated, an outer one before those inside it.
    features : tuple of str
        CPU features that the kernels need, as /proc/cpuinfo spells them.
    threads : int
        Default number of threads; 0 for the cores of the process.

    Raises
    ------
    InvariantError
        For calls and buffers that do not fit together.
    WorkloadError
        For a name that is no identifier of C.
    """

    name: str
    buffers: tuple[Buffer, ...]
    kernels: Mapping[str, CompiledObject]
    prepare: tuple[Call, ...]
    run: tuple[Call, ...]
    features: tuple[str, ...] = ()
    threads: int = 0
    loops: tuple[CallLoop, ...] = ()

    def __post_init__(self) -> None:
        require_name(self.name)
        if len(self.by_name) != len(self.buffers):
            raise InvariantError(f"{self.name}: two buffers have one name")
        for call in (*self.prepare, *self.run):
            if call.kernel not in self.kernels:
                raise InvariantError(f"{self.name}: there is no kernel {call.kernel}")
            for name in call.arguments:
                if name not in self.by_name:
                    raise InvariantError(f"{self.name}: {call.kernel} takes {name}, no buffer")
        for name in (name for loop in self.loops for name in loop.buffers):
            if name not in self.by_name:
                raise InvariantError(f"{self.name}: a loop moves {name}, no buffer")
        # Weights are packed between calls, when the caller passes no inputs or outputs.
        for name in (name for call in self.prepare for name in call.arguments):
            if self.by_name[name].role in (Role.INPUT, Role.OUTPUT):
                raise InvariantError(f"{self.name}: {name} is not there when weights are packed")

    @cached_property
    def by_name(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    def with_role(self, role: Role) -> tuple[Buffer, ...]:
        """Return the buffers of a role, in their order."""
        return tuple(buffer for buffer in self.buffers if buffer.role is role)

    @cached_property
    def used(self) -> frozenset[str]:
        """Names of the buffers that calls and loops take."""
        calls = (*self.prepare, *self.run)
        names = {name for call in calls for name in call.arguments}
        return frozenset(names.union(*(loop.buffers for loop in self.loops)))

    def loop_after(self, number: int) -> int:
        """Return the number of the first later loop that is not inside a loop."""
        inside, end = {number}, number + 1
        while end < len(self.loops) and self.loops[end].parent in inside:
            inside.add(end)
            end += 1
        return end

    def lives(self) -> dict[str, tuple[int, int]]:
        """Return the first and last step that take each buffer of the shared workspace."""
        lives: dict[str, tuple[int, int]] = {}
        for number, call in enumerate(self.run):
            for name in call.arguments:
                lives[name] = lives.get(name, (number, number))[0], number
        # Steps of preparation have no numbers among these, so their buffers live throughout.
        for call in self.prepare:
            lives |= dict.fromkeys(call.arguments, (0, len(self.run) - 1))
        # Inner loops first: what lives throughout one is needed in several steps of the outer one.
        for loop in reversed(self.loops):
            last = max(loop.first, loop.last - 1)
            for name in loop.buffers:
                first, end = lives.get(name, (loop.first, last))
                lives[name] = min(first, loop.first), max(end, last)
            # A tensor of outside is read in every step, so nothing inside may overwrite it.
            for name, (first, end) in lives.items():
                crosses = first < loop.first <= end or first <= loop.last - 1 < end
                if crosses and loop.first < loop.last:
                    lives[name] = min(first, loop.first), max(end, last)
        shared = (buffer.name for buffer in self.buffers if buffer.is_shared)
        return {name: lives[name] for name in shared if name in lives}


def require_name(name: str) -> str:
    """Return the name of a library, or raise :class:`WorkloadError` if it is no identifier."""
    # Names of C functions, of files and of a class of Python begin with it.
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise WorkloadError(
            f"{name!r} cannot name a library: letters, digits and _ only, a letter first, at most "
            f"{_LONGEST_NAME}"
        )
    return name


CompileObject = Callable[[KernelPlan, str], CompiledObject]
"""Function that compiles a plan to the object file of a symbol."""


def kernel_program(
    name: str,
    kernel: CompiledKernel,
    ahead: Collection[str],
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """Return the program of one kernel: the calls that :meth:`CompiledKernel.bound_whole` times.

    Steps are named by their purpose, and buffers by their operands, a packed one
    ``<operand>.packed``.

    Parameters
    ----------
    name : str
        Name of the library.
    kernel : CompiledKernel
        Kernel that is planned and not compiled.
    ahead : collection of str
        Operands that are weights, as are the vectors of an epilogue; all others are inputs.
    compile_object : callable
        Function that compiles a plan.
    features : tuple of str, optional
        CPU features that the kernel needs.
    threads : int, default 0
        Default number of threads; 0 for the cores of the process.
    """
    recorded, workload = recorded_calls(kernel, ahead), kernel.program.unfused
    operands = [operand.name for operand in workload.operands]
    labels = {
        key: key if key in operands else vector_name(workload, key)
        for key in recorded.caller_memory
    }
    names = {memory: f"{labels[key]}.packed" for key, memory in recorded.packed.items()}
    names |= {memory: labels[key] for key, memory in recorded.caller_memory.items()}
    buffers: dict[str, Buffer] = {}
    kernels: dict[str, CompiledObject] = {}

    def add(memory: Memory, role: Role, shape: tuple[int, ...] = ()) -> str:
        # The memory where the contraction packs its first factor is the only one without a name.
        name = names.get(memory, f"{kernel.input_names[0]}.copies")
        buffers.setdefault(name, Buffer(name, memory.dtype, memory.elements, role, shape))
        return name

    def added(call: RecordedCall, role: Role) -> Call:
        arguments = tuple(add(memory, role) for memory in call.buffers)
        label = "compute"
        if call.plan.backend == PACKING:
            source, target = arguments
            label = f"pack_{source}" if target == f"{source}.packed" else f"unpack_{target}"
        symbol = f"{name}_{label}"
        kernels[symbol] = compile_object(call.plan, symbol)
        return Call(symbol, arguments, label)

    # Operands in the workload's order, then vectors: callers number tensors by it.
    for key in sorted(recorded.caller_memory, key=[*operands, *labels].index):
        is_weight = key in ahead or key not in operands
        role = Role.WEIGHTS if is_weight else Role.INPUT
        role = Role.OUTPUT if key == workload.output.name else role
        add(recorded.caller_memory[key], role, kernel.operand(key).original_shape)
    prepare = tuple(added(call, Role.PACKED) for call in recorded.prepare)
    run = tuple(added(call, Role.WORKSPACE) for call in recorded.run)
    return Program(
        name, tuple(buffers.values()), kernels, prepare, run, features=features, threads=threads
    )


def vector_name(workload: Computation, name: str) -> str:
    """Return the name of the buffer of an epilogue's vector, which no operand has."""
    vector = name.removeprefix("@")
    while vector in {operand.name for operand in workload.operands}:
        vector += "_"
    return vector


def method_program(
    name: str,
    method: Rewritten,
    recorded: RecordedCalls,
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """Return the program of a convolution by a method such as Winograd's.

    Parameters
    ----------
    name : str
        Name of the library.
    method : Rewritten
        Convolution as the method rewrites it.
    recorded : RecordedCalls
        Calls of the method's kernels.
    compile_object, features, threads
        See :func:`kernel_program`.
    """
    conv = method.convolution
    roles = {
        conv.image.name: Role.INPUT,
        conv.weights.name: Role.WEIGHTS,
        conv.output.name: Role.OUTPUT,
    }
    packed = {memory for call in recorded.prepare for memory in call.buffers}
    buffers: dict[Memory, Buffer] = {}
    kernels: dict[str, CompiledObject] = {}
    symbols: dict[int, str] = {}

    def buffer(memory: Memory) -> str:
        if memory not in buffers:
            role = Role.PACKED if memory in packed else Role.WORKSPACE
            role = role if memory.contents is None else Role.CONSTANT
            label = f"part.{len(buffers)}"
            buffers[memory] = Buffer(
                label, memory.dtype, memory.elements, role, data=memory.contents
            )
        return buffers[memory].name

    def added(call: RecordedCall) -> Call:
        # A kernel that is called for several blocks is in the library once; the number of the
        # block is a constant buffer.
        plan = call.plan
        if id(plan) not in symbols:
            symbol = symbols[id(plan)] = f"{name}_{_label(plan, len(symbols))}"
            kernels[symbol] = compile_object(plan, symbol)
        symbol = symbols[id(plan)]
        return Call(symbol, tuple(map(buffer, call.buffers)), symbol.removeprefix(f"{name}_"))

    for operand, memory in recorded.caller_memory.items():
        shape = conv.workload.operand(operand).shape
        buffers[memory] = Buffer(operand, memory.dtype, memory.elements, roles[operand], shape)
    prepare = tuple(map(added, recorded.prepare))
    run = tuple(map(added, recorded.run))
    return Program(
        name, tuple(buffers.values()), kernels, prepare, run, features=features, threads=threads
    )


def _label(plan: KernelPlan, number: int) -> str:
    """Return the purpose of a kernel, ``compute`` for the product as in a library of one kernel."""
    if plan.backend == PACKING:
        return f"pack_{number}"
    method, _, part = plan.backend.partition(".")
    return f"{method}_{part}" if method == "winograd" else "compute"
