"""Execution of CUDA text on this machine's processor, with counters.

What CUDA leaves undefined is a fault. The threads of a block are fibers; the lanes of a warp meet
in collective functions, which are executed once for all of them. Results are
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, and nothing is timed.
``native/`` holds the runtime, in C++.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.arguments import (
    Argument,
    DeviceArray,
    MapArgument,
    PlacedArguments,
)
from cpembed.targets.cuda.emulator.ptx.warp_groups import FACTORS_IN_REGISTERS
from cpembed.targets.cuda.emulator.source import FILE, PreparedText, prepare
from cpembed.targets.executor.program import LoadedText, TextCompiler

__all__ = [
    "COMPILER", "Argument", "Counters", "DeviceArray", "Launch", "MapArgument", "Order", "Program",
    "compile_text",
]  # fmt: skip

NATIVE = Path(__file__).parent / "native"
"""Folder of the runtime and of the headers that texts are compiled with."""

COMPILER = TextCompiler(
    kind="CUDA",
    name="cuda_executor",
    folder_variable="CPEMBED_CUDA_EXECUTOR_CACHE",
    file=FILE,
    language="c++",
    native=NATIVE,
    options=(
        "-std=c++17",
        "-fsanitize-coverage=trace-pc",  # Calls the runtime in each basic block; native/plain.h.
        # Call it where an index is not one of its array's, and before a division by zero, which
        # would end this process.
        "-fsanitize=bounds,integer-divide-by-zero",
        "-fno-threadsafe-statics",  # Shared arrays of float16 seem to have a constructor.
        f"-I{NATIVE / 'include'}",
    ),
    gcc_options=(
        "-fno-tree-sra",  # A vector is loaded and stored as a whole.
        "-fstack-reuse=none",  # Registers that products in flight read are no other variable's.
    ),
    header="executor.h",
)

# Limits of a launch (CUDA C++ Programming Guide, Compute Capabilities).
MAX_THREADS = 1024
MAX_SHARED_BYTES = 227 * 1024
"""Maximum dynamic shared memory of a block, on the largest machine (compute capability 9.0)."""
MAX_BLOCKS = (2**31 - 1, 65535, 65535)

MAX_CLUSTER = 16
"""Maximum number of blocks of a cluster (more than 8 are not portable)."""


MAX_STEPS = 2**24
"""Maximum number of basic blocks that a thread enters; one that enters more does not end."""


_PRODUCTS = ("mma.", "wmma.mma.", "wgmma.mma_async.")
"""Beginnings of the opcodes that multiply matrices."""


@dataclass(frozen=True)
class Counters:
    """Counts of one launch, or of several added up.

    A *wavefront* serves one 4-byte word of each of the 32 banks of shared memory; a *sector* is 32
    bytes of global memory. ``…_least`` is the minimum for the same accesses, warp by warp: without
    bank conflicts, and with the bytes of a warp's access contiguous and aligned.
    """

    instructions: Mapping[str, int] = field(default_factory=dict[str, int])
    """Calls of PTX instructions by opcode with its modifiers, and of collective functions and
    barriers of CUDA C++ by name; one per warp."""
    shared_load_wavefronts: int = 0
    """Includes ``ldmatrix`` and loads of WMMA fragments."""
    shared_load_wavefronts_least: int = 0
    shared_store_wavefronts: int = 0
    """Includes the stores of ``cp.async``."""
    shared_store_wavefronts_least: int = 0
    ldmatrix_wavefronts: int = 0
    global_load_sectors: int = 0
    """Counted per access of a warp; includes the loads of ``cp.async``."""
    global_load_sectors_least: int = 0
    global_store_sectors: int = 0
    global_store_sectors_least: int = 0
    global_load_bytes: int = 0
    """Bytes requested by all lanes."""
    global_store_bytes: int = 0
    unique_bytes_read: int = 0
    """Bytes of global memory, each counted once a launch: the minimum with any cache."""
    unique_bytes_written: int = 0
    barriers: int = 0
    """Barriers of whole blocks."""
    named_barriers: int = 0
    """Barriers of some of a block's threads."""
    cluster_barriers: int = 0
    mbarrier_phases: int = 0
    """Phases of barrier objects in shared memory that are complete."""
    bulk_load_bytes: int = 0
    """Bytes of global memory that bulk copies read; a multicast counts once."""
    bulk_load_sectors: int = 0
    """Sectors of these, row by row of each copy."""
    bulk_load_image_bytes: int = 0
    """Bytes that bulk copies write to shared memory, zeros included; a multicast counts once."""
    multicast_bytes: int = 0
    """Bytes that multicasts write to the second and further blocks."""
    bulk_store_bytes: int = 0
    bulk_store_sectors: int = 0
    wgmma_wavefronts: int = 0
    """Wavefronts of ``wgmma``'s operands in shared memory, read in cores of 8 rows of 16 bytes."""
    wgmma_wavefronts_least: int = 0
    cp_async_groups: int = 0
    """Groups committed by warps."""
    blocks: int = 0

    @property
    def mma(self) -> dict[str, int]:
        """Matrix multiplications by their PTX opcodes."""
        return {
            name: calls for name, calls in self.instructions.items() if name.startswith(_PRODUCTS)
        }

    @property
    def ldmatrix(self) -> int:
        """Number of ``ldmatrix`` instructions, of any number of matrices."""
        return sum(n for name, n in self.instructions.items() if name.startswith("ldmatrix."))

    def __add__(self, counters: Counters) -> Counters:
        names = [f.name for f in fields(self) if f.name != "instructions"]
        calls = dict(Counter(self.instructions) + Counter(counters.instructions))
        return Counters(calls, **{n: getattr(self, n) + getattr(counters, n) for n in names})

    def to_json(self) -> dict[str, Any]:
        return {
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "instructions"},
            "instructions": dict(sorted(self.instructions.items())),
        }


class Order(Enum):
    """Order of blocks, warps and lanes wherever CUDA leaves it open.

    A seed in its place is a random order of blocks, and of warps and lanes between every two
    barriers.
    """

    FORWARD = 0
    REVERSE = 1


@dataclass(frozen=True)
class Launch:
    """A kernel with its numbers of blocks and threads, and the bytes of dynamic shared memory.

    ``cluster`` has the numbers of blocks of a cluster, which run together.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False
    """True for a launch that may begin before the kernel before it ends (programmatic dependent
    launch): what others wrote to a :class:`DeviceArray` is there after ``griddepcontrol.wait``."""


class _Launch(ctypes.Structure):
    _fields_ = (
        ("invoke", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("shared_alignment", ctypes.c_uint32),
        ("clusters", ctypes.c_void_p),
        ("cluster_count", ctypes.c_uint64),
        ("computes", ctypes.c_bool),
        ("steps", ctypes.c_uint64),
        ("multiplies_registers", ctypes.c_bool),
        ("dependent", ctypes.c_bool),
    )


_UNTRACKED = re.compile(r".*: \{track:(\d+)\}", re.DOTALL)


class Program(LoadedText):
    """A compiled CUDA text."""

    def __init__(self, source: str, text: PreparedText, library: Path) -> None:
        super().__init__(COMPILER, source, library)
        self._text = text
        self._functions.executor_block_of_fault.restype = ctypes.POINTER(ctypes.c_uint32 * 3)
        for name in ("executor_counter", "executor_function"):
            getattr(self._functions, name).restype = ctypes.c_char_p

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(self._text.kernels)

    def run(
        self,
        launch: Launch,
        arguments: Sequence[Argument],
        *,
        order: Order | int = Order.FORWARD,
        clusters: Sequence[int] | None = None,
    ) -> Counters:
        """Launch a kernel.

        Parameters
        ----------
        launch
            Kernel, grid and block.
        arguments
            An array for each pointer of the kernel, which it may change, a :class:`MapArgument` for
            each tensor map, and numbers, in the order of its parameters. All elements of a plain
            array count as written; of a :class:`DeviceArray`, those that it says. Arrays are placed
            at multiples of 256 bytes with gaps between them, as a GPU's allocator places them.
        order
            Order of threads, or the seed of a random one.
        clusters
            Numbers of the clusters that are executed, those of blocks where a cluster is one block;
            x counts first. None: all of them. Of the results of the others, the elements of a
            :class:`DeviceArray` stay unwritten.

        Returns
        -------
        Counters
            Counts of this launch, or of what is executed of it.

        Raises
        ------
        ExecutionFault
            If a GPU would reject the launch, or the kernel does what CUDA leaves undefined.
        """
        return self._launched(launch, arguments, order, clusters, computes=True)

    def count(
        self,
        launch: Launch,
        arguments: Sequence[Argument],
        *,
        order: Order | int = Order.FORWARD,
        clusters: Sequence[int] | None = None,
    ) -> Counters:
        """Count what a kernel does, or some of its clusters do, without a result.

        Products of matrices are counted and checked, but not computed. No array changes, so that a
        :class:`DeviceArray` stays unwritten; its bytes are zeros for the kernel, and count as
        written. Only plain arrays, which may decide what the kernel does, have their values.

        Parameters
        ----------
        launch, arguments, order, clusters
            As those of :meth:`run`.

        Returns
        -------
        Counters
            Counts of what is executed.

        Raises
        ------
        ExecutionFault
            As :meth:`run` does, except for reading what nobody has written to global memory.
        """
        return self._launched(launch, arguments, order, clusters, computes=False)

    def _launched(
        self,
        launch: Launch,
        arguments: Sequence[Argument],
        order: Order | int,
        clusters: Sequence[int] | None,
        *,
        computes: bool,
    ) -> Counters:
        self._require_launchable(launch)
        parameters = self._parameters(launch.kernel)
        numbers = None if clusters is None else _cluster_numbers(launch, clusters)
        tracked = set[int]()
        while True:
            placed = PlacedArguments(launch.kernel, parameters, arguments, computes=computes)
            pointers = (ctypes.c_void_p * max(1, len(placed.values)))(
                *map(ctypes.addressof, placed.values)
            )
            buffers = placed.buffers(tracked)
            request = _Launch(
                invoke=self._address(f"executor_invoke_{launch.kernel}"),
                arguments=ctypes.addressof(pointers),
                buffers=ctypes.addressof(buffers),
                buffer_count=len(placed.arena.buffers),
                # The runtime's codes: 0 forward, 1 reverse, 2 random by the seed.
                order=order.value if isinstance(order, Order) else 2,
                seed=0 if isinstance(order, Order) else order % 2**64,
                grid=(ctypes.c_uint32 * 3)(*launch.grid),
                block=(ctypes.c_uint32 * 3)(*launch.block),
                cluster=(ctypes.c_uint32 * 3)(*launch.cluster),
                shared_bytes=launch.shared_bytes,
                shared_alignment=self._text.shared_alignment,
                clusters=None if numbers is None else numbers.ctypes.data,
                cluster_count=0 if numbers is None else numbers.size,
                computes=computes,
                steps=MAX_STEPS,
                multiplies_registers=FACTORS_IN_REGISTERS in self._text.source,
                dependent=launch.dependent,
            )
            try:
                counters = self._execute(
                    request,
                    placed.arena,
                    self._counters,
                    lambda: self._fault_origin(launch),
                    copies_back=computes,
                )
            except ExecutionFault as fault:
                # An array is both read and written: its readers have to be noted.
                untracked = _UNTRACKED.fullmatch(str(fault))
                if untracked is None:
                    raise
                tracked.add(int(untracked[1]))
                continue
            placed.keep_written()
            return counters

    def _fault_origin(self, launch: Launch) -> str:
        block = tuple(self._functions.executor_block_of_fault().contents)
        return f"{launch.kernel}, block {block}: "

    def _require_launchable(self, launch: Launch) -> None:
        name, threads = launch.kernel, int(np.prod(launch.block))
        if name not in self._text.kernels:
            raise ExecutionFault(
                f"there is no kernel {name} in the text; it has {', '.join(self.kernels)}"
            )
        # A bound by __launch_bounds__ is a promise to the compiler, which a GPU enforces.
        limit = min(self._text.kernels[name] or MAX_THREADS, MAX_THREADS)
        if not 1 <= threads <= limit or min(launch.block) < 1:
            raise ExecutionFault(
                f"{name} cannot be launched with blocks of {launch.block} threads: at most {limit}"
            )
        if any(not 1 <= n <= most for n, most in zip(launch.grid, MAX_BLOCKS, strict=True)):
            raise ExecutionFault(f"{name} cannot be launched with a grid of {launch.grid} blocks")
        blocks = int(np.prod(launch.cluster))
        fits = all(g % c == 0 for g, c in zip(launch.grid, launch.cluster, strict=True) if c > 0)
        if min(launch.cluster) < 1 or blocks > MAX_CLUSTER or not fits:
            raise ExecutionFault(
                f"{name} cannot be launched with clusters of {launch.cluster} blocks in a grid of "
                f"{launch.grid}: at most {MAX_CLUSTER}, which divide the grid"
            )
        if not 0 <= launch.shared_bytes <= MAX_SHARED_BYTES:
            raise ExecutionFault(
                f"{name} cannot be launched with {launch.shared_bytes} bytes of dynamic shared "
                f"memory: at most {MAX_SHARED_BYTES}"
            )

    def _address(self, function: str) -> int | None:
        return ctypes.cast(getattr(self._functions, function), ctypes.c_void_p).value

    def _parameters(self, kernel: str) -> list[tuple[str, int]]:
        """Return kind and size in bytes of each parameter, as in ``native/kernel_entry.h``."""
        # The compiler's own view of the signature: the text may use types that are defined in it.
        kinds = getattr(self._functions, f"executor_kinds_{kernel}")
        sizes = getattr(self._functions, f"executor_sizes_{kernel}")
        kinds.restype, sizes.restype = ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)
        return [(kind, sizes()[n]) for n, kind in enumerate(kinds().decode()[1:])]

    def _counters(self) -> Counters:
        calls = {name: n for name, n in self._counts("executor_function").items() if n}
        return Counters(calls, **self._counts("executor_counter"))

    def _counts(self, function: str) -> dict[str, int]:
        next_name, value = getattr(self._functions, function), ctypes.c_uint64()
        counts, number = Counter[str](), 0
        # The runtime numbers its counters; beyond the last there is no name. Places of a text that
        # call one instruction have a counter each.
        while name := next_name(number, ctypes.byref(value)):
            counts[name.decode()] += value.value
            number += 1
        return dict(counts)


def _cluster_numbers(launch: Launch, clusters: Sequence[int]) -> NDArray[np.uint32]:
    count = int(np.prod(launch.grid)) // int(np.prod(launch.cluster))
    wrong = [number for number in clusters if not 0 <= number < count]
    if wrong or len(set(clusters)) < len(clusters):
        raise ExecutionFault(
            f"{launch.kernel} has the clusters 0 to {count - 1}: none of them can be executed twice"
            + (f", and there is no cluster {wrong[0]}" if wrong else "")
        )
    return np.array(clusters, np.uint32)


@lru_cache(maxsize=32)
def compile_text(source: str) -> Program:
    """Compile CUDA C++ for this machine's processor, with ``CPEMBED_EXECUTOR`` defined.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C++ compiler and
    :class:`~cpembed.errors.LoweringError` if the text does not compile.
    """
    text = prepare(source)
    return Program(source, text, COMPILER.compile(text.source))
