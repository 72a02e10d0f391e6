"""Execution of CUDA text on this machine's processor, with counters.

What CUDA leaves undefined is a fault. The threads of a block are fibers; the lanes of a warp meet
in collective functions, which are executed once for all of them. Results are
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, and nothing is timed.
``native/`` holds the runtime, in C++.
"""

from __future__ import annotations

import ctypes
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
from cpembed.targets.cuda.executor_source import FILE, PreparedText, prepare
from cpembed.targets.cuda.hopper.tensor_maps import TensorMap
from cpembed.targets.executor.program import Arena, Array, LoadedText, TextCompiler

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
        "-fno-threadsafe-statics",  # Shared arrays of float16 seem to have a constructor.
        f"-I{NATIVE / 'include'}",
    ),
    gcc_options=("-fno-tree-sra",),  # A vector is loaded and stored as a whole.
    header="executor.h",
)

# Limits of a launch (CUDA C++ Programming Guide, Compute Capabilities).
MAX_THREADS = 1024
MAX_SHARED_BYTES = 227 * 1024
"""Maximum dynamic shared memory of a block, on the largest machine (compute capability 9.0)."""
MAX_BLOCKS = (2**31 - 1, 65535, 65535)

MAX_CLUSTER = 16
"""Maximum number of blocks of a cluster (more than 8 are not portable)."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in global memory, and which of its bytes have been written.

    Reading another byte is a fault. The state is kept between launches.

    Parameters
    ----------
    array : Array
        Its elements.
    written : Array
        A bit for each byte, 64 to an element; two elements more than the bytes fill.
    """

    array: Array
    written: NDArray[np.uint64]

    @staticmethod
    def unwritten(elements: int, dtype: str) -> DeviceArray:
        """Return an array that nothing has written yet."""
        array = np.zeros(elements, dtype)
        return DeviceArray(array, np.zeros(array.nbytes // 64 + 2, np.uint64))

    def require_written(self, name: str) -> Array:
        """Return the elements.

        Raises :class:`ExecutionFault` if some have not been written; ``name`` is the array's.
        """
        bits = np.unpackbits(self.written.view(np.uint8), bitorder="little")[: self.array.nbytes]
        missing = np.flatnonzero(bits == 0)
        if missing.size:
            elements = np.unique(missing // self.array.itemsize)
            raise ExecutionFault(
                f"the kernels leave {elements.size:,} of {self.array.size:,} elements of {name} "
                f"unwritten, the first of them element {elements[0]}"
            )
        return self.array


@dataclass(frozen=True, eq=False)
class MapArgument:
    """A tensor map as argument of a kernel, and the array that it describes."""

    tensor_map: TensorMap
    array: Array | DeviceArray


Argument = Array | DeviceArray | MapArgument | np.generic | int | float

_SCALARS = {
    ("i", 1): ctypes.c_int8, ("i", 2): ctypes.c_int16, ("i", 4): ctypes.c_int32,
    ("i", 8): ctypes.c_int64, ("u", 1): ctypes.c_uint8, ("u", 2): ctypes.c_uint16,
    ("u", 4): ctypes.c_uint32, ("u", 8): ctypes.c_uint64, ("f", 4): ctypes.c_float,
    ("f", 8): ctypes.c_double,
}  # fmt: skip


_KINDS = {
    "p": "an array", "t": "a tensor map", "i": "a number", "u": "a number", "f": "a number",
    "?": "a value",
}  # fmt: skip
"""Kinds of parameters in messages."""

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


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("argument", ctypes.c_int32),
        ("initialised", ctypes.c_void_p),
    )


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
        ("clusters", ctypes.c_void_p),
        ("cluster_count", ctypes.c_uint64),
        ("computes", ctypes.c_bool),
    )


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
        arena, values = _placed(launch.kernel, parameters, arguments, copies_device=computes)
        numbers = None if clusters is None else _cluster_numbers(launch, clusters)
        pointers = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
        buffers = (_Buffer * max(1, len(arena.buffers)))(
            *(
                _Buffer(
                    b.address,
                    b.bytes,
                    b.argument,
                    _initialised(arguments[b.argument]) if computes else None,
                )
                for b in arena.buffers
            )
        )
        request = _Launch(
            invoke=self._address(f"executor_invoke_{launch.kernel}"),
            arguments=ctypes.addressof(pointers),
            buffers=ctypes.addressof(buffers),
            buffer_count=len(arena.buffers),
            # The runtime's codes: 0 forward, 1 reverse, 2 random by the seed.
            order=order.value if isinstance(order, Order) else 2,
            seed=0 if isinstance(order, Order) else order % 2**64,
            grid=(ctypes.c_uint32 * 3)(*launch.grid),
            block=(ctypes.c_uint32 * 3)(*launch.block),
            cluster=(ctypes.c_uint32 * 3)(*launch.cluster),
            shared_bytes=launch.shared_bytes,
            clusters=None if numbers is None else numbers.ctypes.data,
            cluster_count=0 if numbers is None else numbers.size,
            computes=computes,
        )

        def fault_origin() -> str:
            block = tuple(self._functions.executor_block_of_fault().contents)
            return f"{launch.kernel}, block {block}: "

        return self._execute(request, arena, self._counters, fault_origin, copies_back=computes)

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


def _placed(
    kernel: str,
    parameters: Sequence[tuple[str, int]],
    arguments: Sequence[Argument],
    *,
    copies_device: bool,
) -> tuple[Arena, list[Any]]:
    """Return the memory of a launch's arrays, and the C value of each argument.

    Of a :class:`DeviceArray`, ``copies_device`` says whether its values are copied.
    """
    if len(parameters) != len(arguments):
        raise ExecutionFault(
            f"{kernel} takes {len(parameters)} arguments, and {len(arguments)} are given"
        )
    arrays: dict[int, tuple[int, Array]] = {}
    device = set[int]()
    for number, ((kind, _), value) in enumerate(zip(parameters, arguments, strict=True)):
        if (kind == "t") != isinstance(value, MapArgument):
            raise ExecutionFault(f"{kernel} takes {_KINDS[kind]} as argument {number}")
        if kind in "pt":
            array = _array(value)
            if array is None:
                raise ExecutionFault(f"{kernel} takes an array as argument {number}")
            # An array that is passed twice is one buffer.
            arrays.setdefault(id(array), (number, array))
            if not copies_device and _is_device(value):
                device.add(number)
    # Copies with guarded gaps, so that an access outside of an array is noticed.
    arena = Arena.with_copies(kernel, list(arrays.values()), device)
    addresses = {id(b.array): b.address for b in arena.buffers}
    values = list[Any]()
    for number, ((kind, size), value) in enumerate(zip(parameters, arguments, strict=True)):
        if isinstance(value, MapArgument):
            values.append(_encoded(value, addresses[id(_array(value))]))
        elif kind == "p":
            values.append(ctypes.c_void_p(addresses[id(_array(value))]))
        else:
            values.append(_scalar(kernel, number, kind, size, value))
    return arena, values


_MAP_ALIGNMENT = 64
"""Alignment of a tensor map in bytes (CUDA driver API)."""


def _encoded(argument: MapArgument, address: int) -> Any:
    encoded = argument.tensor_map.encode(address)
    memory = bytearray(len(encoded) + _MAP_ALIGNMENT)
    at = -ctypes.addressof(ctypes.c_uint8.from_buffer(memory)) % _MAP_ALIGNMENT
    memory[at : at + len(encoded)] = encoded
    return (ctypes.c_uint8 * len(encoded)).from_buffer(memory, at)


def _array(value: Argument) -> Array | None:
    array = value.array if isinstance(value, MapArgument) else value
    array = array.array if isinstance(array, DeviceArray) else array
    return array if isinstance(array, np.ndarray) else None


def _is_device(value: Argument) -> bool:
    array = value.array if isinstance(value, MapArgument) else value
    return isinstance(array, DeviceArray)


def _initialised(value: Argument) -> int | None:
    """Return the address of the bits of the bytes that are written; None if all of them are."""
    array = value.array if isinstance(value, MapArgument) else value
    return array.written.ctypes.data if isinstance(array, DeviceArray) else None


def _scalar(kernel: str, number: int, kind: str, size: int, value: Argument) -> Any:
    scalar: Any = _SCALARS.get((kind, size))
    # A Python number takes the parameter's type, as in a call of C++.
    is_array = isinstance(value, (np.ndarray, DeviceArray, MapArgument))
    if scalar is not None and not is_array:
        return scalar(float(value)) if kind == "f" else scalar(int(value))
    if isinstance(value, np.generic) and value.nbytes == size:  # float16, for one.
        return (ctypes.c_uint8 * size).from_buffer_copy(value.tobytes())
    raise ExecutionFault(
        f"{kernel} takes a number of {size} bytes as argument {number}: give one of numpy's"
    )


@lru_cache(maxsize=32)
def compile_text(source: str) -> Program:
    """Compile CUDA C++ for this machine's processor, with ``CPEMBED_EXECUTOR`` defined.

    Raises :class:`~cpembed.errors.BackendUnavailable` without a C++ compiler and
    :class:`~cpembed.errors.LoweringError` if the text does not compile.
    """
    text = prepare(source)
    return Program(source, text, COMPILER.compile(text.source))
